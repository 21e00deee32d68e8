"""The two systems that can be planned: the thesis's and ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import inf
from typing import Literal

from headrace.errors import UnstableError
from headrace.model import stagephases as ours
from headrace.model import thesis
from headrace.model.buffers import Buffering
from headrace.model.quantiles import Spread, cantelli_quantile_s, normal_quantile_s, window_spread


@dataclass(frozen=True, slots=True)
class WindowModel:
    """Windows that one reducer closes at a time, and how long each takes to finalize."""

    per_reducer: int
    finalize_s: float


@dataclass(frozen=True, slots=True)
class ThesisPlant:
    """SCALLA's system: resources are nodes, a setting is mappers and reducers on each (section 2.12).

    ``quantile`` None means the mean. Departures: tasks never outnumber cores, and one period scales all
    three, in the ratio 1 : 20 : 20 of the thesis's defaults.
    """

    job: thesis.JobStatistics
    node: thesis.ThesisHardware
    quantile: float | None = None
    tail: Literal["normal", "cantelli"] = "normal"
    windows: WindowModel | None = None
    resource: str = "nodes"
    min_period_s: float = 0.005
    max_period_s: float = 2.0

    def settings(self, resources: int) -> Iterator[thesis.ThesisLayout]:
        for mappers in range(1, self.node.cores):
            for reducers in range(1, self.node.cores - mappers + 1):
                yield thesis.ThesisLayout(resources, mappers, reducers)

    def limit_per_s(self, setting: thesis.ThesisLayout) -> float:
        core = self.node.cycles_per_s / self.node.cores * setting.nodes
        updates = self.job.update_cycles * self.job.outputs_per_input
        return min(
            core * setting.mappers / self.job.map_cycles if self.job.map_cycles else inf,
            core * setting.reducers / updates if updates else inf,
            self.node.network_bytes_per_s / self.job.input_bytes if self.job.input_bytes else inf,
        )

    def latency_s(self, rate_per_s: float, setting: thesis.ThesisLayout, period_s: float) -> float:
        bounded = self.tail == "cantelli"
        try:
            latency = thesis.path_of(
                rate_per_s, self.job, self.node, setting, periods_of(period_s), bounded=bounded
            ).spread
        except UnstableError:
            return inf
        return self._metric_s(latency, setting)

    def _metric_s(self, latency: Spread, setting: thesis.ThesisLayout) -> float:
        if self.windows is not None:
            latency = window_spread(
                latency,
                mappers=setting.nodes * setting.mappers,
                windows=self.windows.per_reducer,
                finalize_s=self.windows.finalize_s,
            )
        if self.quantile is None:
            return latency.mean_s
        quantile_s = normal_quantile_s if self.tail == "normal" else cantelli_quantile_s
        return quantile_s(latency, self.quantile)


def periods_of(period_s: float) -> thesis.Periods:
    """The thesis's three periods from the shuffle period."""
    return thesis.Periods(period_s / 20, period_s, period_s)


@dataclass(frozen=True, slots=True)
class RuntimePlant:
    """Our runtime: resources are subtasks, a setting is how many each stage has, the period is the buffer deadline.

    ``bounded`` False plans with estimates instead of bounds: more rate, less certainty. ``first`` is the stage with
    whose service the path begins, None for one from a source.
    """

    stages: tuple[ours.StagePhases, ...]
    quantile: float | None = None
    bounded: bool = True
    gap_s: float = 0.0
    epoch_s: float = 60.0
    max_bytes: float = 1_000_000
    resource: str = "subtasks"
    min_period_s: float = 0.001
    max_period_s: float = 0.5
    first: int | None = None

    def settings(self, resources: int) -> Iterator[tuple[int, ...]]:
        """All ways to give every stage at least one subtask."""
        for ends in combinations(range(1, resources), len(self.stages) - 1):
            yield tuple(b - a for a, b in zip((0, *ends), (*ends, resources), strict=True))

    def limit_per_s(self, setting: tuple[int, ...]) -> float:
        return (ours.MAX_BUSY if self.bounded else 1.0) / max(ours.busy_shares(1.0, self.stages, setting))

    def latency_s(self, rate_per_s: float, setting: tuple[int, ...], period_s: float) -> float:
        buffering = Buffering(period_s, self.max_bytes)
        try:
            path = ours.path_of(
                rate_per_s, self.stages, setting, buffering,
                gap_s=self.gap_s, epoch_s=self.epoch_s, bounded=self.bounded, first=self.first,
            )  # fmt: skip
            return path.spread.mean_s if self.quantile is None else path.quantile_s(self.quantile)
        except UnstableError:
            return inf
