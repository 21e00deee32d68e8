"""The driver's machine when something goes wrong: who is told, what is tried again, and when it is over."""

from __future__ import annotations

import pytest
from driven import Driven, counting, kinds, logged_cuts, opened, ordered, sender, sent
from msgspec.structs import replace

from headrace.driver.protocol.events import (
    Append,
    Appended,
    AppendFailed,
    Discard,
    EntryRead,
    Finish,
    LogUnreadable,
    LookUp,
    Lost,
    NewestSeen,
    Publish,
    Published,
    PublishFailed,
    QueryEnded,
    ReadEntry,
    ReadLog,
    Say,
    StartQuery,
    StopAsked,
    StopQuery,
)
from headrace.errors import CorruptionError, FencedError, HeadraceError, ProtocolError, RunFailedError, UserCodeError
from headrace.runtime.messages import Failed, Fenced, Hello, Logged, Planned
from headrace.state.durable.segments import BlockRef, StoredChange
from headrace.tokens import Attempt, Token

SOURCE, COUNT = (0, 0), (1, 0)
BOOM = RuntimeError("boom")


def loud(driven: Driven) -> list[str]:
    return [say.detail for say in driven.all(Say) if say.loud]


# Queries.


def test_a_query_that_fails_goes_on_from_the_last_cut_at_once() -> None:
    driven = Driven().run()
    driven.cut()
    driven.later(1.1)
    unlogged = driven.token
    driven.describe(SOURCE)
    driven.tell(QueryEnded(1, BOOM))
    assert driven.machine.state == "restarting" and driven.all(StopQuery) == [], "it has ended by itself"
    assert driven.later(0.05) == [], "last words may be on their way"
    asked = driven.later(0.06)
    assert kinds(asked) == ["Say", "LookUp", "Discard", "StartQuery"] and driven.machine.retries.restarts == 1
    assert asked[-2] == Discard(Attempt(1, 1), frozenset()), "what the attempt staged and nobody logged goes"
    assert loud(driven) == ["boom; going on from the last cut"]
    driven.run()
    ticket = sent(driven.asked, Planned)[sender(SOURCE)].ticket
    assert (ticket.attempt, ticket.base) == (Attempt(1, 2), Token(1, 1, 1)) and ticket.first == Token(1, 2, 2)
    driven.cut()
    assert unlogged not in driven.cuts and driven.cuts == [Token(1, 1, 1), Token(1, 2, 2)]


def test_without_a_jvm_nothing_is_tried_again() -> None:
    driven = Driven().run()
    driven.tell(QueryEnded(1, ConnectionRefusedError(111, "Connection refused")))
    driven.later(0.2)
    assert driven.finish is not None and driven.finish.state == "failed"
    assert "Spark's JVM is gone" in str(driven.finish.error) and driven.all(StartQuery) == [StartQuery(1)]


def test_later_failures_without_a_cut_in_between_wait_longer_and_longer() -> None:
    driven, waits = Driven(), []
    for query in range(1, 10):
        driven.tell(QueryEnded(query, BOOM))
        failed_s = driven.now_s
        while driven.machine.query == query:
            driven.later(0.05)
        waits.append(driven.now_s - failed_s)
    assert waits == pytest.approx([0.1, 0.6, 1.1, 2.1, 4.1, 8.1, 16.1, 30.1, 30.1], abs=0.11)
    driven.run()
    driven.cut()
    driven.tell(QueryEnded(10, BOOM))
    driven.later(0.15)
    assert driven.machine.query == 11, "a cut was logged: the next failure is a first one"


# the budget is the time since the last version
def test_a_job_that_makes_no_cut_for_long_is_given_up() -> None:
    driven = Driven(counting(give_up="60 s")).run()
    driven.cut()
    logged_s = driven.now_s
    while driven.finish is None:
        driven.tell(QueryEnded(driven.machine.query, BOOM))
        driven.later(0.15)
        driven.later(1.0)
    assert 60.0 < driven.now_s - logged_s < 100.0
    error = driven.finish.error
    assert (
        driven.finish.state == "failed" and isinstance(error, RunFailedError) and isinstance(error.__cause__, Exception)
    )
    assert "no cut was made for" in str(error) and "boom" in str(error)


def test_a_job_that_makes_cuts_is_never_given_up() -> None:
    driven = Driven(counting(give_up="60 s"))
    for query in range(1, 20):
        driven.run()
        driven.later(29.0)
        driven.cut()
        driven.tell(QueryEnded(query, BOOM))
        driven.later(0.15)
    assert driven.finish is None and driven.machine.retries.restarts == 19


@pytest.mark.parametrize("told_first", [True, False])
def test_what_a_restart_cannot_mend_is_not_tried_again(told_first: bool) -> None:
    driven = Driven().run()
    words = Failed.of(UserCodeError("step", "record", "line", "cause"), 1, COUNT)
    if told_first:
        driven.hear(COUNT, words)
    driven.tell(QueryEnded(1, BOOM))
    if not told_first:
        driven.hear(COUNT, words)
    driven.later(0.15)
    assert driven.finish is not None and isinstance(driven.finish.error, UserCodeError)
    assert driven.all(StartQuery) == [StartQuery(1)] and driven.later(60.0) == []


def test_words_of_an_earlier_query_are_not_this_ones() -> None:
    driven = Driven().run()
    driven.hear(COUNT, Failed.of(CorruptionError("block x"), 0, COUNT))
    driven.tell(QueryEnded(0, BOOM), QueryEnded(7, BOOM))
    assert driven.machine.phase == "running"
    driven.tell(QueryEnded(1, BOOM))
    driven.later(0.15)
    assert driven.machine.query == 2


def test_a_query_that_ends_by_itself_without_a_word_is_a_failure() -> None:
    driven = Driven().run()
    driven.tell(QueryEnded(1))
    driven.later(0.15)
    assert loud(driven) == ["the query ended without saying why; going on from the last cut"]


@pytest.mark.parametrize("first", ["stop", "failure"])
def test_a_stop_ends_as_stopped_although_the_query_failed_meanwhile(first: str) -> None:
    driven = Driven().run()
    driven.cut()
    for event in (StopAsked(), QueryEnded(1, BOOM))[:: 1 if first == "stop" else -1]:
        driven.tell(event)
    driven.later(0.15)
    assert driven.finish == Finish("stopped") and driven.all(StartQuery) == [StartQuery(1)]
    assert loud(driven) == ["boom; stopped as of the last cut"]


def test_a_failure_that_a_restart_cannot_mend_is_told_also_while_stopping() -> None:
    driven = Driven().run()
    driven.tell(StopAsked())
    driven.hear(COUNT, Failed.of(UserCodeError("step", "record", "line", "cause"), 1, COUNT))
    driven.tell(QueryEnded(1, BOOM))
    driven.later(0.15)
    assert driven.finish is not None and driven.finish.state == "failed"
    assert isinstance(driven.finish.error, UserCodeError)


# Workers.


# fault plan 3
@pytest.mark.parametrize(
    ("phase", "member", "ends"),
    [
        ("joining", True, True),
        ("loading", True, True),
        ("running", True, True),
        ("cutting", True, True),  # after its DESC it still has to go on
        ("joining again", True, True),  # the next batch waits for its HELLO
        ("running again", False, False),  # an idle worker that nobody waits for
    ],
)
def test_a_lost_worker_ends_the_attempt_while_it_is_needed(phase: str, member: bool, ends: bool) -> None:
    driven, by = Driven(), sender(COUNT)
    driven.hello(COUNT)
    if phase != "joining":
        driven.hello(SOURCE)
    if phase not in ("joining", "loading"):
        driven.load()
    if phase == "cutting":
        driven.later(1.1)
        driven.describe(COUNT)
    if phase.endswith("again"):
        driven.machine._next = "batch"
        driven.cut()
        assert driven.machine.phase == "joining"
    if phase == "running again":
        driven.hear(COUNT, Hello(*COUNT, 1, 1, None, "here", 1, 3, None, None), by=b"another")
        driven.hello(SOURCE, batch=1)
    assert driven.tell(Lost(b"a stranger")) == []
    asked = driven.tell(Lost(by))
    assert [len(stop.hung) for stop in asked if isinstance(stop, StopQuery)] == ([1] if ends else [])
    if ends:
        driven.later(0.15)
        assert loud(driven)[0].startswith(
            "a worker gave no sign of life for 5 s: it hangs or is gone (stage 1, subtask 0)"
        )
        assert driven.machine.query == 2
        assert driven.tell(Lost(by)) == [], "the last query's worker"


def test_a_hung_worker_is_named_to_who_kills_it() -> None:
    driven = Driven().run()
    asked = driven.tell(Lost(sender(COUNT)))
    (stop,) = [one for one in asked if isinstance(one, StopQuery)]
    assert stop.hung == (Hello(*COUNT, 1, 0, None, "here", 1, 2, None, None),)
    assert driven.tell(Lost(sender(SOURCE))) == [], "it is being stopped already"


# chronostream fact 20: what was sent was consumed, or the cut is not logged
def test_a_cut_that_the_audit_does_not_pass_is_not_logged() -> None:
    driven = Driven().run()
    driven.later(1.1)
    driven.describe(SOURCE, sent={0: {0: [5]}})
    asked = driven.describe(COUNT, consumed={0: {0: [4]}})
    why = "edge 0, sender 0: 5 items sent, 1 not consumed"
    assert sent(asked, Fenced) == {sender(place): Fenced(1, why) for place in driven.places}
    assert driven.cuts == [] and driven.all(Append) == [Append(1, opened(1))]
    driven.later(0.15)
    assert loud(driven) == [f"{why}; going on from the last cut"] and driven.machine.query == 2
    driven.run()
    driven.cut()
    assert driven.cuts == [Token(1, 2, 1)]


# cuts.md, audit: the parent digest of each block is the digest in the manifest before
def test_a_change_of_another_state_is_not_logged() -> None:
    driven = Driven().run()
    block = BlockRef("segments/x", 0, 1, "", 1, full=False)
    driven.cut(changes=())
    driven.later(1.1)
    driven.describe(SOURCE)
    driven.describe(COUNT, changes=(StoredChange("n", 0, (7, 7), (8, 8), block),))
    assert driven.cuts == [Token(1, 1, 1)] and driven.all(StopQuery) == [StopQuery()]


def test_who_begins_anew_while_others_run_ends_the_attempt() -> None:
    driven = Driven().run()
    asked = driven.hello(COUNT)
    assert StopQuery() in asked and "subtask (1, 0) began anew" in sent(asked, Fenced)[sender(SOURCE)].why


# Storage.


# chronostream fact 18, cuts.md rule 17: another's entry has the number
def test_a_driver_that_finds_anothers_entry_stops_and_touches_nothing_more() -> None:
    driven = Driven(log=logged_cuts(Token(1, 1, 1)), published=2).run()
    driven.log[4] = opened(4, pid=7)
    before = len(driven.all(Discard))
    asked = driven.cut()
    assert sent(asked, Logged) == {} and len(sent(asked, Fenced)) == 2
    driven.later(0.15)
    assert driven.finish is not None and isinstance(driven.finish.error, FencedError)
    assert driven.log[4] == opened(4, pid=7) and driven.published == [] and len(driven.all(Discard)) == before
    assert len(driven.all(StartQuery)) == 1


# cuts.md rule 18: numbers that were cleared away can be taken twice
def test_a_driver_that_finds_a_higher_number_after_its_own_is_fenced() -> None:
    driven = Driven().run()
    driven.log[9] = opened(9, pid=7)
    asked = driven.cut()
    assert sent(asked, Logged) == {} and driven.published == []
    driven.later(0.15)
    assert driven.finish is not None and isinstance(driven.finish.error, FencedError)


# cuts.md rule 22: the log is looked at before a new attempt
def test_a_driver_that_was_replaced_while_its_query_was_down_starts_none() -> None:
    driven = Driven().run()
    driven.tell(QueryEnded(1, BOOM))
    driven.log[2] = opened(2, pid=7)
    driven.later(0.15)
    assert driven.finish is not None and isinstance(driven.finish.error, FencedError)
    assert driven.all(StartQuery) == [StartQuery(1)]


# cuts.md rule 22: the outcome of a pending append is known before a new attempt
@pytest.mark.parametrize("happened", [True, False])
def test_a_new_attempt_waits_for_the_outcome_of_the_last_append(happened: bool) -> None:
    driven = Driven().run()
    driven.held |= {Append, ReadEntry}
    driven.cut()
    entry = driven.all(Append)[-1]
    driven.tell(QueryEnded(1, BOOM))
    driven.later(10.0)
    assert driven.all(StartQuery) == [StartQuery(1)]
    if happened:
        driven.log[2] = entry.entry
    driven.held.clear()
    asked = driven.tell(AppendFailed(2, "no answer"))
    driven.later(0.15)
    assert driven.cuts == [Token(1, 1, 1)], "the same entry, now or before"
    assert asked[0] == ReadEntry(2) and driven.published == [2]
    driven.later(0.15)
    driven.run()
    assert sent(driven.asked, Planned)[sender(SOURCE)].ticket.base == Token(1, 1, 1)


# an OSError while logging was swallowed, and replies to others were dropped
def test_a_disk_that_is_away_is_waited_for_and_told_once() -> None:
    driven = Driven(counting(2)).run()
    driven.held.add(Append)
    driven.cut()
    driven.held.add(ReadEntry)
    driven.tell(AppendFailed(2, "No space left on device"))
    for _ in range(5):
        driven.tell(LogUnreadable("No space left on device"))
        driven.later(6.0)
        assert driven.machine.phase == "running" and driven.all(StopQuery) == []
    assert loud(driven) == ["the checkpoint cannot be used for now: No space left on device"]
    driven.held.clear()
    driven.tell(EntryRead(2, None))
    asked = driven.later(10.0)
    assert driven.cuts == [Token(1, 1, 1)]
    assert sent(asked, Logged).keys() == {sender(place) for place in driven.places}, "all hear of it"
    driven.cut()
    assert driven.cuts == [Token(1, 1, 1), Token(1, 1, 2)] and driven.published == [2, 3]


def test_a_log_that_cannot_be_read_at_the_start_is_read_again_after_a_while() -> None:
    driven = Driven(held=[ReadLog])
    for _ in range(3):
        assert driven.tell(LogUnreadable("the disk is away"))[1:] == []
        assert driven.later(0.05) == [], "not at once, again and again"
        assert driven.later(10.0) == [ReadLog()]
    assert loud(driven) == ["the checkpoint cannot be used for now: the disk is away"]
    driven.held.clear()
    driven.tell(driven.log_read())
    assert driven.machine.generation == 1


CORRUPT = CorruptionError("entry 2 of the version log has changed")


@pytest.mark.parametrize("asked", [ReadLog, ReadEntry, LookUp])
def test_a_damaged_log_ends_the_run_whatever_was_asked_for(asked: type) -> None:
    driven = Driven(held=[ReadLog]) if asked is ReadLog else Driven().run()
    if asked is not ReadLog:
        driven.held |= {Append, ReadEntry, LookUp}
        driven.cut()
        driven.tell(AppendFailed(2, "no answer") if asked is ReadEntry else Appended(2))
    assert isinstance(driven.asked[-1], asked)
    driven.tell(LogUnreadable(str(CORRUPT), CORRUPT))
    driven.later(0.15)
    assert driven.finish == Finish("failed", CORRUPT)
    if asked is not ReadLog:
        assert driven.all(Discard)[-1].upto == Attempt(1, 0), "what may be in the log has not been cleared away"


def test_a_stop_does_not_wait_for_ever_for_a_disk_that_is_away() -> None:
    driven = Driven().run()
    driven.held |= {Append, ReadEntry}
    driven.cut()
    driven.tell(AppendFailed(2, "the disk is away"), StopAsked())
    driven.tell(QueryEnded(1, BOOM))
    for _ in range(10):
        driven.later(2.0)
    assert driven.finish is None
    for _ in range(10):
        driven.later(2.0)
    assert driven.finish is not None
    assert driven.all(Discard)[-1].upto == Attempt(1, 0), "what may be in the log has not been cleared away"


# Results.


# a publish that failed once lost the output for ever
def test_a_publication_that_fails_is_tried_until_it_has_happened_and_delays_no_cut() -> None:
    driven = Driven(held=[Publish]).run()
    for _ in range(3):
        driven.cut()
        driven.tell(PublishFailed(2, HeadraceError("the sink is away")))
    assert len(driven.cuts) == 3 and {publish.cut.number for publish in driven.all(Publish)} == {2}
    assert loud(driven) == ["results cannot be made visible yet, trying on: the sink is away"]
    driven.later(10.0)
    driven.held.clear()
    asked = driven.tell(Published(2))
    assert Say("published", "results are visible again") in asked and driven.published == [3, 4]


def test_a_crowd_of_unpublished_cuts_makes_the_job_wait_and_say_so() -> None:
    driven = Driven(held=[Publish]).run()
    for _ in range(120):
        driven.cut()
    assert ordered(driven.later(10.0)) == {}
    assert loud(driven) == ["sinks do not take their results; no further cut is made before they do"]
    driven.tell(Published(2))
    assert driven.machine.cut is not None


def test_a_query_does_not_start_before_sinks_take_what_waits() -> None:
    driven = Driven(held=[Publish]).run()
    for _ in range(120):
        driven.cut()
    driven.tell(QueryEnded(1, BOOM))
    driven.later(5.0)
    assert driven.machine.query == 1
    driven.tell(Published(2))
    driven.later(0.0)
    assert driven.machine.query == 2


def test_a_stop_does_not_wait_for_sinks_that_take_nothing() -> None:
    driven = Driven(held=[Publish]).run()
    for _ in range(120):
        driven.cut()
    driven.tell(StopAsked())
    driven.later(1.0)
    assert driven.all(StopQuery) == [StopQuery()], "no further cut can be made"
    driven.later(25.0)
    assert driven.finish is None, "they have half a minute"
    driven.later(10.0)
    assert driven.finish == Finish("stopped")
    assert len(driven.all(Discard)[-1].logged) == 120, "the next start publishes them"


def test_a_run_that_has_come_to_its_end_waits_for_its_sinks() -> None:
    driven = Driven(held=[Publish]).run()
    driven.report(SOURCE, exhausted=True)
    driven.describe_all(exhausted=True)
    driven.tell(PublishFailed(2, HeadraceError("the sink is away")))
    driven.later(5.0)
    assert driven.finish is None
    driven.tell(Published(2))
    assert driven.finish == Finish("finished")


@pytest.mark.parametrize("finished", [True, False])
def test_results_that_are_damaged_end_the_run(finished: bool) -> None:
    driven = Driven(held=[Publish]).run()
    if finished:
        driven.report(SOURCE, exhausted=True)
        driven.describe_all(exhausted=True)
    else:
        driven.cut()
    damaged = CorruptionError("staged file x has changed")
    driven.tell(PublishFailed(2, damaged, final=True))
    driven.later(0.15)
    assert driven.finish == Finish("failed", damaged)


def test_what_sinks_took_after_the_end_counts() -> None:
    driven = Driven(held=[Publish]).run()
    driven.cut()
    driven.tell(QueryEnded(1, CORRUPT))
    driven.later(0.15)
    assert driven.finish is not None and driven.finish.error is CORRUPT
    assert driven.tell(Published(2)) == [] and not driven.machine.publications.waiting
    assert driven.tell(NewestSeen(2)) == []


def test_a_protocol_error_after_the_last_cut_is_no_failure() -> None:
    driven = Driven(held=[StopQuery]).run()
    driven.report(SOURCE, exhausted=True)
    driven.describe_all(exhausted=True)
    driven.hear(COUNT, Failed.of(ProtocolError("the input broke off"), 1, COUNT))
    driven.tell(QueryEnded(1, BOOM))
    driven.later(0.15)
    assert driven.finish == Finish("finished")


def test_a_subtask_of_a_query_that_is_being_stopped_is_sent_away() -> None:
    driven = Driven(held=[StopQuery]).run()
    driven.tell(Lost(sender(COUNT)))
    assert sent(driven.hello(SOURCE), Fenced) and driven.machine.phase == "stopping"
    hello = Hello(*SOURCE, 1, 0, None, "here", 1, 2, None, None)
    assert sent(driven.hear(SOURCE, replace(hello, batch=1)), Fenced)
