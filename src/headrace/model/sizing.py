"""The smallest number of subtasks that keeps a bound at a known rate, and the longest buffer deadline that still does.

The question of SCALLA 2.12 the other way round: the thesis seeks the highest rate for given resources;
here the rate is given, so each setting is tried at that rate only. Where the thesis leaves this to a general
non-linear optimiser, we enumerate the settings and search the one continuous quantity, a period, by bounded scalar
minimisation, so the answer is the same in every run.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import exp, inf, log, prod

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from headrace.errors import UnstableError
from headrace.model.buffers import Buffering
from headrace.model.stagephases import StagePhases, path_of

Limits = tuple[tuple[int, int], ...]
"""Per stage: the minimum and the maximum number of subtasks."""
_MAX_TRIED = 256
_PERIODS_TRIED = 10


@dataclass(frozen=True, slots=True)
class RuntimePlant:
    """Our runtime as one that can be planned: a setting is how many subtasks each stage has, the period the buffer deadline.

    ``bounded`` False plans with estimates instead of bounds: more rate, less certainty. ``first`` is the stage with
    whose service the path begins, None for one from a source.
    """

    stages: tuple[StagePhases, ...]
    quantile: float | None = None
    bounded: bool = True
    max_bytes: float = 1_000_000
    min_period_s: float = 0.001
    max_period_s: float = 0.5
    first: int | None = None

    def latency_s(self, rate_per_s: float, setting: tuple[int, ...], period_s: float) -> float:
        buffering = Buffering(period_s, self.max_bytes)
        try:
            path = path_of(rate_per_s, self.stages, setting, buffering, bounded=self.bounded, first=self.first)
            return path.spread.mean_s if self.quantile is None else path.quantile_s(self.quantile)
        except UnstableError:
            return inf


@dataclass(frozen=True, slots=True)
class Sizing:
    """Subtasks per stage, the longest deadline of their buffers, and the latency expected with both."""

    subtasks: tuple[int, ...]
    deadline_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Unattainable:
    """No setting keeps the bound; None: at this rate none is stable."""

    smallest_bound_s: float | None


def smallest(plant: RuntimePlant, rate_per_s: float, bound_s: float, limits: Limits) -> Sizing | Unattainable:
    """The setting of fewest subtasks, in all, that keeps the bound; among equals, the one with the lowest latency."""
    min_s = inf
    found: list[tuple[float, tuple[int, ...]]] = []
    for setting in _settings(limits):
        if found and sum(setting) > sum(found[0][1]):
            break
        latency_s = best_period(plant, rate_per_s, setting)[1]
        min_s = min(min_s, latency_s)
        if latency_s <= bound_s:
            found.append((latency_s, setting))
    if not found:
        return Unattainable(min_s if min_s < inf else None)
    setting = min(found)[1]
    deadline_s = longest_deadline_s(plant, rate_per_s, setting, bound_s)
    assert deadline_s is not None
    return Sizing(setting, deadline_s, plant.latency_s(rate_per_s, setting, deadline_s))


def best_period(
    plant: RuntimePlant, rate_per_s: float, setting: tuple[int, ...], enough_s: float = 0.0
) -> tuple[float, float]:  # fmt: skip
    """The period with the lowest latency, and that latency; stops at the first that is at most ``enough_s``.

    A scan first: where short periods overload a queue the latency is infinite, and a minimiser that
    starts there would get nowhere.
    """
    periods_s = np.geomspace(plant.min_period_s, plant.max_period_s, _PERIODS_TRIED).tolist()
    tried: list[tuple[float, float]] = []
    for period_s in periods_s:
        latency_s = plant.latency_s(rate_per_s, setting, period_s)
        tried.append((latency_s, period_s))
        if latency_s <= enough_s:
            return period_s, latency_s
    latency_s, period_s = min(tried)
    at = periods_s.index(period_s)
    if latency_s == inf:
        return period_s, inf
    around = (log(periods_s[max(at - 1, 0)]), log(periods_s[min(at + 1, _PERIODS_TRIED - 1)]))
    finest = minimize_scalar(
        lambda logged: min(plant.latency_s(rate_per_s, setting, exp(logged)), 1e9),
        bounds=around, method="bounded", options={"xatol": 0.02},
    )  # fmt: skip
    return min((latency_s, period_s), (float(finest.fun), exp(finest.x)))[::-1]


def longest_deadline_s(
    plant: RuntimePlant, rate_per_s: float, subtasks: tuple[int, ...], bound_s: float
) -> float | None:  # fmt: skip
    """As large batches as the bound allows (Nephele 2.7); None if it is not kept with any."""
    best_s, latency_s = best_period(plant, rate_per_s, subtasks)
    if latency_s > bound_s:
        return None

    def excess_s(logged: float) -> float:
        return min(plant.latency_s(rate_per_s, subtasks, exp(logged)), 1e6) - bound_s

    if excess_s(log(plant.max_period_s)) <= 0:
        return plant.max_period_s
    return exp(float(brentq(excess_s, log(best_s), log(plant.max_period_s), xtol=1e-3))) * 0.998


def _settings(limits: Limits) -> list[tuple[int, ...]]:
    """All settings, fewest subtasks first; where there are very many, only the even ones and the largest."""
    ranges = [range(minimum, maximum + 1) for minimum, maximum in limits]
    if prod(map(len, ranges)) <= _MAX_TRIED:
        return sorted(product(*ranges), key=sum)
    widest = max(maximum for _, maximum in limits)
    even = {tuple(min(max(n, minimum), maximum) for minimum, maximum in limits) for n in range(1, widest + 1)}
    return sorted(even, key=sum)
