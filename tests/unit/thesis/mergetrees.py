"""The exact tree of a multi-pass merge, which ``model.mergecost`` approximates, and the settings chosen by cost.

Runs come to disk one by one. Each time 2F−1 of them lie there, the F smallest are merged into one;
what remains at the end, fewer than 2F−1 runs, is merged once more and streamed on without being
written (Li 2015, section 3.3.1.1).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.errors import ConfigError
from headrace.model.mergecost import (
    MergeCost,
    MergeHardware,
    MergeSettings,
    MergeWorkload,
    Prices,
    WrittenBytes,
    check_factor,
    merge_cost,
    runs_of,
    written_bytes,
)

_MAP_BUFFER_SHARE = 2 / 3
"""Of a map task's memory; the rest is metadata (section 3.3.2.1)."""


@dataclass(frozen=True, slots=True)
class MergeTree:
    """A finished merge: every file written, and the runs left for the last, streamed merge."""

    written_bytes: float
    merges: int
    last_runs_bytes: tuple[float, ...]


def merge_tree(runs_bytes: Sequence[float], factor: int) -> MergeTree:
    """Play the 2F−1 rule for runs of these sizes, in their order; of equal runs the oldest goes first."""
    check_factor(factor)
    on_disk: list[tuple[float, int]] = []
    written, merges = 0.0, 0
    for order, size in enumerate(runs_bytes):
        heapq.heappush(on_disk, (size, order))
        written += size
        if len(on_disk) == 2 * factor - 1:
            merged = sum(heapq.heappop(on_disk)[0] for _ in range(factor))
            # A merged run gets the place of a late arrival, so equal initial runs are taken before it.
            heapq.heappush(on_disk, (merged, len(runs_bytes) + merges))
            written += merged
            merges += 1
    return MergeTree(written, merges, tuple(sorted(size for size, _ in on_disk)))


def simulated_bytes(runs: float, run_bytes: float, factor: int) -> float:
    """What ``written_bytes`` approximates; a fraction of a run is a last, smaller run."""
    whole = math.floor(runs)
    sizes = [run_bytes] * whole
    if runs > whole:
        sizes.append((runs - whole) * run_bytes)
    return merge_tree(sizes, factor).written_bytes


@dataclass(frozen=True, slots=True)
class MergeChoice:
    """The cheapest settings of a grid, and what they are expected to cost."""

    settings: MergeSettings
    expected: MergeCost


def choose(
    workload: MergeWorkload,
    hardware: MergeHardware,
    grid: Iterable[MergeSettings],
    *,
    prices: Prices | None = None,
    written: WrittenBytes = written_bytes,
) -> MergeChoice:
    """The settings of ``grid`` with the lowest T; the first of equals."""
    costs = [(s, merge_cost(workload, hardware, s, prices=prices, written=written)) for s in grid]
    if not costs:
        raise ConfigError("there is nothing to choose from: the grid of settings is empty")
    return MergeChoice(*min(costs, key=lambda pair: pair[1].time_s))


def settings_by_rule(workload: MergeWorkload, hardware: MergeHardware, reduce_slots: int) -> MergeSettings:
    """Section 3.3.2.1: the largest split whose output fits its buffer, one-pass merge, one wave of reducers."""
    _, runs = runs_of(workload, hardware, MergeSettings(1, 2, reduce_slots))
    split_bytes = hardware.map_buffer_bytes / workload.map_ratio
    return MergeSettings(split_bytes, max(2, math.ceil(runs)), reduce_slots)


def map_buffer_bytes(map_memory_bytes: float) -> float:
    """B_m of a map task with this much memory."""
    return map_memory_bytes * _MAP_BUFFER_SHARE
