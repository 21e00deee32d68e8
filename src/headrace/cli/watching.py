"""Follow a run: rates and latencies per step, from the reports its workers send."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any

from headrace.connect.source import Countable
from headrace.graph.nodes import SinkNode, SourceNode
from headrace.measure.sketches import Latencies, merged
from headrace.signals import StopWish

if TYPE_CHECKING:
    from headrace.bench.measuring.figures import TreeWatch
    from headrace.driver.status import Status
    from headrace.runtime.messages import Reported
    from headrace.spark.handle import Run

_NOT_SHOWN = frozenset({"failed", "batch", "resize", "hold", "outcome"})
"""A failure is told separately; the others come every second. The last of them are in ``handle.decisions()``."""
_LOOK_S = 0.25
_NOW_S = 5.0
"""What rates and latencies "now" are taken over: short enough to follow a burst, five reports long."""
_REMEMBERED_S = 30.0


@dataclass(frozen=True, slots=True)
class RecentFlows:
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
        self.latency: dict[str, Latencies] = {}
        self.items: dict[str, int] = {}
        self._recent: deque[Reported] = deque()
        self._seen_us: dict[tuple[int, int, int], int] = {}
        self._told = 0

    def look(self) -> list[str]:
        """Take in new reports; returns what has happened since, in words."""
        if self.began_s is None and self.handle.status().state == "running":
            self.began_s = time.monotonic()
        for heard in self.handle.reports():
            worker = (heard.stage, heard.index, heard.pid)
            if heard.at_us > self._seen_us.get(worker, 0):
                self._seen_us[worker] = heard.at_us
                self._take(heard)
        horizon_us = time.time_ns() // 1000 - _REMEMBERED_S * 1e6
        while self._recent and self._recent[0].at_us < horizon_us:
            self._recent.popleft()
        return self._news()

    def _news(self) -> list[str]:
        news = [event for event in self.handle.decisions() if event.number >= self._told]
        if not news:
            return []
        missed, self._told = news[0].number - self._told, news[-1].number + 1
        told = [str(event) for event in news if event.what not in _NOT_SHOWN]
        return [f"{missed} events were dropped; they are in the log", *told] if missed else told

    def _take(self, heard: Reported) -> None:
        self._recent.append(heard)
        for flow in heard.flows:
            self.items[flow.step] = self.items.get(flow.step, 0) + flow.items_in
            if flow.latency is not None:
                before = self.latency.get(flow.step)
                self.latency[flow.step] = flow.latency if before is None else before + flow.latency

    @property
    def seconds(self) -> float:
        """How long records have been flowing."""
        return time.monotonic() - self.began_s if self.began_s is not None else 0.0

    @property
    def sources(self) -> list[str]:
        return [node.name for node in self.handle.plan.graph.nodes if isinstance(node, SourceNode)]

    @property
    def sinks(self) -> list[str]:
        return [node.name for node in self.handle.plan.graph.nodes if isinstance(node, SinkNode)]

    @property
    def read(self) -> int:
        """Records read so far, as far as reported."""
        return sum(self.items.get(name, 0) for name in self.sources)

    @cached_property
    def expected(self) -> int | None:
        """About how many records the input has; None if a source does not know, or has no end."""
        sources = [node.source for node in self.handle.plan.graph.nodes if isinstance(node, SourceNode)]
        known = [source.expected_rows() if isinstance(source, Countable) else None for source in sources]
        return None if None in known else sum(rows for rows in known if rows is not None)

    def left(self, status: Status) -> tuple[float, float] | None:
        """The share of the input that was read, and the seconds that the rest will take at the pace so far.

        Unknown where the input has no known end, and of a run that goes on from a cut: what was read before is not known.
        """
        if not self.expected or status.loaded or not self.read or not self.seconds:
            return None
        share = min(self.read / self.expected, 1.0)
        return share, self.seconds * (1 / share - 1)

    def recent(self, step: str, over_s: float = _NOW_S) -> RecentFlows:
        """A step's rates and latencies of the last ``over_s`` seconds."""
        horizon_us = time.time_ns() // 1000 - over_s * 1e6
        flows = [f for heard in self._recent if heard.at_us >= horizon_us for f in heard.flows if f.step == step]
        span_s = min(over_s, max(self.seconds, 1.0))
        got, sent = sum(f.items_in for f in flows) / span_s, sum(f.items_out for f in flows) / span_s
        known = [f.latency for f in flows if f.latency is not None]
        if not known:
            return RecentFlows(got, sent, None, None, None)
        latency = merged(known)
        return RecentFlows(got, sent, latency.mean_ms, latency.quantile_ms(0.5), latency.quantile_ms(0.99))

    def end_to_end(self) -> Latencies | None:
        """The latencies of the run: from when a record was due or read until its result was handed to a sink."""
        known = [self.latency[name] for name in self.sinks if name in self.latency]
        return merged(known) if known else None


def follow(watch: Watch, wish: StopWish, show: Callable[[list[str]], None]) -> None:
    """Stay with a run until its end, or until a stop is asked for; raises what the run failed with."""
    handle, stopping = watch.handle, False
    while not handle.wait(_LOOK_S):
        show(watch.look())
        if wish.wanted and not stopping:
            stopping = True
            # stop() waits for the last cut; the display goes on meanwhile.
            threading.Thread(target=handle.stop, name="headrace-stop", daemon=True).start()
    show(watch.look())


def not_in_results(counters: Mapping[str, int]) -> dict[str, int]:
    """Records of all steps that are in no result, by why."""
    whys = ("late", "shed", "skipped")
    return {why: sum(n for name, n in counters.items() if name.startswith(f"{why}:")) for why in whys}


def cut_words(status: Status) -> str:
    """How far a run has got for good: the last cut, how long ago that was, and what still waits for its sinks."""
    if status.cut is None or status.cut_age_s is None:
        return "no cut yet"
    words = f"cut {status.cut.number}, {status.cut_age_s:.1f} s ago"
    # One is always on its way for a moment; more mean that a sink does not keep up.
    return f"{words}, {status.unpublished} unpublished" if status.unpublished > 1 else words


def run_figures(watch: Watch, resources: TreeWatch) -> dict[str, Any]:
    """The figures of a finished run under their fixed names; what was not measured is None."""
    status, latency = watch.handle.status(), watch.end_to_end()
    counted = status.counters
    items = sum(counted.get(f"in:{name}", 0) for name in watch.sources)
    seconds = watch.handle.busy_s or watch.seconds
    gaps, cuts = watch.handle.gaps, watch.handle.cuts()
    return {
        "items": items,
        "items_per_s": items / seconds if seconds else None,
        "p50_ms": None if latency is None else latency.quantile_ms(0.5),
        "p99_ms": None if latency is None else latency.quantile_ms(0.99),
        "p999_ms": None if latency is None else latency.quantile_ms(0.999),
        "max_ms": None if latency is None else latency.max_ms,
        "lost": None,
        "duplicated": None,
        "wrong": None,
        "seconds": seconds,
        "cpu_s": resources.cpu_s,
        "peak_rss_mb": resources.peak_rss_mb,
        "load_1m": resources.load_1m,
        "epochs": status.cuts,
        "cuts": status.cuts,
        "cut_ms": median(cut.took_ms for cut in cuts) if cuts else None,
        "cut_max_ms": max((cut.took_ms for cut in cuts), default=None),
        "cut_held_max_ms": max((cut.aligned_ms for cut in cuts), default=None),
        "cut_bytes": sum(cut.bytes for cut in cuts),
        "cut_age_s": status.cut_age_s,
        "longest_gap_ms": None,
        "longest_stop_ms": 1000 * max(gap.seconds for gap in gaps) if gaps else None,
        "restarts": status.restarts,
        "recovery_s": watch.handle.recovery_s,
        "recovery_wanted_s": watch.handle.plan.settings.recovery_s,
        **not_in_results(counted),
        "counters": counted,
    }
