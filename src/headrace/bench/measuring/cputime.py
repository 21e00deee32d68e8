"""What a run takes: wall time, and CPU time of its processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds of wall time, of CPU time, and of CPU time in our Python workers alone."""

    seconds: float
    cpu_s: float
    worker_s: float | None = None


def driver_cpu_s() -> float:
    """User and system seconds of this process and the JVM that it started."""
    root = psutil.Process()
    times = [process.cpu_times() for process in (root, *root.children())]
    return sum(time.user + time.system for time in times)


def worker_cpu_s(used: Iterable[tuple[int, float]]) -> float:
    """The same of a run's Python workers, from what each process had used at its last report.

    They end with the run: Spark's daemon leaves nobody to ask afterwards.
    """
    return sum(dict(used).values())
