"""SCALLA's system as one that can be planned (section 2.12)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Literal

from headrace.errors import UnstableError
from headrace.model.queueing import Spread
from thesis import scalla_phases as scalla
from thesis.scalla_quantiles import cantelli_quantile_s, normal_quantile_s, window_spread


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

    job: scalla.JobStatistics
    node: scalla.ThesisHardware
    quantile: float | None = None
    tail: Literal["normal", "cantelli"] = "normal"
    windows: WindowModel | None = None
    resource: str = "nodes"
    min_period_s: float = 0.005
    max_period_s: float = 2.0

    def settings(self, resources: int) -> Iterator[scalla.ThesisLayout]:
        for mappers in range(1, self.node.cores):
            for reducers in range(1, self.node.cores - mappers + 1):
                yield scalla.ThesisLayout(resources, mappers, reducers)

    def limit_per_s(self, setting: scalla.ThesisLayout) -> float:
        core = self.node.cycles_per_s / self.node.cores * setting.nodes
        updates = self.job.update_cycles * self.job.outputs_per_input
        return min(
            core * setting.mappers / self.job.map_cycles if self.job.map_cycles else inf,
            core * setting.reducers / updates if updates else inf,
            self.node.network_bytes_per_s / self.job.input_bytes if self.job.input_bytes else inf,
        )

    def latency_s(self, rate_per_s: float, setting: scalla.ThesisLayout, period_s: float) -> float:
        bounded = self.tail == "cantelli"
        try:
            latency = scalla.path_of(
                rate_per_s, self.job, self.node, setting, periods_of(period_s), bounded=bounded
            ).spread
        except UnstableError:
            return inf
        return self._metric_s(latency, setting)

    def _metric_s(self, latency: Spread, setting: scalla.ThesisLayout) -> float:
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


def periods_of(period_s: float) -> scalla.Periods:
    """The thesis's three periods from the shuffle period."""
    return scalla.Periods(period_s / 20, period_s, period_s)
