"""The driver's machine while all goes well: it opens the log, begins attempts, makes cuts, and comes to an end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace as replace_field

import pytest
from driven import Driven, counting, kinds, logged_cuts, opened, ordered, sender, sent
from msgspec.structs import replace

from headrace.driver.protocol.events import (
    Append,
    Appended,
    BatchEndAsked,
    Began,
    CutHappened,
    Discard,
    EndBatch,
    LaidOut,
    OrdersGiven,
    QueryEnded,
    ReadLog,
    RestartAsked,
    Say,
    ScheduleGiven,
    StartQuery,
    StopAsked,
    StopQuery,
)
from headrace.driver.protocol.members import Members
from headrace.runtime.messages import (
    Aligned,
    Fenced,
    Go,
    GoOn,
    Hello,
    Inventory,
    Loaded,
    Logged,
    Ordered,
    Planned,
)
from headrace.runtime.orders import NO_ORDERS
from headrace.runtime.ownership import owners
from headrace.runtime.plan import Ticket
from headrace.state.copies.nearest import NOTHING_LOADED
from headrace.state.durable.versionlog import CutEntry
from headrace.tokens import Attempt, Token

A, B = Token(1, 1, 1), Token(1, 1, 2)
SOURCE, COUNT = (0, 0), (1, 0)


# Opening.


ALL = tuple(range(counting(1).slices))


def owners_of(driven: Driven) -> list[tuple[int, ...]]:
    return [owners(table) for table in driven.machine.members.tables]


def test_a_new_log_is_opened_before_anything_else() -> None:
    driven = Driven()
    assert kinds(driven.asked) == ["ReadLog", "Append", "LookUp", "Discard", "Discard", "StartQuery"]
    assert driven.log == {1: opened(1)} and driven.machine.generation == 1
    assert driven.machine.state == "starting"


def test_a_log_with_cuts_is_gone_on_with_and_what_was_not_published_is() -> None:
    driven = Driven(log=logged_cuts(A, B), published=2)
    assert driven.published == [3], "the first one is known as published"
    assert driven.machine.generation == 4 and driven.log[4] == opened(4)
    after_open = driven.asked[driven.asked.index(Append(4, opened(4))) :]
    assert kinds(after_open)[:3] == ["Append", "LookUp", "Discard"], "nothing is published before the log is opened"
    assert driven.all(Discard)[0] == Discard(Attempt(4, 0), frozenset({B})), "what is still to be published stays"
    driven.join()
    assert driven.machine.attempt == Attempt(4, 1)
    planned = sent(driven.asked, Planned)[sender(SOURCE)]
    assert (planned.ticket.base, planned.ticket.entry, planned.ticket.first) == (B, 3, Token(4, 1, 3))


# cuts.md rule 19: on a conflict read again, base included
def test_a_driver_that_comes_second_reads_again() -> None:
    driven = Driven(held=[ReadLog])
    driven.tell(driven.log_read())
    assert driven.log == {1: opened(1)}
    slow = Driven(held=[ReadLog])
    before = slow.log_read()
    slow.log = logged_cuts(A)
    asked = slow.tell(before)
    assert kinds(asked) == ["Append", "ReadEntry", "ReadLog"] and slow.machine.generation == 0
    slow.tell(slow.log_read())
    assert slow.machine.generation == 3 and slow.machine.base is not None and slow.machine.base.manifest.token == A
    assert slow.published == [2]


def test_a_second_answer_to_a_question_that_was_answered_changes_nothing() -> None:
    driven = Driven()
    asked = driven.tell(driven.log_read(), Appended(1), Appended(2))
    assert asked == [] and driven.machine.generation == 1


# Attempts.


def test_an_attempt_runs_from_hello_to_go() -> None:
    driven = Driven()
    assert driven.hello(COUNT) == [] and driven.machine.phase == "joining"
    planned = sent(driven.hello(SOURCE), Planned)
    ticket = Ticket(Attempt(1, 1), None, 0, ALL, (), NO_ORDERS, (), {}, {}, {})
    source = replace(ticket, mine=(0, 1, 2), table=(0,) * len(ALL))
    assert planned == {sender(SOURCE): Planned(1, source), sender(COUNT): Planned(1, ticket)}
    assert driven.hear(COUNT, Loaded(*COUNT, driven.attempt, NOTHING_LOADED)) == []
    asked = driven.hear(SOURCE, Loaded(*SOURCE, driven.attempt, NOTHING_LOADED))
    assert asked[0] == Began() and sent(asked, Go) == {sender(place): Go(Attempt(1, 1)) for place in driven.places}
    assert driven.machine.state == "running"


@pytest.mark.parametrize(("stage", "index"), [(2, 0), (0, 1), (-1, 0), (0, -1)])
def test_a_subtask_that_the_job_does_not_have_takes_no_part(stage: int, index: int) -> None:
    driven = Driven()
    driven.hello(SOURCE)
    asked = driven.hear(SOURCE, Hello(stage, index, 1, 0, None, "here", 1, 2, None, None), by=b"x")
    assert sent(asked, Fenced) == {b"x": Fenced(1, f"the job has no subtask {index} of stage {stage}")}
    assert len(sent(driven.hello(COUNT), Planned)) == 2, "the attempt goes on"
    driven.load()
    driven.report(SOURCE, stage=stage, index=index)
    assert not driven.machine.hearing.newest


def test_subtasks_keep_the_slices_they_hold() -> None:
    members = Members(counting(3))
    base = Token(1, 4, 2)
    held = {0: (base, ALL[2::3]), 1: (Token(1, 3, 2), ALL[1::3]), 2: (base, ALL[2::3])}

    def assigned(active: dict[int, int] | None = None) -> list[int]:
        members.plan_all(Attempt(1, 5), base, 7, replace(NO_ORDERS, active=active or {}))
        return [Counter(members.tables[1][group::3]).most_common(1)[0][0] for group in range(3)]

    for stage in (0, 1):
        for index, inventory in held.items():
            hello = Hello(stage, index, 1, 0, Inventory(*inventory) if stage else None, "here", 1, 2, None, None)
            members.join(sender((stage, index)), hello)
    assert assigned()[2] == 0, "slices stay with who says so first; stale versions do not count"
    assert sorted(Counter(members.tables[1]).values()) == [len(ALL) // 3, len(ALL) // 3, len(ALL) - len(ALL) // 3 * 2]
    members.join(b"", Hello(1, 0, 1, 0, Inventory(base, (len(ALL),)), "here", 1, 2, None, None))
    assert assigned()[2] == 2, "a slice that there is not is nobody's"
    assigned({1: 2})
    assert sorted(Counter(members.tables[1]).values()) == [len(ALL) // 2] * 2, "divided among fewer subtasks"


# chronostream fact 14: what a worker has in memory counts only if it is just the version that the log has
@pytest.mark.parametrize(("version", "owner"), [(B, 1), (A, 0), (Token(2, 1, 2), 0), (Token(1, 2, 2), 0), (None, 0)])
def test_memory_is_used_again_for_exactly_the_newest_cut_only(version: Token | None, owner: int) -> None:
    driven = Driven(counting(2), log=logged_cuts(A, B))
    for place in driven.places:
        driven.hello(place, inventory=Inventory(version, ALL[::2]) if place == (1, 1) else None)
    assert driven.machine.members.tables[1][:2] == ((1, 0) if owner else (0, 1))


# Cuts.


# chronostream fact 20, cuts.md rule 20: a cut is logged when all have described it
def test_a_cut_is_ordered_aligned_described_and_logged() -> None:
    driven = Driven(counting(2)).run()
    assert driven.later(0.9) == [], "not before it is due"
    token = Token(1, 1, 1)
    assert ordered(driven.later(0.2)) == {sender((0, i)): (token, False) for i in (0, 1)}
    for place in driven.places[:-1]:
        assert driven.hear(place, Aligned(*place, token)) == []
    asked = driven.hear((1, 1), Aligned(1, 1, token))
    assert sent(asked, GoOn) == {sender((0, i)): GoOn(token) for i in (0, 1)}
    assert driven.hear((1, 1), Aligned(1, 1, token)) == [], "told once"
    driven.now_s += 0.04
    for place in driven.places[:-1]:
        assert driven.describe(place) == []
    asked = driven.describe((1, 1), counters={"in:n": 7})
    assert kinds(asked)[:2] == ["Append", "LookUp"] and driven.cuts == [token]
    assert sent(asked, Logged) == {sender(place): Logged(token) for place in driven.places}
    (happened,) = [one for one in asked if isinstance(one, CutHappened)]
    assert happened.cut.number == 2 and happened.took_ms == pytest.approx(40)
    assert [d.counters for d in happened.descriptions].count({"in:n": 7}) == 1
    assert driven.published == [2] and driven.machine.logged_cuts == 1


# cuts.md rule 1: n+1 is ordered when n is logged
def test_one_cut_is_in_flight() -> None:
    driven = Driven(held=[Append])
    driven.tell(Appended(1))
    driven.run().later(1.1)
    driven.describe_all()
    assert ordered(driven.later(5.0)) == {}, "its entry is being written"
    driven.held.clear()
    entry = driven.all(Append)[-1]
    driven.log[entry.number] = entry.entry
    asked = driven.tell(Appended(entry.number))
    assert ordered(asked) == {sender(SOURCE): (Token(1, 1, 2), False)}


def test_cuts_follow_each_other() -> None:
    driven = Driven().run()
    for _ in range(3):
        driven.cut()
    assert driven.cuts == [Token(1, 1, n) for n in (1, 2, 3)] and driven.published == [2, 3, 4]
    entries = [entry.manifest for entry in driven.log.values() if isinstance(entry, CutEntry)]
    assert [entry.base for entry in entries] == [None, Token(1, 1, 1), Token(1, 1, 2)]


def test_an_order_is_repeated_to_those_who_do_not_have_it() -> None:
    driven = Driven(counting(2)).run()
    driven.later(1.1)
    driven.hear((0, 1), Aligned(0, 1, driven.token))
    assert driven.later(0.9) == []
    assert ordered(driven.later(0.2)) == {sender((0, 0)): (driven.token, False)}
    assert driven.later(0.9) == [] and driven.later(0.2) != []


def test_a_description_that_comes_again_is_answered_and_changes_nothing() -> None:
    driven = Driven().run()
    driven.later(1.1)
    token = driven.token
    driven.describe(SOURCE, counters={"first": 1})
    assert driven.describe(SOURCE, counters={"second": 1}) == []
    driven.describe(COUNT)
    assert driven.all(CutHappened)[0].descriptions[0].counters == {"first": 1}
    before = dict(driven.log)
    assert driven.describe(COUNT, token) and sent(driven.asked[-1:], Logged) == {sender(COUNT): Logged(token)}
    assert driven.log == before


def test_cuts_that_hold_records_up_for_long_are_fewer() -> None:
    driven = Driven().run()
    driven.later(1.1)
    driven.describe_all(aligned_ms=90.0)
    assert driven.machine.pace.interval_s == pytest.approx(3.0), "3 % of the time"
    driven.later(2.9)
    assert driven.machine.cut is None
    driven.later(0.2)
    driven.describe_all(aligned_ms=60_000.0)
    driven.cut(aligned_ms=60_000.0)
    assert driven.machine.pace.interval_s == 10.0, "but not for ever"


def test_cuts_that_write_much_are_fewer_at_once() -> None:
    driven = Driven().run()
    driven.later(1.1)
    driven.describe_all(worked_ms=200.0)
    assert driven.machine.pace.interval_s == pytest.approx(4.0), "5 % of a core"
    driven.later(4.1)
    driven.describe_all(worked_ms=10.0)
    assert driven.machine.pace.interval_s == 1.0
    promised = Driven(counting(recovery="5 s")).run()
    promised.cut(worked_ms=60_000.0)
    assert promised.machine.pace.interval_s == 2.5, "two intervals are what a failure repeats"


# chronostream fact 33: zombie messages change nothing; cuts.md: a message with another (g, a) is dropped
def test_messages_of_another_attempt_change_nothing() -> None:
    driven = Driven(counting(2)).run()
    driven.later(1.1)
    token, gone = driven.token, Token(1, 0, 1)
    for place in driven.places[:-1]:
        driven.describe(place)
    before = repr(driven.machine.cut)
    for stale in (gone, Token(2, 1, 1), Token(1, 1, 2), Token(1, 2, 1)):
        driven.describe((1, 1), stale)
        driven.hear((1, 1), Aligned(1, 1, stale))
        driven.hear((1, 1), Loaded(1, 1, stale.by, NOTHING_LOADED))
        if stale.by != driven.attempt:
            driven.report((0, 0), exhausted=True, attempt=stale.by)
    for old in (0, 2, 7):
        assert sent(driven.hello((1, 1), query=old), Fenced), "of another query"
    stranger = driven.hear((1, 1), Loaded(1, 1, token.by, NOTHING_LOADED), by=b"x")
    assert sent(stranger, Fenced).keys() == {b"x"}, "not who said HELLO"
    assert repr(driven.machine.cut) == before and not driven.machine.hearing.newest and driven.cuts == []
    assert driven.machine.phase == "running" and driven.all(StopQuery) == []
    driven.describe((1, 1), token)
    assert driven.cuts == [token]


def test_orders_are_told_to_who_runs_and_to_who_comes_later() -> None:
    driven = Driven().run()
    orders = replace(NO_ORDERS, version=3, deadlines_us={(0, 0): 50})
    told = Ordered(driven.attempt, orders)
    assert sent(driven.tell(OrdersGiven(orders)), Ordered) == {sender(place): told for place in driven.places}
    driven.tell(ScheduleGiven("odf"))
    driven.tell(OrdersGiven(replace(orders, version=4)))
    driven.tell(BatchEndAsked("why not"))
    driven.cut()
    driven.join(batch=1)
    ticket = sent(driven.asked, Planned)[sender(SOURCE)].ticket
    assert ticket.orders == replace(orders, version=4, schedule="odf"), "a schedule stays until another is given"


# Ends.


def test_exhausted_sources_end_the_run() -> None:
    driven = Driven(counting(2)).run()
    driven.report((0, 0), exhausted=True)
    driven.report((0, 1))
    assert driven.machine.cut is None
    assert ordered(driven.report((0, 1), exhausted=True)) == {sender((0, i)): (Token(1, 1, 1), True) for i in (0, 1)}
    asked = driven.describe_all(exhausted=True)
    assert driven.all(StopQuery) == [StopQuery()] and sent(asked, Logged)
    driven.later(0.2)
    assert driven.finish is not None and driven.finish.state == "finished" and driven.finish.error is None
    entry = driven.log[2]
    assert isinstance(entry, CutEntry) and entry.manifest.exhausted and entry.manifest.end
    assert driven.published == [2] and kinds(driven.asked)[-2:] == ["Discard", "Finish"]


def test_sources_that_had_more_after_all_go_on() -> None:
    driven = Driven().run()
    driven.report(SOURCE, exhausted=True)
    asked = driven.describe_all(exhausted=False)
    assert EndBatch() in asked and not driven.machine.finished
    driven.run(batch=1)
    assert driven.machine.attempt == Attempt(1, 2) and driven.finish is None


def test_a_run_has_its_seconds_from_the_first_go_on() -> None:
    driven = Driven(seconds=10.0)
    driven.later(100.0)
    driven.run()
    driven.cut()
    driven.later(8.0)
    assert not driven.machine.stopping
    if driven.machine.cut is not None:
        driven.describe_all()
    asked = driven.later(1.5)
    assert [end for _, end in ordered(asked).values()] == [True]
    driven.describe_all()
    driven.later(0.2)
    assert driven.finish is not None and driven.finish.state == "stopped"


def test_a_batch_ends_at_a_cut_and_the_next_one_begins_there() -> None:
    driven = Driven().run()
    asked = driven.tell(BatchEndAsked("a step shall grow"))
    assert Say("border", "a step shall grow") in asked
    assert ordered(asked)[sender(SOURCE)][1]
    assert driven.tell(BatchEndAsked("again")) == [], "once is enough"
    asked = driven.describe_all()
    assert asked.index(EndBatch()) > asked.index(driven.all(CutHappened)[0]) and driven.all(StopQuery) == []
    driven.run(batch=1)
    ticket = sent(driven.asked, Planned)[sender(COUNT)].ticket
    assert ticket.first == Token(1, 2, 2) and ticket.base == Token(1, 1, 1)
    assert not driven.machine.stopping and driven.all(StartQuery) == [StartQuery(1)]
    assert driven.later(0.5) == [] and driven.machine.cut is None, "the next end is not asked for yet"


# chronostream §6(e): a restart with other subtasks waits for a cut, and cuts nothing short
def test_a_query_is_replaced_at_a_cut_without_a_wait() -> None:
    driven = Driven().run()
    driven.tell(BatchEndAsked("first"))
    asked = driven.tell(RestartAsked("other executors are ready"))
    assert Say("border", "other executors are ready") in asked, "more than a batch's end"
    asked = driven.describe_all()
    assert StopQuery() in asked and EndBatch() not in asked
    asked = driven.later(0.15)
    assert StartQuery(2) in asked and driven.machine.retries.restarts == 0, "on purpose"
    assert [say.what for say in driven.all(Say) if say.loud] == []
    assert sent(driven.hello(SOURCE, query=1), Fenced), "the old query's workers are not wanted"
    driven.run()
    assert driven.attempt == Attempt(1, 2)


def test_a_query_that_is_to_be_replaced_before_it_runs_is_replaced_at_once() -> None:
    driven = Driven()
    driven.hello(SOURCE)
    assert driven.tell(RestartAsked("executors have come"))[-1] == StopQuery()
    assert StartQuery(2) in driven.later(0.15)


def test_the_job_goes_on_with_other_subtasks_from_the_next_query_on() -> None:
    driven = Driven(counting(2)).run()
    driven.cut()
    driven.tell(RestartAsked("one executor is left"))
    driven.describe_all()
    driven.later(0.15)
    driven.plan = counting(1)
    driven.tell(LaidOut(driven.plan))
    driven.run()
    driven.cut()
    assert owners_of(driven) == [(0,), (0,)] and len(driven.cuts) == 3
    driven.report(SOURCE, exhausted=True)
    assert driven.machine.cut is not None and driven.machine.cut.end, "all of one source"


def test_a_batch_ends_early_only_for_a_keyed_step_that_cannot_grow_at_a_cut() -> None:
    plan = counting(2)
    driven = Driven(plan)
    driven.tell(OrdersGiven(replace(NO_ORDERS, active={1: 1})))
    driven.run()
    assert owners_of(driven) == [(0, 1), (0,)]
    driven.machine.moving = replace_field(driven.machine.moving, stages=frozenset())  # as with a memory bound
    for orders, grows in (({0: 1, 1: 1}, False), ({1: 1}, False), ({1: 2}, True), ({}, True)):
        assert driven.machine.members.grows(replace(NO_ORDERS, active=orders), frozenset()) == grows
    driven.tell(OrdersGiven(NO_ORDERS))
    driven.cut()
    assert driven.all(EndBatch) == [], "not so soon: each growth is a stop"
    while not driven.all(EndBatch) and driven.now_s < 120:
        driven.cut()
    driven.run(batch=1)
    assert owners_of(driven) == [(0, 1), (0, 1)]
    assert 5.0 <= driven.now_s - 100.0 < 7.0


def test_a_batch_is_not_left_to_spark_to_end() -> None:
    driven = Driven().run()
    driven.now_s += 23 * 3600
    driven.cut()
    assert driven.all(StopQuery) == [StopQuery()] and driven.all(EndBatch) == []


@pytest.mark.parametrize("when", ["opening", "joining", "loading", "running", "cutting", "logging", "between"])
def test_a_stop_ends_the_run_in_every_phase(when: str) -> None:
    driven = Driven(held=[ReadLog] if when == "opening" else [])
    match when:
        case "joining":
            driven.hello(SOURCE)
        case "loading":
            driven.join()
        case "running" | "cutting" | "logging" | "between":
            driven.run()
            driven.cut()
    if when in ("cutting", "logging"):
        driven.now_s = driven.machine.pace.due_s
        driven.later(0.0)
    if when == "logging":
        driven.held.add(Append)
        driven.describe_all()
    if when == "between":
        for query in (1, 2):
            driven.tell(QueryEnded(query, RuntimeError("boom")))
            driven.later(0.2)
        assert driven.machine.phase == "between", "the second restart waits"
    driven.tell(StopAsked())
    if when == "logging":
        entry = driven.all(Append)[-1]
        driven.held.clear()
        driven.log[entry.number] = entry.entry
        driven.tell(Appended(entry.number))
    if when == "cutting":
        driven.describe_all()
    if when in ("running", "cutting", "logging"):
        assert driven.machine.cut is not None and driven.machine.cut.end, "after one more cut"
        driven.describe_all()
    driven.later(0.2)
    assert driven.finish is not None and (driven.finish.state, driven.finish.error) == ("stopped", None)
    assert driven.published == sorted(n for n, entry in driven.log.items() if isinstance(entry, CutEntry))
    assert driven.later(10.0) == [], "over is over"


def test_who_is_superseded_is_told_by_the_number_of_its_own_query() -> None:
    driven = Driven()
    for query in (1, 2, 3):
        driven.run()
        driven.tell(RestartAsked(f"the end of query {query}"))
        driven.describe_all()
        driven.later(0.2)
    driven.run()
    for attempt, query in ((1, 1), (2, 2), (3, 3)):
        asked = driven.hear(COUNT, Loaded(*COUNT, Attempt(1, attempt), NOTHING_LOADED), by=b"x")
        assert sent(asked, Fenced) == {b"x": Fenced(query, "a newer attempt has begun")}


# cuts.md rule 25: what was closed anywhere stays closed
def test_a_version_has_how_far_edges_have_come_by_their_names() -> None:
    driven = Driven(counting(2)).run()
    driven.later(1.1)
    token = driven.token
    for place, reached in zip(driven.places, ({}, {}, {"s → n:0": 7}, {"s → n:0": 5})):
        driven.describe(place, token, reached=reached)
    assert driven.machine.base is not None and driven.machine.base.manifest.watermarks == {"s → n:0": 7}
