"""Follow a run: rates and latencies per step, from the reports its workers send."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.cli.histogram import Histogram
from headrace.graph.nodes import SourceNode
from headrace.signals import StopWish

if TYPE_CHECKING:
    from headrace.bench.figures import TreeWatch
    from headrace.spark.run import Run

_LOOK_S = 0.25
_NOW_S = 5.0
"""What rates and latencies "now" are taken over: short enough to follow a burst, five reports long."""
_REMEMBERED_S = 30.0


@dataclass(frozen=True, slots=True)
class Recent:
    """A step over the last seconds; latencies are None if no buffer reached it."""

    in_per_s: float
    out_per_s: float
    mean_ms: float | None
    p50_ms: float | None
    p99_ms: float | None


class Watch:
    """What a run has done so far. ``look`` takes in what is new; nothing else reads the run's reports."""

    def __init__(self, handle: Run) -> None:
        self.handle = handle
        self.began_s: float | None = None
        self.latency: dict[str, Histogram] = {}
        self.items: dict[str, int] = {}
        self._recent: deque[dict[str, Any]] = deque()
        self._seen_us: dict[tuple[int, int, int], int] = {}
        self._events = 0

    def look(self) -> list[str]:
        """Take in new reports; returns what has happened since, in words."""
        if self.began_s is None and self.handle.status().state == "running":
            self.began_s = time.monotonic()
        for report in list(self.handle.reports()):
            worker = (report["stage"], report["index"], report["pid"])
            if report["at_us"] > self._seen_us.get(worker, 0):
                self._seen_us[worker] = report["at_us"]
                self._take(report)
        horizon_us = time.time_ns() // 1000 - _REMEMBERED_S * 1e6
        while self._recent and self._recent[0]["at_us"] < horizon_us:
            self._recent.popleft()
        events = self.handle.decisions()
        news, self._events = events[self._events :], len(events)
        return [f"{event.what}: {event.detail}" for event in news if event.what != "failed"]

    def _take(self, report: dict[str, Any]) -> None:
        self._recent.append(report)
        for step in report["steps"]:
            name, sample = step["step"], step["latency_ms"]
            self.items[name] = self.items.get(name, 0) + step["in"]
            if sample is not None:
                weight = sample["n"] / len(sample["values"])
                self.latency.setdefault(name, Histogram()).add(sample["values"], weight)

    @property
    def seconds(self) -> float:
        """How long records have been flowing."""
        return time.monotonic() - self.began_s if self.began_s is not None else 0.0

    @property
    def sources(self) -> list[str]:
        return [node.name for node in self.handle.plan.graph.nodes if isinstance(node, SourceNode)]

    @property
    def read(self) -> int:
        """Records read so far, as far as reported."""
        return sum(self.items.get(name, 0) for name in self.sources)

    def recent(self, step: str, over_s: float = _NOW_S) -> Recent:
        """A step's rates and latencies of the last ``over_s`` seconds."""
        horizon_us = time.time_ns() // 1000 - over_s * 1e6
        latency = Histogram()
        got = sent = 0
        for report in self._recent:
            for figures in report["steps"] if report["at_us"] >= horizon_us else ():
                if figures["step"] != step:
                    continue
                got, sent = got + figures["in"], sent + figures["out"]
                if (sample := figures["latency_ms"]) is not None:
                    latency.add(sample["values"], sample["n"] / len(sample["values"]))
        span_s = min(over_s, max(self.seconds, 1.0))
        p50, p99 = latency.quantile_ms(0.5), latency.quantile_ms(0.99)
        return Recent(got / span_s, sent / span_s, latency.mean_ms, p50, p99)

    def end_to_end(self) -> Histogram:
        """The latencies of the run at its last steps: from when a record was due or read until it was processed."""
        steps = self.handle.plan.layout.stage_of
        timed = [name for name in self.latency if name in steps]
        last = max((steps[name] for name in timed), default=0)
        whole = Histogram()
        for name in timed:
            if steps[name] == last:
                whole.merge(self.latency[name])
        return whole


def follow(watch: Watch, wish: StopWish, show: Callable[[list[str]], None]) -> None:
    """Stay with a run until its end, or until a stop is wished for; raises what the run failed with."""
    handle, stopping = watch.handle, False
    while not handle.wait(_LOOK_S):
        show(watch.look())
        if wish.wanted and not stopping:
            stopping = True
            # stop() waits for the end of the epoch; the display goes on meanwhile.
            threading.Thread(target=handle.stop, name="headrace-stop", daemon=True).start()
    show(watch.look())


def run_figures(watch: Watch, resources: TreeWatch) -> dict[str, Any]:
    """The figures of a finished run under their fixed names; what was not measured is None."""
    status, latency = watch.handle.status(), watch.end_to_end()
    counted = status.counters
    items = sum(counted.get(f"in:{name}", 0) for name in watch.sources)
    seconds = watch.handle.busy_s or watch.seconds
    gaps_s = watch.handle.gaps_s
    return {
        "items": items,
        "items_per_s": items / seconds if seconds else None,
        "p50_ms": latency.quantile_ms(0.5),
        "p99_ms": latency.quantile_ms(0.99),
        "p999_ms": latency.quantile_ms(0.999),
        "max_ms": latency.max_ms,
        "lost": None,
        "duplicated": None,
        "wrong": None,
        "seconds": seconds,
        "cpu_s": resources.cpu_s,
        "peak_rss_mb": resources.peak_rss_mb,
        "load_1m": resources.load_1m,
        "epochs": status.committed_epochs,
        "longest_gap_ms": 1000 * max(gaps_s) if gaps_s else None,
        "restarts": status.restarts,
        "late": sum(count for name, count in counted.items() if name.startswith("late:")),
        "shed": sum(count for name, count in counted.items() if name.startswith("shed:")),
        "skipped": sum(count for name, count in counted.items() if name.startswith("skipped:")),
        "counters": counted,
    }
