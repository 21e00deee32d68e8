"""Figures with fixed names, and the watch over a process tree that gives some of them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import psutil

if TYPE_CHECKING:
    from headrace.spark.handle import Run

Values = npt.NDArray[np.float64]
_SAMPLE_S = 0.5


@dataclass(slots=True)
class TreeWatch:
    """CPU seconds and peak memory of this process and everything below it, as a context manager."""

    cpu_s: float = 0.0
    peak_rss_mb: float = 0.0
    seconds: float = 0.0
    load_1m: float = 0.0
    _by_pid: dict[int, float] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _began: float = 0.0

    def __enter__(self) -> TreeWatch:
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.seconds = time.monotonic() - self._began
        self.load_1m = os.getloadavg()[0]

    def _watch(self) -> None:
        root = psutil.Process()
        first: dict[int, float] = {}
        while True:
            rss, at_start = 0, not self._by_pid
            for process in [root, *root.children(recursive=True)]:
                try:
                    times = process.cpu_times()
                    used = times.user + times.system
                    rss += process.memory_info().rss
                except psutil.Error:
                    continue
                first.setdefault(process.pid, used if at_start else 0.0)  # what it used before does not count
                self._by_pid[process.pid] = used - first[process.pid]
            self.peak_rss_mb = max(self.peak_rss_mb, rss / 1e6)
            self.cpu_s = sum(self._by_pid.values())
            if self._stop.wait(_SAMPLE_S):
                return

    def figures(self) -> dict[str, float]:
        return {
            "seconds": round(self.seconds, 2),
            "cpu_s": round(self.cpu_s, 1),
            "peak_rss_mb": round(self.peak_rss_mb, 1),
            "load_1m": round(self.load_1m, 2),
        }


def latency_figures(latency_ms: Values, weights: Values | None = None) -> dict[str, float]:
    """Quantiles over items; ``weights`` is how many items each value stands for."""
    if not len(latency_ms):
        return {"p50_ms": float("nan"), "p99_ms": float("nan"), "p999_ms": float("nan"), "max_ms": float("nan")}
    order = np.argsort(latency_ms)
    values = latency_ms[order]
    heavy = np.cumsum(weights[order] if weights is not None else np.ones(len(values)))
    at = [int(np.searchsorted(heavy, q * heavy[-1])) for q in (0.5, 0.99, 0.999)]
    p50, p99, p999 = (float(values[min(i, len(values) - 1)]) for i in at)
    return {
        "p50_ms": round(p50, 2),
        "p99_ms": round(p99, 2),
        "p999_ms": round(p999, 2),
        "max_ms": round(float(values[-1]), 2),
    }


def longest_gap_ms(times_us: npt.NDArray[np.int64]) -> float:
    """The longest silence between two results."""
    return round(float(np.diff(np.sort(times_us)).max()) / 1000, 2) if len(times_us) > 1 else float("nan")


def cut_figures(run: Run) -> dict[str, float | None]:
    """How often results became final (``epochs`` is the key that peers have too, whose batches do that), and the median
    cut: from its order to the log, and how long it held records up where that was longest.
    """
    cuts, made = run.cuts(), run.status().cuts
    return {
        "epochs": made,
        "cuts": made,
        "cut_ms": rounded_median([cut.took_ms for cut in cuts]),
        "aligned_ms": rounded_median([cut.aligned_ms for cut in cuts]),
    }


def rounded_median(values: Sequence[float]) -> float | None:
    """To two digits; None if there are no values."""
    return round(float(np.median(values)), 2) if len(values) else None


def with_prefix(prefix: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """A peer's figures, with its name in front."""
    return {f"{prefix}_{name}": value for name, value in figures.items()}


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over repeated runs, with the range of each number."""
    if len(runs) == 1:
        return runs[0]
    combined: dict[str, Any] = {}
    for name in runs[0]:
        values = [run[name] for run in runs if name in run]
        if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
            combined[name] = float(np.median(values))
            combined[f"{name}_min"], combined[f"{name}_max"] = min(values), max(values)
        else:
            combined[name] = values[-1]
    for name in ("lost", "duplicated", "wrong", "orders_failed"):
        if name in combined:
            combined[name] = sum(run[name] for run in runs)
    return combined
