"""The latency of a path by rate, subtasks and buffer deadline: what plans are made with."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from headrace.errors import UnstableError
from headrace.model.buffers import Buffering
from headrace.model.stagephases import StagePhases, path_of


@dataclass(frozen=True, slots=True)
class RuntimePlant:
    """Our runtime as one that can be planned: a setting is how many subtasks each stage has, the period the buffer deadline.

    ``bounded`` False plans with estimates instead of bounds: more rate, less certainty. ``first`` is the stage with
    whose service the path begins, None for one from a source.
    """

    stages: tuple[StagePhases, ...]
    quantile: float | None = None
    bounded: bool = True
    gap_s: float = 0.0
    epoch_s: float = 60.0
    max_bytes: float = 1_000_000
    min_period_s: float = 0.001
    max_period_s: float = 0.5
    first: int | None = None

    def latency_s(self, rate_per_s: float, setting: tuple[int, ...], period_s: float) -> float:
        buffering = Buffering(period_s, self.max_bytes)
        try:
            path = path_of(
                rate_per_s, self.stages, setting, buffering,
                gap_s=self.gap_s, epoch_s=self.epoch_s, bounded=self.bounded, first=self.first,
            )  # fmt: skip
            return path.spread.mean_s if self.quantile is None else path.quantile_s(self.quantile)
        except UnstableError:
            return inf
