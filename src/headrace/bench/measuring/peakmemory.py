"""Peak memory of processes as Linux counts it (``VmHWM``); None elsewhere."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import psutil
import pyarrow as pa

_OWN = Path("/proc/self")


def peak_rss_mb(*names: str) -> float | None:
    """Of the processes below this one: the largest peak among those of each name, summed over the names."""
    peaks = [max((_peak_mb(Path(f"/proc/{pid}")) for pid in _named(name)), default=0.0) for name in names if name]
    return round(sum(peaks), 1) if any(peaks) else None


def forget_peak() -> float | None:
    """Start this process's peak anew, from what is in use now; returns where it starts, in MB."""
    if not _OWN.is_dir():
        return None
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)  # else what was freed before would hide as much of what comes
    (_OWN / "clear_refs").write_text("5")
    return _peak_mb(_OWN)


def own_peak_mb() -> float | None:
    """This process's peak since ``forget_peak``, or since it started."""
    return _peak_mb(_OWN) if _OWN.is_dir() else None


def _named(name: str) -> list[int]:
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.name().startswith(name):
                found.append(process.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def _peak_mb(process: Path) -> float:
    try:
        lines = (process / "status").read_text().splitlines()
    except OSError:  # it has ended, or this is not Linux
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM:")), 0.0)
