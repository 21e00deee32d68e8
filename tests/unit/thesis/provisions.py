"""The smallest resources that carry a rate within a latency bound (SCALLA section 2.12).

For S = 1..S̄: the largest rate Λ(S) whose predicted latency stays within the bound; the answer is the
first S with Λ(S) ≥ λ₀. The thesis hands this to a general non-linear optimiser. We enumerate the
integer settings, search the rate by bisection and the one continuous setting, a period, by bounded
scalar minimisation, so the answer is the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from math import inf
from typing import Generic, Protocol, TypeVar

from headrace.model.sizing import RuntimePlant, best_period
from headrace.model.stagephases import MAX_BUSY, StagePhases
from headrace.units import in_words

Setting = TypeVar("Setting")

_RATE_PRECISION = 0.002
_RATES_TRIED = (0.98, 0.9, 0.75, 0.5, 0.25, 0.1, 0.03, 0.01, 0.001, 0.0001)
"""Shares of the rate at which a queue overflows. Tried from above, because latency also rises at very
low rates, where an item has nobody to share its buffer with."""


class PlannedSystem(Protocol[Setting]):
    """A system to be planned: what can be set, and the latency that follows."""

    @property
    def resource(self) -> str: ...

    @property
    def min_period_s(self) -> float: ...

    @property
    def max_period_s(self) -> float: ...

    def settings(self, resources: int) -> Iterable[Setting]:
        """All ways to use exactly so many resources."""
        ...

    def limit_per_s(self, setting: Setting) -> float:
        """A rate that cannot be carried, whatever the period."""
        ...

    def latency_s(self, rate_per_s: float, setting: Setting, period_s: float) -> float:
        """The latency that the bound is about; infinite if a queue would grow without end."""
        ...


def busy_shares(rate_per_s: float, stages: Sequence[StagePhases], subtasks: Sequence[int]) -> list[float]:
    """Each stage's utilisation by items alone: in a backlog rows are large and their own cost is small."""
    return [rate_per_s * s.items_per_input * s.item_s / n for s, n in zip(stages, subtasks, strict=True)]


@dataclass(frozen=True, slots=True)
class PlannedRuntime(RuntimePlant):
    """Our runtime: resources are subtasks, a setting is how many each stage has."""

    resource: str = "subtasks"

    def settings(self, resources: int) -> Iterator[tuple[int, ...]]:
        """All ways to give every stage at least one subtask."""
        for ends in combinations(range(1, resources), len(self.stages) - 1):
            yield tuple(b - a for a, b in zip((0, *ends), (*ends, resources), strict=True))

    def limit_per_s(self, setting: tuple[int, ...]) -> float:
        return (MAX_BUSY if self.bounded else 1.0) / max(busy_shares(1.0, self.stages, setting))


@dataclass(frozen=True, slots=True)
class Provision(Generic[Setting]):
    """What to set for a number of resources, the largest rate it carries, and the latency expected at that rate."""

    resources: int
    setting: Setting
    period_s: float
    rate_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Infeasible:
    """No provision: why, and what could be had instead with all resources. None: not at any rate, or bound."""

    reason: str
    smallest_bound_s: float | None
    largest_rate_per_s: float | None


def provision(
    plant: PlannedSystem[Setting], rate_per_s: float, bound_s: float, max_resources: int
) -> Provision[Setting] | Infeasible:  # fmt: skip
    """The smallest number of resources that carries ``rate_per_s`` within ``bound_s``."""
    best: Provision[Setting] | None = None
    for resources in range(1, max_resources + 1):
        found = largest_rate(plant, resources, bound_s)
        if found is not None and found.rate_per_s >= rate_per_s:
            fitting = _fitted(plant, found, rate_per_s, bound_s)
            if fitting is not None:
                return fitting
        best = max(filter(None, (best, found)), key=lambda p: p.rate_per_s, default=None)
    return _refusal(plant, rate_per_s, bound_s, max_resources, best)


def _fitted(
    plant: PlannedSystem[Setting], found: Provision[Setting], rate_per_s: float, bound_s: float
) -> Provision[Setting] | None:
    """The provision as it is for its largest rate, or with another period if that is too long for the rate asked."""
    if plant.latency_s(rate_per_s, found.setting, found.period_s) <= bound_s:
        return found
    period_s, latency_s = best_period(plant, rate_per_s, found.setting)
    return replace(found, period_s=period_s) if latency_s <= bound_s else None


def largest_rate(plant: PlannedSystem[Setting], resources: int, bound_s: float) -> Provision[Setting] | None:
    """Λ(S): the provision for the largest rate within the bound, or None if no rate can be had.

    Settings that could not beat the best so far, even if latency were no object, are not looked at.
    """
    best: Provision[Setting] | None = None
    for setting in sorted(plant.settings(resources), key=plant.limit_per_s, reverse=True):
        limit_per_s = plant.limit_per_s(setting)
        if best is not None and limit_per_s <= best.rate_per_s:
            break
        feasible = partial(_feasible, plant, setting, bound_s)
        rate_per_s = _largest_feasible(feasible, limit_per_s, best.rate_per_s if best is not None else 0.0)
        if rate_per_s is not None:
            period_s, latency_s = best_period(plant, rate_per_s, setting)
            best = Provision(resources, setting, period_s, rate_per_s, latency_s)
    return best


def _feasible(plant: PlannedSystem[Setting], setting: Setting, bound_s: float, rate_per_s: float) -> bool:
    return best_period(plant, rate_per_s, setting, bound_s)[1] <= bound_s


def _largest_feasible(feasible: Callable[[float], bool], limit: float, to_beat: float) -> float | None:
    """The largest feasible rate below a limit, to a precision of 0.2 %; None if it does not beat ``to_beat``."""
    above = limit
    for share in _RATES_TRIED:
        below = share * limit
        if feasible(below):
            break
        above = below
        if above <= to_beat:
            return None
    else:
        return None
    while above - below > _RATE_PRECISION * above:
        middle = (above + below) / 2
        below, above = (middle, above) if feasible(middle) else (below, middle)
    return below if below > to_beat else None


def _refusal(
    plant: PlannedSystem[Setting], rate_per_s: float, bound_s: float, resources: int, best: Provision[Setting] | None
) -> Infeasible:
    min_s = min(
        (best_period(plant, rate_per_s, s)[1] for n in range(1, resources + 1) for s in plant.settings(n)), default=inf
    )
    rate = best.rate_per_s if best is not None else None
    what = f"{rate_per_s:g} items/s within {in_words(bound_s)} cannot be had with {resources} {plant.resource} or fewer"
    at_rate = f"the smallest bound at this rate is {in_words(min_s)}" if min_s < inf else "no bound holds at this rate"
    within = f"the largest rate within the bound is {rate:.6g} items/s" if rate else "no rate stays within the bound"
    return Infeasible(f"{what}: {at_rate}, {within}", min_s if min_s < inf else None, rate)
