"""Logged cuts on their way to their readers: in order, one at a time, each until it has happened."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.driver.protocol.events import NumberedCut, Publish, Published, PublishFailed, Say
from headrace.driver.protocol.publications import Publications
from headrace.errors import HeadraceError
from headrace.state.durable.manifest import Manifest
from headrace.tokens import Token

AWAY = HeadraceError("the sink is away")


def cut(number: int) -> NumberedCut:
    return NumberedCut(number, Manifest(Token(1, 1, number), None))


def waiting(*numbers: int) -> Publications:
    publications = Publications()
    for number in numbers:
        publications.add(cut(number))
    return publications


def test_cuts_are_published_one_after_the_other() -> None:
    publications = waiting(2, 3, 5)
    for number in (2, 3, 5):
        assert publications.due(0.0) == [Publish(cut(number))]
        assert publications.due(99.0) == [], "one at a time"
        assert publications.on(Published(number), 0.0) == [] and publications.published == number
    assert publications.due(99.0) == []


def test_one_that_fails_is_tried_again_after_longer_and_longer_waits_and_told_once() -> None:
    publications, now_s = waiting(2, 3), 0.0
    for n, wait_s in enumerate((0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0)):
        assert publications.due(now_s) == [Publish(cut(2))]
        said = publications.on(PublishFailed(2, AWAY), now_s)
        assert said == ([] if n else [Say("publish", f"results cannot be made visible yet, trying on: {AWAY}", True)])
        assert publications.due(now_s + wait_s - 0.01) == []
        now_s += wait_s
    assert publications.published == 0, "nothing is left out"
    publications.due(now_s)
    assert publications.on(Published(2), now_s) == [Say("published", "results are visible again")]
    assert publications.due(now_s) == [Publish(cut(3))], "at once"
    publications.on(PublishFailed(3, AWAY), now_s)
    assert publications.due(now_s + 0.2) == [Publish(cut(3))], "another failure is a first one"


@pytest.mark.parametrize("event", [Published(2), Published(3), PublishFailed(3, AWAY)])
def test_an_answer_to_what_was_not_asked_changes_nothing(event: Published | PublishFailed) -> None:
    publications = waiting(2, 3)
    if event.number == 3:
        publications.due(0.0)
    assert publications.on(event, 0.0) == [] and publications.published == 0 and len(publications.waiting) == 2


def test_two_minutes_worth_may_wait() -> None:
    publications = waiting(*range(2, 121))
    assert not publications.crowded
    publications.add(cut(121))
    assert publications.crowded
    publications.due(0.0)
    publications.on(Published(2), 0.0)
    assert not publications.crowded


# chronostream fact 17, cuts.md rule 21: in the order of the log, and none is left out
@given(st.lists(st.sampled_from(["cut", "try", "fail", "succeed", "wait"]), max_size=60))
def test_whatever_fails_all_are_published_in_order(steps: list[str]) -> None:
    publications, now_s, made = Publications(), 0.0, 1
    asked: int | None = None
    published: list[int] = []
    for step in [*steps, *["wait", "try", "succeed"] * len(steps)]:
        match step:
            case "cut":
                made += 1
                publications.add(cut(made))
            case "try":
                for one in publications.due(now_s):
                    assert isinstance(one, Publish) and asked is None
                    asked = one.cut.number
            case "fail" if asked is not None:
                publications.on(PublishFailed(asked, AWAY), now_s)
                asked = None
            case "succeed" if asked is not None:
                publications.on(Published(asked), now_s)
                published.append(asked)
                asked = None
            case "wait":
                now_s += 10.0
    assert published == list(range(2, made + 1)) and publications.published == (made if made > 1 else 0)
