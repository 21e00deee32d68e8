"""What a sort-merge MapReduce job costs per node: bytes, requests, and a time that ranks settings.

Li 2015, section 3.3.1, propositions 3.3.1 and 3.3.2 and equation 3.4. Assumes no combiner, even
reducers, and map output fetched from memory. The time ranks settings; it predicts no run time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headrace.errors import ConfigError
from headrace.model.mergetree import check_factor, written_bytes

WrittenBytes = Callable[[float, float, int], float]
"""λ: runs, bytes of a run, merge factor → bytes written; the closed form or the simulated tree."""

_MAP_BUFFER_SHARE = 2 / 3
"""Of a map task's memory; the rest is metadata (section 3.3.2.1)."""


@dataclass(frozen=True, slots=True)
class MergeWorkload:
    """D, K_m and K_r: input bytes, and output bytes per input byte of map and of reduce."""

    input_bytes: float
    map_ratio: float = 1.0
    reduce_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class MergeHardware:
    """N, B_m and B_r: nodes, and the buffer of a map and of a reduce task."""

    nodes: int
    map_buffer_bytes: float
    reduce_buffer_bytes: float


@dataclass(frozen=True, slots=True)
class MergeSettings:
    """C, F and R: map chunk, merge factor, reducers per node."""

    chunk_bytes: float
    merge_factor: int
    reducers: int


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds per byte in sequence, per request, and per start of a map task; the thesis's by default."""

    byte_s: float = 1 / 80e6
    seek_s: float = 0.004
    start_s: float = 0.1

    def time_s(self, moved_bytes: float, requests: float, starts: float) -> float:
        """T of equation 3.4."""
        return self.byte_s * moved_bytes + self.seek_s * requests + self.start_s * starts


@dataclass(frozen=True, slots=True)
class MergeCost:
    """U, S and T of one node."""

    moved_bytes: float
    requests: float
    time_s: float


@dataclass(frozen=True, slots=True)
class MergeChoice:
    """The cheapest settings of a grid, and what they are expected to cost."""

    settings: MergeSettings
    expected: MergeCost


def merge_cost(
    workload: MergeWorkload,
    hardware: MergeHardware,
    settings: MergeSettings,
    *,
    prices: Prices | None = None,
    written: WrittenBytes = written_bytes,
) -> MergeCost:
    """U, S and T of a job; ``written`` is λ in closed form unless given."""
    _check(workload, hardware, settings)
    moved = _moved_bytes(workload, hardware, settings, written)
    requests = _requests(workload, hardware, settings, written)
    starts = workload.input_bytes / (settings.chunk_bytes * hardware.nodes)
    return MergeCost(moved, requests, (prices or Prices()).time_s(moved, requests, starts))


def choose(
    workload: MergeWorkload,
    hardware: MergeHardware,
    grid: Iterable[MergeSettings],
    *,
    prices: Prices | None = None,
    written: WrittenBytes = written_bytes,
) -> MergeChoice:
    """The settings of ``grid`` with the least T; the first of equals."""
    costs = [(s, merge_cost(workload, hardware, s, prices=prices, written=written)) for s in grid]
    if not costs:
        raise ConfigError("there is nothing to choose from: the grid of settings is empty")
    return MergeChoice(*min(costs, key=lambda pair: pair[1].time_s))


def settings_by_rule(workload: MergeWorkload, hardware: MergeHardware, reduce_slots: int) -> MergeSettings:
    """Section 3.3.2.1: the largest chunk whose output fits its buffer, one-pass merge, one wave of reducers."""
    _, runs = _runs(workload, hardware, MergeSettings(1, 2, reduce_slots))
    chunk_bytes = hardware.map_buffer_bytes / workload.map_ratio
    return MergeSettings(chunk_bytes, max(2, math.ceil(runs)), reduce_slots)


def map_buffer_bytes(map_memory_bytes: float) -> float:
    """B_m of a map task with this much memory."""
    return map_memory_bytes * _MAP_BUFFER_SHARE


def _runs(workload: MergeWorkload, hardware: MergeHardware, settings: MergeSettings) -> tuple[float, float]:
    """α and β: initial runs of a map task and of a reduce task."""
    alpha = settings.chunk_bytes * workload.map_ratio / hardware.map_buffer_bytes
    shuffled = workload.input_bytes * workload.map_ratio / (hardware.nodes * settings.reducers)
    return alpha, shuffled / hardware.reduce_buffer_bytes


def _moved_bytes(
    workload: MergeWorkload, hardware: MergeHardware, settings: MergeSettings, written: WrittenBytes
) -> float:
    """U of equation 3.1."""
    alpha, beta = _runs(workload, hardware, settings)
    ratio, factor = workload.map_ratio, settings.merge_factor
    per_node = workload.input_bytes / hardware.nodes
    moved = per_node * (1 + ratio + ratio * workload.reduce_ratio)
    if alpha > 1:
        moved += 2 * per_node / settings.chunk_bytes * written(alpha, hardware.map_buffer_bytes, factor)
    return moved + 2 * settings.reducers * written(beta, hardware.reduce_buffer_bytes, factor)


def _requests(
    workload: MergeWorkload, hardware: MergeHardware, settings: MergeSettings, written: WrittenBytes
) -> float:
    """S of proposition 3.3.2."""
    alpha, beta = _runs(workload, hardware, settings)
    factor = settings.merge_factor
    root = math.sqrt(factor)
    per_map = alpha + 1
    if alpha > 1:
        per_map += written(alpha, 1.0, factor) * (root + 1) ** 2 + alpha - 1
    per_reduce = beta * workload.reduce_ratio * (root + 1) - beta * root + written(beta, 1.0, factor) * (root + 1) ** 2
    maps = workload.input_bytes / (settings.chunk_bytes * hardware.nodes)
    return maps * per_map + settings.reducers * per_reduce


def _check(workload: MergeWorkload, hardware: MergeHardware, settings: MergeSettings) -> None:
    check_factor(settings.merge_factor)
    positive = (
        workload.input_bytes, workload.map_ratio, hardware.nodes, hardware.map_buffer_bytes,
        hardware.reduce_buffer_bytes, settings.chunk_bytes, settings.reducers,
    )  # fmt: skip
    if not all(value > 0 for value in positive) or workload.reduce_ratio < 0:
        raise ConfigError(f"sizes and counts must be above zero: {workload}, {hardware}, {settings}")
