"""A constraint's bound shared out over the steps and channels of its paths, by what each is expected to take."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, pairwise

from headrace.control.constraints import PathConstraint
from headrace.forecast.pathmodel import cost_of, records_per_input
from headrace.model.budgets import Budget, BudgetedOperator, split_bound
from headrace.model.costs import Costs
from headrace.runtime.plan import JobPlan

_ON_AN_EDGE = ("buffer", "transfer", "queue")
Phases = Mapping[str, float]
"""Mean seconds by the phase's name; empty where nothing could be predicted."""


def budgets_of(plan: JobPlan, costs: Costs, constraint: PathConstraint, phases: Phases) -> tuple[Budget, ...]:
    """SCALLA 2.12: no path exceeds the bound, the longest uses it up. Channels count as operators do.

    Edges between steps of one process take nothing and get nothing.
    """
    names = {element: _name(plan, element) for element in chain.from_iterable(constraint.paths)}
    inputs: dict[str | int, set[str]] = {element: set() for element in names}
    for path in constraint.paths:
        for before, after in pairwise(path):
            inputs[after].add(names[before])
    operators = [
        BudgetedOperator(
            name,
            _step_s(plan, costs, element, phases)
            if isinstance(element, str)
            else _edge_s(plan, costs, element, phases),
            tuple(sorted(inputs[element])),
        )
        for element, name in names.items()
    ]
    if not any(operator.cost_s for operator in operators):
        return ()
    shares = split_bound(constraint.bound_ms / 1000, operators)
    return tuple(share for share in shares if share.bound_s > 0)


def _name(plan: JobPlan, element: str | int) -> str:
    if isinstance(element, str):
        return element
    edge = plan.layout.edges[element]
    return f"{edge.source} → {edge.target}"


def _step_s(plan: JobPlan, costs: Costs, step: str, phases: Phases) -> float:
    """A step's part of its stage's service; passing through takes none."""
    if step not in plan.graph.by_name:
        return 0.0
    given, names = records_per_input(plan, costs), plan.layout.stages[plan.layout.stage_of[step]].steps
    known = {name: cost_of(plan, costs, name) for name in names if name in plan.graph.by_name}
    taken_s = {name: cost.batch_s + cost.record_s * given[name] for name, cost in known.items()}
    whole_s = sum(taken_s.values())
    service_s = phases.get(f"{' + '.join(names)}: service", whole_s)
    return service_s * taken_s[step] / whole_s if whole_s else 0.0


def _edge_s(plan: JobPlan, costs: Costs, id: int, phases: Phases) -> float:
    """An edge's wait, transfer and queue; what a source ships has waited before it was read."""
    layout, edge = plan.layout, plan.layout.edges[id]
    source, target = layout.stage_of[edge.source], layout.stage_of[edge.target]
    if source == target:
        return 0.0
    if not phases:
        return plan.settings.flush_s / 2 + costs.transfer.row_s
    stages = [target, source] if source == 0 else [target]
    names = [f"{' + '.join(layout.stages[at].steps)}: {part}" for at in stages for part in _ON_AN_EDGE]
    return sum(phases.get(name, 0.0) for name in names)
