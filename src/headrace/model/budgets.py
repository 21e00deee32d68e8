"""A latency bound shared out over a DAG of operators (SCALLA section 2.12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import GraphError


@dataclass(frozen=True, slots=True)
class BudgetedOperator:
    """A vertex: its CPU cost per input item, measured or hinted, and the operators it reads from."""

    name: str
    cost_s: float
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Budget:
    """The part of a bound that one operator may use."""

    name: str
    bound_s: float


def split_bound(bound_s: float, operators: Sequence[BudgetedOperator]) -> tuple[Budget, ...]:
    """𝓛_i = c_i · min over source-to-sink paths of 𝓛/Σc: the costliest path uses the bound up, no path exceeds it.

    The minimum is 𝓛 over the longest path, so no path needs to be enumerated. Raises GraphError on a
    cycle, an unknown input, or if nothing costs anything.
    """
    known = {operator.name: operator for operator in operators}
    longest: dict[str, float] = {}
    for operator in operators:
        _measure(operator, known, longest, ())
    max_s = max(longest.values(), default=0.0)
    if max_s <= 0:
        raise GraphError("a bound cannot be shared out among operators without cost; measure or estimate their costs")
    return tuple(Budget(operator.name, operator.cost_s * bound_s / max_s) for operator in operators)


def _measure(
    operator: BudgetedOperator, known: Mapping[str, BudgetedOperator], longest: dict[str, float], above: tuple[str, ...]
) -> float:
    """The cost of the costliest path that ends with an operator."""
    if operator.name in above:
        raise GraphError(f"operators form a cycle: {' → '.join((*above, operator.name))}")
    if operator.name not in longest:
        missing = [name for name in operator.inputs if name not in known]
        if missing:
            raise GraphError(f"operator {operator.name!r} reads from {missing[0]!r}, which is not there")
        way = (*above, operator.name)
        before = max((_measure(known[name], known, longest, way) for name in operator.inputs), default=0.0)
        longest[operator.name] = before + operator.cost_s
    return longest[operator.name]
