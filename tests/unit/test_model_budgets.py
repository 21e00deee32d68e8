"""A bound shared out over a DAG of operators."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import GraphError
from headrace.model.budgets import BudgetedOperator, split_bound


@st.composite
def dags(draw: st.DrawFn) -> list[BudgetedOperator]:
    costs = draw(st.lists(st.floats(0.001, 10), min_size=1, max_size=8))
    return [
        BudgetedOperator(
            str(at), cost, tuple(map(str, draw(st.sets(st.integers(0, at - 1), max_size=3)) if at else ()))
        )
        for at, cost in enumerate(costs)
    ]


def paths_to(name: str, operators: dict[str, BudgetedOperator]) -> list[list[str]]:
    inputs = operators[name].inputs
    return [[*path, name] for before in inputs for path in paths_to(before, operators)] if inputs else [[name]]


@settings(max_examples=50)
@given(dags(), st.floats(0.01, 10))
def test_budgets_use_the_bound_up_on_the_costliest_path_only(operators: list[BudgetedOperator], bound_s: float) -> None:
    # scalla fact 33
    budgets = {budget.name: budget.bound_s for budget in split_bound(bound_s, operators)}
    known = {operator.name: operator for operator in operators}
    sums = [sum(budgets[name] for name in path) for sink in known for path in paths_to(sink, known)]
    assert max(sums) == pytest.approx(bound_s)
    shares = [budgets[operator.name] / operator.cost_s for operator in operators]
    assert shares == pytest.approx([shares[0]] * len(shares))


def test_what_is_no_dag_is_named() -> None:
    with pytest.raises(GraphError, match="cycle: a → b → a"):
        split_bound(1.0, [BudgetedOperator("a", 1.0, ("b",)), BudgetedOperator("b", 1.0, ("a",))])
    with pytest.raises(GraphError, match="'x'"):
        split_bound(1.0, [BudgetedOperator("a", 1.0, ("x",))])
    with pytest.raises(GraphError, match="without cost"):
        split_bound(1.0, [BudgetedOperator("a", 0.0)])
