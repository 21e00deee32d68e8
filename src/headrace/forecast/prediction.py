"""What a job will be like, before it starts: predictions per constraint, and a plan that keeps it.

SCALLA 2.9 and 2.12 for our runtime. Costs are defaults, calibrated on samples or fitted to an earlier run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.actuate.controljob import constraint_of, topology_of
from headrace.control.constraints import PathConstraint
from headrace.errors import UnstableError
from headrace.forecast.allotments import budgets_of
from headrace.forecast.pathmodel import limits_of, open_windows, plant_of, total_rate_per_s
from headrace.model.budgets import Budget
from headrace.model.buffers import Buffering
from headrace.model.costs import Costs
from headrace.model.phases import PhasedPath
from headrace.model.sizing import RuntimePlant, Sizing, Unattainable, smallest
from headrace.model.stagephases import path_of
from headrace.runtime.plan import JobPlan
from headrace.units import in_words

UNKNOWN_RATE = "unknown, because not every source says its rate: give it rate=, or the command --rate"


@dataclass(frozen=True, slots=True)
class Prediction:
    """A path's latency by phase, and quantiles of the whole."""

    mean_s: float
    p50_s: float
    p99_s: float
    phases: tuple[tuple[str, float], ...]

    @staticmethod
    def of(path: PhasedPath) -> Prediction:
        phases = tuple((phase.name, phase.spread.mean_s) for phase in path.phases)
        return Prediction(path.spread.mean_s, path.quantile_s(0.5), path.quantile_s(0.99), phases)


@dataclass(frozen=True, slots=True)
class Forecast:
    """One constraint before the start: the job as it begins, and the smallest setting that keeps the bound.

    ``at_start`` is None where the rate is unknown or a stage could not keep up, ``sizing`` where the rate is unknown;
    ``verdict`` says so. ``until_rows`` is ``at_start`` with the time for which windows on the path are open, where the
    constraint does not count it.
    """

    constraint: PathConstraint
    rate_per_s: float | None
    budgets: tuple[Budget, ...]
    at_start: Prediction | None
    sizing: Sizing | Unattainable | None
    verdict: str
    windows: frozenset[str] = frozenset()
    until_rows: Prediction | None = None


def forecast(plan: JobPlan, costs: Costs, rate_per_s: float | None = None) -> tuple[Forecast, ...]:
    """A forecast per constraint; ``rate_per_s`` of all sources together replaces what they say themselves."""
    topology = topology_of(plan)
    rate = rate_per_s if rate_per_s is not None else total_rate_per_s(plan)
    made = []
    for bound in plan.graph.constraints:
        constraint = constraint_of(bound, topology)
        plant = plant_of(plan, costs, constraint.quantile, bound.start, bound.end)
        one = _forecast(plan, costs, constraint, plant, rate)
        windows = open_windows(plan, bound.start, bound.end)
        if windows and rate is not None and one.at_start is not None:
            waiting = plant_of(plan, costs, constraint.quantile, bound.start, bound.end, windows)
            one = replace(one, windows=windows, until_rows=Prediction.of(predicted(plan, waiting, rate)))
        made.append(one)
    return tuple(made)


def predicted(plan: JobPlan, plant: RuntimePlant, rate_per_s: float) -> PhasedPath:
    """A path of the job as it begins; raises UnstableError if a stage cannot keep up."""
    subtasks = [stage.active for stage in plan.layout.stages[: len(plant.stages)]]
    buffering = Buffering(plan.settings.flush_s, plant.max_bytes)
    return path_of(rate_per_s, plant.stages, subtasks, buffering, first=plant.first)


def _forecast(
    plan: JobPlan, costs: Costs, constraint: PathConstraint, plant: RuntimePlant, rate_per_s: float | None
) -> Forecast:
    bound_s = constraint.bound_ms / 1000
    if rate_per_s is None:
        return Forecast(constraint, None, budgets_of(plan, costs, constraint, {}), None, None, UNKNOWN_RATE)
    at_start, overload = None, ""
    try:
        at_start = Prediction.of(predicted(plan, plant, rate_per_s))
    except UnstableError as error:
        overload = f"as laid out it cannot keep up ({error}); "
    sizing = smallest(plant, rate_per_s, bound_s, limits_of(plan, len(plant.stages)))
    budgets = budgets_of(plan, costs, constraint, dict(at_start.phases) if at_start is not None else {})
    return Forecast(constraint, rate_per_s, budgets, at_start, sizing, overload + _verdict(plan, sizing, constraint))


def _verdict(plan: JobPlan, sizing: Sizing | Unattainable, constraint: PathConstraint) -> str:
    if isinstance(sizing, Unattainable):
        if sizing.smallest_bound_s is None:
            return "cannot be met: no stage layout keeps up at this rate; lower it, or allow more subtasks"
        what = "mean" if constraint.quantile is None else f"p{constraint.quantile * 100:g}"
        could_ms = 1000 * sizing.smallest_bound_s
        return f"cannot be met; the smallest {what} that could is {could_ms:{'.3g' if could_ms < 1000 else ',.0f'}} ms"
    laid_out = tuple(stage.active for stage in plan.layout.stages[: len(sizing.subtasks)])
    instead = "" if sizing.subtasks == laid_out else f", where the layout has {_sum(laid_out)}"
    return (
        f"can be met: {_sum(sizing.subtasks)} subtasks are the fewest that keep it{instead}; "
        f"with them buffers may wait {in_words(sizing.deadline_s)}"
    )


def _sum(subtasks: tuple[int, ...]) -> str:
    return " + ".join(map(str, subtasks))
