"""``bench topk`` and ``bench similarity``: ChronoStream's workloads with state of growing size (its Figs. 12 and 13).

Of top words a document costs the same whatever the size of the window: the rate should hold. A message is compared with
its whole window: its time should grow in proportion. Each size is a run of its own, with its answers checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import headrace as hr
from headrace.bench.elasticity import similarpairs, topwords
from headrace.bench.elasticity.filling import Phases
from headrace.bench.measuring.figures import TreeWatch, cut_figures, latency_figures, longest_gap_ms
from headrace.bench.measuring.recorder import Table, recording

Tell = Callable[[str], None]
_DOUBLINGS = 3
"""From the smallest size to the largest, as in the paper."""
_WARM_S = 2
"""The first paced seconds do not count."""


@dataclass(frozen=True, slots=True)
class StateWork:
    """A workload: its load for a size of state, its job, its check, and in which second of event time a result is due."""

    load: Callable[[int, int, int, int], Any]
    job: Callable[[Any, Any], hr.Job]
    check: Callable[[Any, Table], dict[str, int]]
    columns: tuple[str, ...]
    second: Callable[[Phases, Table], npt.NDArray[np.int64]]


def _second_of_number(phases: Phases, table: Table) -> npt.NDArray[np.int64]:
    return phases.event_us(table["number"]) // 1_000_000


TOP_WORDS = StateWork(
    topwords.TopWordsLoad.of, topwords.top_words_job, topwords.check_tops, topwords.COLUMNS, _second_of_number
)
SIMILARITY = StateWork(
    similarpairs.SimilarityLoad.of,
    similarpairs.similarity_job,
    similarpairs.check_pairs,
    similarpairs.COLUMNS,
    lambda phases, table: table["second"],
)


def topk(state_bytes: int, rate: int, seconds: int, burst: int, tell: Tell, **settings: Any) -> dict[str, Any]:
    """Documents ``rate`` per second for so many seconds, then a burst of them, at each size of state."""
    return _curve(TOP_WORDS, state_bytes, rate, seconds, burst, tell, settings)


def similarity(state_bytes: int, rate: int, seconds: int, burst: int, tell: Tell, **settings: Any) -> dict[str, Any]:
    """The same of messages; the rate is low, since a message takes milliseconds where there is much state."""
    return _curve(SIMILARITY, state_bytes, rate, seconds, burst, tell, settings)


def _curve(
    work: StateWork, largest: int, rate: int, seconds: int, burst: int, tell: Tell, settings: dict[str, Any]
) -> dict[str, Any]:
    points = []
    for halved in range(_DOUBLINGS, -1, -1):
        load = work.load(largest >> halved, rate * seconds, burst, rate)
        points.append({"state_mb": round((largest >> halved) / 1e6, 1), **_point(work, load, settings)})
        shown = (
            "items_per_s",
            "us_per_item",
            "cpu_us_per_item",
            "p50_ms",
            "p99_ms",
            "written_mb",
            "peak_rss_mb",
            "wrong",
            "lost",
        )
        tell(f"{points[-1]['state_mb']:8,} MB: " + ", ".join(f"{name} {points[-1][name]}" for name in shown))
    return curve_figures(points)


def curve_figures(points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The largest state's figures under the usual names; how rate and time per record change with the size of the state."""
    smallest, largest = points[0], points[-1]
    state_mb, us = (np.array([point[name] for point in points]) for name in ("state_mb", "cpu_us_per_item"))
    slope, start = np.polyfit(state_mb, us, 1)
    spread = float(((us - us.mean()) ** 2).sum())
    unexplained = float(((us - slope * state_mb - start) ** 2).sum())
    return {
        **largest,
        **{name: sum(point[name] for point in points) for name in ("lost", "duplicated", "wrong")},
        "rate_ratio_largest_to_smallest": round(largest["items_per_s"] / smallest["items_per_s"], 3),
        "cpu_ratio_largest_to_smallest": round(largest["cpu_us_per_item"] / smallest["cpu_us_per_item"], 3),
        "state_ratio_largest_to_smallest": round(largest["state_mb"] / smallest["state_mb"], 1),
        "slope_us_per_mb": round(float(slope), 4),
        "intercept_us": round(float(start), 2),
        "fit_r2": round(1 - unexplained / spread, 4) if spread else None,
        "settings": list(points),
    }


def _point(work: StateWork, load: Any, settings: dict[str, Any]) -> dict[str, Any]:
    with recording(work.columns) as recorder:
        with TreeWatch() as watch:
            run = hr.run(work.job(load, hr.callback(recorder)), **{"report": "200 ms", **settings})
        table = recorder.read()
    second = work.second(load.phases, table)
    figures = load_figures(load.phases, second, table)
    begun_us = int(table["due_us"][second >= load.phases.paced // load.phases.rate].min())
    cpu_s = used_since([(heard.pid, heard.at_us, heard.cpu_s) for heard in run.reports()], begun_us)
    return {
        **figures,
        "cpu_us_per_item": round(1e6 * cpu_s / load.phases.burst, 2),
        **watch.figures(),
        **cut_figures(run),
        "written_mb": round(sum(cut.bytes for cut in run.cuts()) / 1e6, 1),
        "restarts": run.status().restarts,
        **work.check(load, table),
    }


def used_since(heard: Sequence[tuple[int, int, float]], begun_us: int) -> float:
    """CPU seconds of some processes from a time on, by their reports, oldest first: ``(pid, at_us, cpu_s)``."""
    before = {pid: cpu_s for pid, at_us, cpu_s in heard if at_us <= begun_us}
    last = {pid: cpu_s for pid, _, cpu_s in heard}
    return sum(cpu_s - before.get(pid, 0.0) for pid, cpu_s in last.items())


def load_figures(phases: Phases, second: npt.NDArray[np.int64], table: Table) -> dict[str, Any]:
    """Latency of what was paced; the rate of the burst, from its beginning to its last result.

    Results of the last paced second may wait for the record after it, the first of the burst: they do not count.
    """
    now_us, due_us, paced_s = table["now_us"], table["due_us"], phases.paced // phases.rate
    paced, burst = (second >= _WARM_S) & (second < paced_s - 1), second >= paced_s
    if not burst.any():
        raise hr.HeadraceError("the burst gave no result: it needs more records (--events)")
    took_s = (int(now_us[burst].max()) - int(due_us[burst].min())) / 1e6
    return {
        "items": phases.burst + phases.paced,
        "items_per_s": round(phases.burst / took_s, 1),
        "us_per_item": round(1e6 * took_s / phases.burst, 2),
        **latency_figures((now_us[paced] - due_us[paced]) / 1000),
        "longest_gap_ms": longest_gap_ms(now_us[paced]),
    }
