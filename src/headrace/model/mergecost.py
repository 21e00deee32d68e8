"""What a sort-merge MapReduce job costs per node: bytes, requests, and a time that ranks settings.

Li 2015, section 3.3.1, propositions 3.3.1 and 3.3.2 and equation 3.4. Assumes no combiner, even
reducers, and map output fetched from memory. The time ranks settings; it predicts no run time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from headrace.errors import ConfigError

WrittenBytes = Callable[[float, float, int], float]
"""λ: runs, bytes of a run, merge factor → bytes written; in closed form unless given."""


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
    """C, F and R: map split, merge factor, reducers per node."""

    split_bytes: float
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


def check_factor(factor: int) -> None:
    """A merge of fewer than two runs makes no progress."""
    if factor < 2:
        raise ConfigError(f"a merge factor is 2 or more, not {factor}")


def written_bytes(runs: float, run_bytes: float, factor: int) -> float:
    """λ_F(n, b): bytes of all files written for ``runs`` initial runs, in closed form (equation 3.2).

    Runs come to disk one by one. Each time 2F−1 of them lie there, the F smallest are merged into one; what remains
    at the end, fewer than 2F−1 runs, is merged once more and streamed on without being written (section 3.3.1.1).

    Exact for n < 2F−1, where no merge is written and the equation, made for full trees, would turn
    too small and even negative; exact at n = F². In between off by 2 % on average for F up to 10 and by
    at most 20 % up to 32, mostly too small.

    >>> written_bytes(2, 1.0, 2), written_bytes(4, 1.0, 2), written_bytes(1, 1.0, 10)
    (2.0, 8.0, 1.0)
    """
    check_factor(factor)
    if runs < 2 * factor - 1:
        return runs * run_bytes
    return (runs**2 / (2 * factor * (factor - 1)) + 1.5 * runs - factor**2 / (2 * (factor - 1))) * run_bytes


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
    starts = workload.input_bytes / (settings.split_bytes * hardware.nodes)
    return MergeCost(moved, requests, (prices or Prices()).time_s(moved, requests, starts))


def runs_of(workload: MergeWorkload, hardware: MergeHardware, settings: MergeSettings) -> tuple[float, float]:
    """α and β: initial runs of a map task and of a reduce task."""
    alpha = settings.split_bytes * workload.map_ratio / hardware.map_buffer_bytes
    shuffled = workload.input_bytes * workload.map_ratio / (hardware.nodes * settings.reducers)
    return alpha, shuffled / hardware.reduce_buffer_bytes


def _moved_bytes(
    workload: MergeWorkload, hardware: MergeHardware, settings: MergeSettings, written: WrittenBytes
) -> float:
    """U of equation 3.1."""
    alpha, beta = runs_of(workload, hardware, settings)
    ratio, factor = workload.map_ratio, settings.merge_factor
    per_node = workload.input_bytes / hardware.nodes
    moved = per_node * (1 + ratio + ratio * workload.reduce_ratio)
    if alpha > 1:
        moved += 2 * per_node / settings.split_bytes * written(alpha, hardware.map_buffer_bytes, factor)
    return moved + 2 * settings.reducers * written(beta, hardware.reduce_buffer_bytes, factor)


def _requests(
    workload: MergeWorkload, hardware: MergeHardware, settings: MergeSettings, written: WrittenBytes
) -> float:
    """S of proposition 3.3.2."""
    alpha, beta = runs_of(workload, hardware, settings)
    factor = settings.merge_factor
    root = math.sqrt(factor)
    per_map = alpha + 1
    if alpha > 1:
        per_map += written(alpha, 1.0, factor) * (root + 1) ** 2 + alpha - 1
    per_reduce = beta * workload.reduce_ratio * (root + 1) - beta * root + written(beta, 1.0, factor) * (root + 1) ** 2
    maps = workload.input_bytes / (settings.split_bytes * hardware.nodes)
    return maps * per_map + settings.reducers * per_reduce


def _check(workload: MergeWorkload, hardware: MergeHardware, settings: MergeSettings) -> None:
    check_factor(settings.merge_factor)
    positive = (
        workload.input_bytes, workload.map_ratio, hardware.nodes, hardware.map_buffer_bytes,
        hardware.reduce_buffer_bytes, settings.split_bytes, settings.reducers,
    )  # fmt: skip
    if not all(value > 0 for value in positive) or workload.reduce_ratio < 0:
        raise ConfigError(f"sizes and counts must be above zero: {workload}, {hardware}, {settings}")
