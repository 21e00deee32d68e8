"""What a run's steering does with a controller, and what it answers without one."""

from __future__ import annotations

from typing import Any

import pytest
from planned import planned

from headrace.actuate.ranks import Ranks
from headrace.driver.journal import Journal
from headrace.driver.steering import Steering
from headrace.errors import ConfigError
from headrace.runtime.orders import NO_ORDERS, Orders
from headrace.runtime.plan import JobPlan


def steering(plan: JobPlan, orders: list[Orders]) -> Steering:
    return Steering(plan, orders.append, Journal(), observe_only=False, trace=None)


def ranks_of(plan: JobPlan) -> Ranks:
    return Ranks.of(plan, NO_ORDERS, ())


@pytest.mark.parametrize("settings", [{"bounds": ()}, {"mode": "microbatch"}], ids=["unbounded", "stage by stage"])
def test_without_a_controller_nothing_is_due_and_nothing_can_be_overridden(settings: dict[str, Any]) -> None:
    plan, orders = planned(**settings), list[Orders]()
    steered = steering(plan, orders)
    steered.start()
    assert not steered.due(1e9) and orders == [] and steered.kept() == {} and steered.subtask_s() == {}
    with pytest.raises(ConfigError, match="only a job with latency constraints in realtime mode"):
        steered.override(ranks_of(plan), {}, {"count": 3}, {})
    steered.close()


def test_constraints_that_nobody_keeps_are_told() -> None:
    journal = Journal()
    Steering(planned(mode="microbatch"), lambda orders: None, journal, observe_only=False, trace=None)
    assert [event.detail for event in journal.events] == [
        "latency constraints are kept in realtime mode, not in microbatch mode"
    ]


def test_without_a_controller_a_job_wants_the_subtasks_that_it_starts_with() -> None:
    plan = planned(bounds=(), parallelism=(1, 2, 6))
    assert steering(plan, []).wanted(plan.layout) == {1: 2}


def test_turns_are_due_once_per_interval_and_without_reports_nothing_changes() -> None:
    plan, orders = planned(report="500 ms"), list[Orders]()
    steered = steering(plan, orders)
    steered.start()
    assert len(orders) == 1 and steered.due(100.0)
    steered.turn(100.0, (), ranks_of(plan))
    assert not steered.due(100.4) and steered.due(100.5)
    assert steered.wanted(plan.layout) == {1: 2}
    steered.close()


def test_what_is_decided_by_hand_is_wanted_from_then_on() -> None:
    plan, orders = planned(parallelism=(1, 2, 6)), list[Orders]()
    steered = steering(plan, orders)
    steered.start()
    steered.override(ranks_of(plan), {}, {"count": 4}, {})
    assert steered.wanted(plan.layout) == {1: 4} and orders[-1].active == {1: 4}
    steered.close()
