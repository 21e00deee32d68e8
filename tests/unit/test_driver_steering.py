"""What a run's steering does to the length of its epochs, and what it only says."""

from __future__ import annotations

import pytest
from planned import planned

from headrace.driver.journal import Journal
from headrace.driver.steering import Steering
from headrace.runtime.plan import JobPlan


def steering(plan: JobPlan, journal: Journal, *, observe_only: bool) -> Steering:
    return Steering(plan, lambda orders: None, journal, observe_only=observe_only, trace=None)


def said(journal: Journal) -> list[str]:
    return [event.detail for event in journal.events if event.what == "epoch"]


def test_an_automatic_length_is_set_and_journaled() -> None:
    journal = Journal()
    steered = steering(planned(recovery="15 s", bounds=()), journal, observe_only=False)
    steered.start()
    assert steered.epoch_s == 30.0
    assert [sentence.startswith("epochs of 30 s, by usual gaps") for sentence in said(journal)] == [True]
    assert "withheld" not in said(journal)[0]


def test_who_only_observes_says_which_length_it_would_set_and_keeps_the_one_there_is() -> None:
    plan, journal = planned(bounds=({"p99": "60 ms"},)), Journal()
    steered = steering(plan, journal, observe_only=True)
    steered.start()
    steered.reconsider([2.0, 2.0])
    assert steered.epoch_s == plan.settings.epoch_s
    first, longer = said(journal)
    assert "by usual gaps" in first and "by measured gaps of 2 s" in longer
    assert first.endswith("; withheld: observing only") and longer.endswith("; withheld: observing only")
    steered.reconsider([2.0, 2.0, 2.0])
    assert said(journal) == [first, longer], "what was said once is not said after every gap"


def test_each_gap_is_considered_once_and_sets_another_length_if_it_asks_for_one() -> None:
    plan, journal = planned(bounds=({"p99": "60 ms"},)), Journal()
    steered = steering(plan, journal, observe_only=False)
    steered.start()
    steered.reconsider([2.0])
    assert steered.epoch_s == pytest.approx(200, rel=0.05)
    steered.reconsider([0.5])
    assert steered.epoch_s == pytest.approx(200, rel=0.05), "no gap was added"
    steered.reconsider([0.5, 0.5])
    assert steered.epoch_s == plan.settings.epoch_s


@pytest.mark.parametrize("observe_only", [False, True])
def test_a_length_that_the_user_set_is_neither_changed_nor_discussed(observe_only: bool) -> None:
    journal = Journal()
    steered = steering(planned(bounds=({"p99": "60 ms"},), epoch="20 s"), journal, observe_only=observe_only)
    steered.start()
    steered.reconsider([2.0])
    assert steered.epoch_s == 20.0 and said(journal) == []
