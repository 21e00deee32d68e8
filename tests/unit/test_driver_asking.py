"""The driver asks before it orders a cut: it waits for short queues, and not for ever."""

from __future__ import annotations

import pytest
from driven import Driven, counting, kinds, ordered, sender

from headrace.driver.protocol.events import BatchEndAsked, StopAsked
from headrace.tokens import Token

SOURCE, COUNT = (0, 0), (1, 0)


def busy(*places: tuple[int, int]) -> Driven:
    driven = Driven(counting(2)).run()
    driven.busy = set(places)
    return driven


def test_all_are_asked_a_little_before_a_cut_is_due_and_it_is_ordered_when_it_is() -> None:
    driven = busy()
    assert kinds(driven.later(0.95)) == ["CutAsked"] * 4
    assert driven.later(0.04) == [], "asked once"
    assert kinds(driven.later(0.02)) == ["CutOrdered"] * 2


def test_a_cut_waits_for_those_whose_queues_are_long() -> None:
    driven = busy((1, 0), (1, 1))
    driven.later(1.1)
    assert driven.later(0.8) == [] and driven.machine.cut is None
    assert driven.tell(driven.ready((1, 1))) == [], "one is still busy"
    assert ordered(driven.tell(driven.ready((1, 0)))).keys() == {sender((0, 0)), sender((0, 1))}


def test_an_answer_about_another_cut_says_nothing() -> None:
    driven = busy((1, 0))
    driven.later(1.1)
    for token in (Token(1, 1, 2), Token(1, 0, 1), Token(2, 1, 1)):
        assert driven.tell(driven.ready((1, 0), token)) == []
    assert ordered(driven.tell(driven.ready((1, 0))))


def test_a_cut_is_put_off_for_three_intervals_at_most() -> None:
    driven = busy((1, 0))
    driven.later(1.0)
    assert driven.later(1.9) == []
    assert ordered(driven.later(0.2)) == {sender((0, i)): (Token(1, 1, 1), False) for i in (0, 1)}


@pytest.mark.parametrize(
    ("commit", "recovery", "put_off_s"), [("1 s", "5 s", 1.5), ("5 s", "5 s", 0.0), ("1 s", "1 min", 2.0)]
)
def test_waiting_stays_within_what_a_failure_may_repeat(commit: str, recovery: str, put_off_s: float) -> None:
    driven = Driven(counting(2, commit=commit, recovery=recovery)).run()
    driven.busy = {(1, 0)}
    driven.now_s = driven.machine.pace.due_s
    while driven.machine.cut is None:
        driven.later(0.05)
    assert driven.now_s - driven.machine.pace.due_s == pytest.approx(put_off_s, abs=0.1)


def test_patience_in_vain_is_halved_and_whole_again_after_an_answer() -> None:
    driven = busy((1, 0))
    put_off = []
    for _ in range(6):
        if len(put_off) == 4:
            driven.busy.clear()
        if len(put_off) == 5:
            driven.busy = {(1, 0)}
        driven.now_s = due_s = driven.machine.pace.due_s
        while driven.machine.cut is None:
            driven.later(0.05)
        put_off.append(driven.now_s - due_s)
        driven.describe_all()
    assert put_off == [pytest.approx(wanted, abs=0.1) for wanted in (2.0, 1.0, 0.5, 0.25, 0.0, 2.0)]


@pytest.mark.parametrize("why", [StopAsked(), BatchEndAsked("a step shall grow")])
def test_a_cut_that_ends_a_batch_is_not_put_off(why: StopAsked | BatchEndAsked) -> None:
    driven = busy((1, 0), (1, 1))
    driven.later(1.5)
    assert driven.machine.cut is None
    assert [end for _, end in ordered(driven.tell(why)).values()] == [True, True]
