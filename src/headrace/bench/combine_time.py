"""What a run takes: wall time, and CPU time of its processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

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


def worker_cpu_s(reports: Iterable[Mapping[str, Any]]) -> float:
    """The same of a run's Python workers, which end with it: Spark's daemon leaves nobody to ask afterwards."""
    return sum({report["pid"]: float(report["cpu_s"]) for report in reports}.values())
