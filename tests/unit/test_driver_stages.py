"""The driver's machine where stages run one after the other: one cut at the end of each batch, which Spark asks about."""

from __future__ import annotations

from typing import Any

import pytest
from driven import Driven, counting, opened, sender, sent

from headrace.driver.protocol.events import (
    Append,
    Appended,
    BatchAnswer,
    BatchBegins,
    BatchWorked,
    Began,
    CutHappened,
    EndBatch,
    Finish,
    Lost,
    Publish,
    Published,
    QueryEnded,
    RestartAsked,
    Say,
    StartQuery,
    StopAsked,
    StopQuery,
)
from headrace.runtime.messages import CutOrdered, Fenced, Go, Loaded, Logged, Planned
from headrace.state.copies.nearest import NOTHING_LOADED
from headrace.state.durable.manifest import Manifest
from headrace.state.durable.versionlog import CutEntry, Entry
from headrace.tokens import Attempt, Token

SOURCE, COUNT = (0, 0), (1, 0)
PLAN = counting(mode="microbatch")
BOOM = RuntimeError("boom")


def answers(driven: Driven) -> list[tuple[int, bool]]:
    return [(answer.batch, answer.run) for answer in driven.all(BatchAnswer)]


def work(driven: Driven, batch: int, **more: Any) -> None:
    """What subtasks do in a batch, stage after stage."""
    for place in driven.places:
        driven.hello(place, batch=batch)
        driven.hear(place, Loaded(*place, driven.attempt, NOTHING_LOADED))
        driven.describe(place, **more)


def play(driven: Driven, batch: int, *, known: bool = False, **more: Any) -> None:
    """A whole batch."""
    driven.tell(BatchBegins(batch, known))
    work(driven, batch, **more)
    driven.tell(BatchWorked(batch))


def log_with_batch(batch: int | None) -> dict[int, Entry]:
    return {1: opened(1, pid=9), 2: CutEntry(Manifest(Token(1, 1, 1), None, end=True, batch=batch))}


def test_a_batch_is_one_attempt_and_one_cut() -> None:
    driven = Driven(PLAN)
    assert driven.tell(BatchBegins(0, known=False)) == [Began(), BatchAnswer(0, run=True)]
    assert driven.machine.state == "running"
    asked = driven.hello(SOURCE)
    ticket = sent(asked, Planned)[sender(SOURCE)].ticket
    assert (ticket.attempt, ticket.base, set(ticket.table)) == (Attempt(1, 1), None, {0}), "nobody else has come yet"
    assert sent(driven.hear(SOURCE, Loaded(*SOURCE, driven.attempt, NOTHING_LOADED)), Go) == {
        sender(SOURCE): Go(Attempt(1, 1))
    }
    assert driven.describe(SOURCE) == [], "the other stage has not begun"
    driven.hello(COUNT)
    driven.hear(COUNT, Loaded(*COUNT, driven.attempt, NOTHING_LOADED))
    assert driven.describe(COUNT) == [] and driven.cuts == [], "Spark's job is the barrier"
    driven.now_s += 3.0
    asked = driven.tell(BatchWorked(0))
    assert driven.cuts == [Token(1, 1, 1)] and driven.published == [2]
    assert asked.index(BatchAnswer(0, run=True)) > asked.index(driven.all(CutHappened)[0]), "logged, then committed"
    assert not sent(driven.asked, CutOrdered)
    play(driven, 1)
    assert driven.cuts == [Token(1, 1, 1), Token(1, 2, 2)] and answers(driven) == [(0, True)] * 2 + [(1, True)] * 2
    assert driven.all(EndBatch) == [] and driven.all(StopQuery) == []


def test_a_description_may_come_after_the_job_is_done() -> None:
    driven = Driven(PLAN)
    driven.tell(BatchBegins(0, known=False))
    for place in driven.places:
        driven.hello(place)
    token = driven.token
    driven.describe(SOURCE)
    driven.tell(BatchWorked(0))
    assert driven.cuts == []
    asked = driven.describe(COUNT)
    assert driven.cuts == [token] and sent(asked, Logged)


def test_descriptions_that_never_come_end_the_attempt() -> None:
    driven = Driven(PLAN)
    driven.tell(BatchBegins(0, known=False))
    driven.hello(SOURCE)
    driven.hello(COUNT)
    driven.describe(SOURCE)
    driven.later(500.0)
    driven.tell(BatchWorked(0))
    driven.later(59.0)
    assert driven.all(StopQuery) == []
    driven.later(2.0)
    assert driven.all(StopQuery) == [StopQuery()]
    driven.later(0.15)
    assert driven.machine.query == 2 and driven.cuts == []


# with a user's streaming DataFrame a repeated batch is skipped or run, never doubled
@pytest.mark.parametrize(
    ("logged", "known", "runs"),
    [
        (4, True, False),  # Spark did not get to commit what is in the log
        (5, True, False),
        (3, True, True),
        (None, True, True),
        (4, False, True),  # numbers of a query whose checkpoint was temporary mean nothing
    ],
)
def test_a_batch_that_the_log_has_is_skipped(logged: int | None, known: bool, runs: bool) -> None:
    driven = Driven(PLAN, log=log_with_batch(logged), published=2)
    assert driven.tell(BatchBegins(4, known))[-1] == BatchAnswer(4, run=runs)
    if runs:
        work(driven, 4)
        driven.tell(BatchWorked(4))
    assert len(driven.cuts) == 1 + runs
    play(driven, 6, known=known)
    assert len(driven.cuts) == 2 + runs
    entry = driven.log[max(driven.log)]
    assert isinstance(entry, CutEntry) and entry.manifest.batch == (6 if known else None) and entry.manifest.end


def test_a_batch_whose_entry_is_pending_when_its_query_dies_is_skipped_if_it_was_logged() -> None:
    driven = Driven(PLAN)
    driven.held.add(Append)
    play(driven, 0, known=True)
    driven.tell(QueryEnded(1, BOOM))
    driven.later(1.0)
    assert driven.all(StartQuery) == [StartQuery(1)]
    entry = driven.all(Append)[-1]
    driven.held.clear()
    driven.log[entry.number] = entry.entry
    driven.tell(Appended(entry.number))
    driven.later(0.15)
    assert driven.tell(BatchBegins(0, known=True)) == [BatchAnswer(0, run=False)]
    play(driven, 1, known=True)
    assert [token.cut for token in driven.cuts] == [1, 2]


def test_a_failed_batch_is_run_again_from_the_same_base() -> None:
    driven = Driven(PLAN)
    play(driven, 0)
    driven.tell(BatchBegins(1, known=False))
    driven.hello(SOURCE, batch=1)
    driven.describe(SOURCE)
    stale = driven.token
    driven.tell(QueryEnded(1, BOOM))
    driven.later(0.15)
    assert driven.tell(BatchWorked(1)) == [], "of the query that is gone"
    driven.tell(BatchBegins(0, known=False))
    assert driven.attempt == Attempt(1, 3) and driven.token == Token(1, 3, 2)
    assert driven.describe(SOURCE, stale) and sent(driven.asked[-1:], Fenced)
    work(driven, 0)
    driven.tell(BatchWorked(0))
    assert driven.cuts == [Token(1, 1, 1), Token(1, 3, 2)]


def test_a_subtask_of_another_batch_takes_no_part() -> None:
    driven = Driven(PLAN)
    assert sent(driven.hello(SOURCE), Fenced), "no batch has begun"
    driven.tell(BatchBegins(3, known=False))
    assert sent(driven.hello(SOURCE, batch=2), Fenced)
    assert sent(driven.hello(SOURCE, batch=3), Planned)
    assert sent(driven.hear(SOURCE, Loaded(*SOURCE, Attempt(1, 7), NOTHING_LOADED)), Fenced) == {}, (
        "it takes part in this one by now"
    )


# fault plan 3
def test_a_lost_worker_ends_the_attempt_unless_it_has_described_its_work() -> None:
    driven = Driven(PLAN)
    driven.tell(BatchBegins(0, known=False))
    driven.hello(SOURCE)
    driven.describe(SOURCE)
    assert driven.tell(Lost(sender(SOURCE))) == []
    driven.hello(COUNT)
    asked = driven.tell(Lost(sender(COUNT)))
    assert [[hello.place for hello in stop.hung] for stop in asked if isinstance(stop, StopQuery)] == [[COUNT]]


def test_a_stop_comes_after_the_batch_that_runs() -> None:
    driven = Driven(PLAN)
    driven.tell(BatchBegins(0, known=False))
    driven.hello(SOURCE)
    driven.tell(StopAsked())
    assert driven.all(StopQuery) == []
    work(driven, 0)
    driven.tell(BatchWorked(0))
    driven.later(0.15)
    assert driven.finish == Finish("stopped") and driven.cuts == [Token(1, 1, 1)]


@pytest.mark.parametrize("why", ["asked", "seconds"])
def test_a_stop_ends_the_reading_of_a_batch_but_not_its_work(why: str) -> None:
    """A batch of all input may have hours to go: its sources make their cut now, and later stages finish."""
    driven = Driven(counting(mode="batch"), seconds=8.0 if why == "seconds" else None)
    driven.tell(BatchBegins(0, known=False))
    driven.hello(SOURCE)
    driven.later(20.0)
    assert not sent(driven.asked, CutOrdered), "workers start for as long as they need"
    driven.hear(SOURCE, Loaded(*SOURCE, driven.attempt, NOTHING_LOADED))
    driven.later(7.0)
    assert not sent(driven.asked, CutOrdered)
    if why == "asked":
        driven.tell(StopAsked())
    order = CutOrdered(driven.token, True, 0, {}, {})
    assert sent(driven.later(1.5), CutOrdered) == {sender(SOURCE): order}
    assert sent(driven.later(1.5), CutOrdered) == {sender(SOURCE): order}, "the first one may be lost"
    driven.describe(SOURCE, exhausted=False)
    driven.hello(COUNT)
    driven.hear(COUNT, Loaded(*COUNT, driven.attempt, NOTHING_LOADED))
    assert sent(driven.later(1.5), CutOrdered) == {}, "it was made, and later stages have no sources"
    driven.describe(COUNT)
    driven.tell(BatchWorked(0))
    driven.later(0.15)
    assert driven.finish == Finish("stopped") and driven.cuts == [Token(1, 1, 1)]


def test_a_stop_between_two_batches_starts_none() -> None:
    driven = Driven(PLAN, held=[StopQuery])
    play(driven, 0)
    driven.tell(StopAsked())
    assert driven.tell(BatchBegins(1, known=False)) == [BatchAnswer(1, run=False)]
    driven.tell(QueryEnded(1))
    driven.later(0.15)
    assert driven.finish == Finish("stopped")


def test_sources_that_will_read_no_more_end_the_run() -> None:
    driven = Driven(PLAN)
    play(driven, 0, exhausted=False)
    assert driven.all(StopQuery) == []
    play(driven, 1, exhausted=True)
    driven.later(0.15)
    assert driven.finish == Finish("finished") and driven.published == [2, 3]


def test_a_query_is_replaced_between_two_batches() -> None:
    driven = Driven(PLAN)
    driven.tell(BatchBegins(0, known=False))
    driven.tell(RestartAsked("other executors are ready"))
    work(driven, 0)
    driven.tell(BatchWorked(0))
    driven.later(0.15)
    assert driven.machine.query == 2 and driven.machine.retries.restarts == 0
    play(driven, 0)
    assert len(driven.cuts) == 2


def test_a_batch_that_does_not_pass_the_audit_is_not_logged_nor_committed() -> None:
    driven = Driven(PLAN)
    driven.tell(BatchBegins(0, known=False))
    for place in driven.places:
        driven.hello(place)
    driven.describe(SOURCE, sent={0: {0: [5]}})
    driven.describe(COUNT)
    driven.tell(BatchWorked(0))
    assert answers(driven) == [(0, True)] and driven.cuts == [] and driven.all(StopQuery) == [StopQuery()]


# publishing never blocks cuts until a bound, then the job waits visibly
@pytest.mark.parametrize("then", ["taken", "stopped", "failed"])
def test_sinks_that_take_nothing_make_the_next_batch_wait(then: str) -> None:
    driven = Driven(PLAN, held=[Publish])
    for batch in range(120):
        play(driven, batch)
    before = len(answers(driven))
    driven.tell(BatchBegins(120, known=False))
    driven.later(10.0)
    assert len(answers(driven)) == before and len(driven.cuts) == 120
    assert [say.detail for say in driven.all(Say)] == [
        "sinks do not take their results; no further cut is made before they do"
    ]
    match then:
        case "taken":
            driven.tell(Published(2))
            assert answers(driven)[before:] == [(120, True)]
            work(driven, 120)
            driven.tell(BatchWorked(120))
            assert len(driven.cuts) == 121
        case "stopped":
            driven.tell(StopAsked())
            driven.later(40.0)
            driven.later(40.0)
            assert driven.finish == Finish("stopped")
        case "failed":
            driven.tell(QueryEnded(1, BOOM))
            driven.later(10.0)
            driven.tell(Published(2))
            driven.later(0.0)
            assert driven.machine.query == 2 and answers(driven)[before:] == []
