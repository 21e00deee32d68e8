"""A subtask says that it is ready for a cut when its queue is short."""

from __future__ import annotations

from pathlib import Path

from onesubtask import ATTEMPT, KEYS, Working, both, counting

from headrace.runtime.cutmaking.readiness import Readiness
from headrace.runtime.messages import CutAsked, Ready

FIRST, SECOND = ATTEMPT.cut(1), ATTEMPT.cut(2)


def asked() -> Readiness:
    readiness = Readiness()
    readiness.answer(1_000_000, waiting=False, held=False)
    readiness.ask(FIRST)
    return readiness


def test_who_has_nothing_to_do_answers_once() -> None:
    readiness = asked()
    readiness.took(None, 1_000_000)
    assert readiness.answer(1_000_000, waiting=False, held=False) == FIRST
    assert readiness.answer(1_000_000, waiting=False, held=False) is None


def test_who_is_not_asked_says_nothing() -> None:
    assert Readiness().answer(0, waiting=False, held=False) is None


def test_rows_that_have_waited_for_long_are_worked_off_first() -> None:
    readiness = asked()
    readiness.took(900_000, 1_000_000)
    assert readiness.answer(1_000_000, waiting=False, held=False) is None
    readiness.took(990_000, 1_010_000)
    assert readiness.answer(1_010_000, waiting=False, held=False) == FIRST


def test_so_is_what_waits_for_steps_and_what_a_cut_has_held() -> None:
    readiness = asked()
    assert readiness.answer(1_060_000, waiting=True, held=False) is None, "for 60 ms there was something"
    assert readiness.answer(1_070_000, waiting=False, held=True) is None
    assert readiness.answer(1_080_000, waiting=True, held=False) == FIRST, "but a moment ago there was not"


def test_only_the_last_question_counts() -> None:
    readiness = asked()
    readiness.ask(SECOND)
    assert readiness.answer(1_000_000, waiting=False, held=False) == SECOND
    assert readiness.answer(1_000_000, waiting=False, held=False) is None


def test_subtasks_answer_their_driver(tmp_path: Path) -> None:
    plan = counting(tmp_path)
    with Working(plan, 1, given=[CutAsked(FIRST, {})]) as working:
        working.until(lambda: working.driver.heard(Ready) == [Ready(1, 0, FIRST)], "an idle one is ready")
    with Working(plan, 1) as working:
        sender = both(plan)[0]
        working.take([*sender.send(KEYS)[0], *sender.mark(1)])
        working.until(lambda: working.subtask._intake.alignment.held, "the first sender has marked")
        working.driver.give(CutAsked(FIRST, {}))
        working.a_while()
        assert working.driver.heard(Ready) == [], "rows may be held"
