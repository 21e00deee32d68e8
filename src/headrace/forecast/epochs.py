"""How long epochs last where the user has not said: from the bounds, the gaps between epochs, and the recovery objective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from headrace.errors import UnstableError
from headrace.forecast.pathmodel import plant_of, total_rate_per_s
from headrace.forecast.prediction import predicted
from headrace.graph.nodes import Constraint, SourceNode
from headrace.model.costs import Costs
from headrace.model.epochcost import EpochChoice, EpochGoal, choose_epoch
from headrace.model.laws import Gamma, Uniform
from headrace.model.phases import EpochGap, Phase, PhasedPath
from headrace.model.stagephases import busy_shares
from headrace.runtime.plan import JobPlan
from headrace.units import in_words

_RECENT = 8
"""Gaps that count: the machine may be busier now than an hour ago."""
_SHORTEST_S = 5.0
_MIN_CHANGE = 0.1
"""A new length that differs by less is not worth a line in the journal."""


@dataclass(frozen=True, slots=True)
class EpochLength:
    """The length in force and why, as a sentence."""

    epoch_s: float
    sentence: str


def is_automatic(plan: JobPlan) -> bool:
    """Whether the length is ours to choose: asked for, or not given though there is something to choose it by."""
    settings = plan.settings
    if not plan.eager or settings.epoch_auto is False:
        return False
    return bool(settings.epoch_auto or plan.graph.constraints or settings.recovery_s is not None)


def first_length(plan: JobPlan, costs: Costs | None = None) -> EpochLength:
    """The length to begin with, from the usual gap."""
    costs = costs or Costs()
    return _length(plan, costs, costs.gap_s, "usual")


def next_length(plan: JobPlan, now: EpochLength, gaps_s: Sequence[float]) -> EpochLength | None:
    """Another length, if the gaps measured so far ask for one."""
    if not gaps_s:
        return None
    wanted = _length(plan, Costs(), fmean(gaps_s[-_RECENT:]), "measured")
    return wanted if abs(wanted.epoch_s - now.epoch_s) > _MIN_CHANGE * now.epoch_s else None


def _length(plan: JobPlan, costs: Costs, gap_s: float, which: str) -> EpochLength:
    """The longest that any constraint asks for: a longer epoch hurts no bound."""
    settings = plan.settings
    choices = [_choice(plan, costs, bound, gap_s) for bound in plan.graph.constraints if _meets_gaps(plan, bound)]
    choices = choices or [_choice(plan, costs, None, gap_s)]
    # Where no length keeps a bound, the recovery objective can still be kept.
    otherwise_s = settings.epoch_s if settings.recovery_s is None else min(settings.epoch_s, 2 * settings.recovery_s)
    epoch_s = max((choice.epoch_s for choice in choices if choice.epoch_s is not None), default=otherwise_s)
    reasons = "; ".join(dict.fromkeys(choice.reason for choice in choices))
    return EpochLength(epoch_s, f"epochs of {in_words(epoch_s)}, by {which} gaps of {in_words(gap_s)}: {reasons}")


def _meets_gaps(plan: JobPlan, bound: Constraint) -> bool:
    return isinstance(plan.graph.by_name[bound.start], SourceNode)


def _choice(plan: JobPlan, costs: Costs, bound: Constraint | None, gap_s: float) -> EpochChoice:
    settings = plan.settings
    bound_us = None if bound is None else bound.mean_us if bound.quantile is None else bound.quantile_us
    goal = EpochGoal(
        bound_us / 1e6 if bound_us is not None else None,
        bound.quantile if bound is not None else None,
        settings.recovery_s,
        min(_SHORTEST_S, settings.epoch_s),
        settings.epoch_s,
    )
    path, busy = _body(plan, costs, bound)
    return choose_epoch(goal, path, EpochGap(gap_s, settings.epoch_s, max(busy, default=0.0), sum(busy)))


def _body(plan: JobPlan, costs: Costs, bound: Constraint | None) -> tuple[PhasedPath, list[float]]:
    """A path's phases and the stages' utilisations; without a rate, only what waits in buffers and on the way."""
    rate_per_s = total_rate_per_s(plan)
    if bound is not None and rate_per_s is not None:
        plant = plant_of(plan, costs, bound.quantile, bound.start, bound.end)
        subtasks = [stage.active for stage in plan.layout.stages[: len(plant.stages)]]
        try:
            path = predicted(plan, plant, rate_per_s)
            return PhasedPath(path.phases), busy_shares(rate_per_s, plant.stages, subtasks)
        except UnstableError:
            pass  # the sources will not reach that rate
    borders = plan.layout.stage_of[bound.end] if bound is not None else 0
    waits = (Uniform(0.0, plan.settings.flush_s), Gamma(costs.transfer.row_s, costs.transfer.var_s2))
    return PhasedPath(
        tuple(Phase(f"border {at + 1}", waits) for at in range(borders)) or (Phase("none", (Gamma(0.001),)),)
    ), []
