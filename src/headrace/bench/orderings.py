"""What the thesis's experiments say about who is better (SCALLA 4), each as a figure that can fail.

Sort-merge is compared where the thesis's claim is about the engine: much more data than memory, few enough keys
that hashing has their states in memory (its user click count). With far more states than memory our sort-merge,
which combines whole buffers and sorts by numpy, need not be the slowest: see ``settings``.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.bench.engines import grouped, memory_of
from headrace.bench.workloads import I64, zipf_keys

SESSION_RATIO = 100
"""INC's spill over DINC's with expiring sessions of 2 KB; the thesis has 203 GB over 0.1 GB."""
_ITEMS_PER_KEY, _SKEW = 100, 0.8
_HASHING = ("inc", "dinc")


def user_count(items: int, progress: Callable[[str], None], batches_of: Callable[[I64], Any]) -> dict[str, float]:
    """Seconds to count clicks per user, a hundred each, with memory for all users but a fraction of the clicks."""
    users = max(items // _ITEMS_PER_KEY, 100)
    batches = batches_of(zipf_keys(items, users, _SKEW, seed=6))
    memory_bytes = 2 * memory_of(batches[0].schema, users)  # counting policies need more per user
    figures = {}
    for engine in (*_HASHING, "mr", "sort-merge"):
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
            began = time.perf_counter()
            grouped(engine, batches, memory_bytes, Path(directory))
            seconds = time.perf_counter() - began
        figures[f"user_count_{engine.replace('-', '_')}_s"] = round(seconds, 3)
        progress(f"user click count      {engine:18}{seconds:7.2f} s")
    return figures


def failed_orders(figures: dict[str, Any]) -> list[str]:
    """Sentences about what is not as it should be; nothing is said about figures that are not there."""
    failed = []
    ratio, over_mb = figures.get("session_spill_ratio"), figures.get("rss_over_bound_mb")
    if ratio is not None and ratio < SESSION_RATIO:
        failed.append(f"sessions: INC spilled {ratio} times as much as DINC, not {SESSION_RATIO} times")
    if over_mb is not None and over_mb > 0:
        failed.append(f"an engine's process grew by {over_mb} MB more than its bound")
    for setting in figures.get("settings", []):
        if setting["engine"] == "inc" and setting["memory_share"] > 1 and setting["spill_bytes"]:
            failed.append(f"INC spilled {setting['spill_bytes']} bytes of {setting['workload']}, which fit in memory")
    slowest_s = figures.get("user_count_sort_merge_s")
    for engine in _HASHING:
        seconds = figures.get(f"user_count_{engine}_s")
        if slowest_s is not None and seconds is not None and seconds >= slowest_s:
            failed.append(f"{engine} took {seconds} s where sort-merge took {slowest_s} s")
    return failed
