"""A subtask at its cuts: what it takes before them and after, whoever sends it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from onesubtask import ATTEMPT, KEYS, Working, both, consumed, counting, planned, totals

import headrace as hr
from headrace.driver.protocol.audit import audit
from headrace.errors import FencedError, ProtocolError
from headrace.graph.windowing import FOREVER_US
from headrace.runtime.messages import Aligned, CutOrdered, Fenced
from headrace.runtime.wire.frames import Kind, decode
from headrace.testing import scripted
from headrace.tokens import Attempt


# cuts.md rules 3 and 4: data of a sender that has marked waits for the others
def test_what_is_behind_a_mark_waits_until_every_sender_has_marked(tmp_path: Path) -> None:
    plan = counting(tmp_path)
    one, other = both(plan)
    with Working(plan, 1) as working:
        before, behind = one.send(KEYS)[0], one.mark(1)
        working.take([*before, *behind, *one.send(KEYS)[0], *other.send(KEYS)[0]])
        mine = len(next(decode(before[0])).counts)
        assert mine
        working.a_while()
        assert not working.driver.heard(Aligned), "one sender has not marked"
        working.take(other.mark(1))
        first = working.description(1)
        working.take([*one.mark(2), *other.mark(2)])
        second = working.description(2)
    items = consumed(first)
    assert items[0] == items[1] > 0 and consumed(second) == {0: items[0]}
    assert set(totals(plan, first).values()) == {2} and set(totals(plan, first, second).values()) == {3}
    assert [first.token, second.token] == [ATTEMPT.cut(1), ATTEMPT.cut(2)]


# cuts.md rule 3: punctuations wait too
def test_a_watermark_behind_a_mark_closes_nothing_before_the_cut(tmp_path: Path) -> None:
    job = hr.Job("windows")
    read = job.source("read", scripted(KEYS, KEYS, schema={"k": "int64", "v": "int64", "t": "int64"}), event_time="t")
    read.key_by("k").window(hr.tumbling("1 s")).reduce(name="count", n=hr.sum("v")).sink("out", hr.callback(print))
    plan = planned(job, tmp_path)
    one, other = both(plan)
    with Working(plan, 1) as working:
        other.writers[0].watermark(0, FOREVER_US)
        working.take([*one.send([{**key, "t": 0} for key in KEYS])[0], *one.mark(1)])
        one.writers[0].watermark(0, FOREVER_US)
        working.take([*one.flush()[0], *other.flush()[0]])
        working.a_while()
        working.take(other.mark(1))
        first = working.description(1)
        working.take([*one.mark(2), *other.mark(2)])
        second = working.description(2)
    edge = one.writers[0].edge.id
    assert first.counters["out:count"] == 0 and second.counters["out:count"] > 0
    assert first.watermarks[edge] < 0 and second.watermarks[edge] == FOREVER_US
    assert first.staged == () and [staged.step for staged in second.staged] == ["out"]


# cuts.md rule 3: reading never stops, or the mark that is missing never comes
@pytest.mark.parametrize("held_bytes", [10**9, 500])
def test_what_is_held_fills_no_queue(tmp_path: Path, held_bytes: int) -> None:
    plan = counting(tmp_path, queue="4 kB")
    one, other = both(plan)
    with Working(plan, 1) as working:
        alignment = working.subtask._intake.alignment
        alignment._limit_bytes = held_bytes
        working.take(one.mark(1))
        for _ in range(50):
            working.take(one.send(KEYS)[0])  # waits for room, as the reader of Spark's pipe does
        working.until(lambda: working.inbox.held_bytes == 0)
        assert alignment.held_bytes <= held_bytes and bool(alignment.shelved_bytes) == (held_bytes == 500)
        working.take(other.mark(1))
        first = working.description(1)
        working.take([*one.mark(2), *other.mark(2)])
        second = working.description(2)
    assert consumed(first) == {} and set(totals(plan, first, second).values()) == {50}


def test_combined_rows_say_how_many_records_they_stand_for(tmp_path: Path) -> None:
    plan = counting(tmp_path)
    one, other = both(plan)
    edge = one.writers[0].edge.id
    with Working(plan, 1, 0) as left, Working(plan, 1, 1) as right:
        rows = one.send(KEYS * 5)
        assert [next(decode(row[0])).kind for row in rows] == [Kind.PARTIAL] * 2
        for at, working in enumerate((left, right)):
            working.take([*rows[at], *one.mark(1, receiver=at), *other.mark(1, receiver=at)])
        parts = [working.description(1) for working in (left, right)]
    assert sum(part.stood[edge].get(0, 0) for part in parts) == 5 * len(KEYS) == one.writers[0].put
    assert sum(consumed(part).get(0, 0) for part in parts) == len(KEYS)


@pytest.mark.parametrize("marked", [False, True])
def test_an_input_that_ends_before_its_senders_is_a_failure(tmp_path: Path, marked: bool) -> None:
    plan = counting(tmp_path)
    one, _ = both(plan)
    with Working(plan, 1) as working:
        working.take(one.mark(1, end=True) if marked else one.send(KEYS)[0])
        working.ends_input()
        error = working.fails()
    missing = "[1]" if marked else "[0, 1]"
    assert isinstance(error, ProtocolError) and f"before senders {missing} did" in str(error)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda one, other: [*one.mark(2)], "the next cut is"),
        (lambda one, other: [*one.mark(1, attempt=Attempt(3, 1))], "the next cut is"),
        (lambda one, other: [*one.mark(1), *other.mark(1, end=True)], "do not agree whether"),
        (lambda one, other: [one.mark(1)[0] + one.send(KEYS)[0][0]], "more in a row with its mark"),
        (lambda one, other: (one.send(KEYS), one.mark(1))[1], "buffers are missing"),
    ],
)
def test_marks_that_cannot_be_are_refused(tmp_path: Path, wrong: Any, words: str) -> None:
    plan = counting(tmp_path)
    with Working(plan, 1) as working:
        working.take(wrong(*both(plan)))
        error = working.fails()
    assert isinstance(error, ProtocolError) and words in str(error)


def test_a_fenced_subtask_gives_up(tmp_path: Path) -> None:
    plan = counting(tmp_path)
    with Working(plan, 1) as working:
        working.driver.give(Fenced(1, "a newer attempt has begun"))
        assert isinstance(working.fails(), FencedError)


# cuts.md rule 4.5: the watermark of a mark replaces the one known of its sender, and the subtask's own never falls
def test_a_marks_watermark_replaces_the_senders(tmp_path: Path) -> None:
    plan = counting(tmp_path)
    one, other = both(plan)
    edge = one.writers[0].edge.id
    with Working(plan, 1) as working:
        for sender, at_us in ((one, 700), (other, 900)):
            sender.writers[0].watermark(0, at_us)
            working.take(sender.flush()[0])
        one.writers[0].told_us = 300
        working.take([*one.mark(1), *other.mark(1)])
        first = working.description(1)
        working.take([*one.mark(2), *other.mark(2)])
        second = working.description(2)
        assert working.subtask._operators["count"].watermark_us == 700
    assert (first.watermarks[edge], second.watermarks[edge]) == (700, 300)


# cuts.md rule 4.1: what waits in operators' queues has been processed before the cut
@pytest.mark.parametrize("schedule", ["round-robin", "hybrid", "mem"])
def test_what_is_queued_belongs_before_the_cut(tmp_path: Path, schedule: str) -> None:
    plan = counting(tmp_path, schedule=schedule)
    one, other = both(plan)
    with Working(plan, 1) as working:
        descriptions = []
        for number in range(1, 4):
            rows = [row for _ in range(20) for row in one.send(KEYS)[0]]
            working.take([*rows, *one.mark(number), *other.send(KEYS)[0], *other.mark(number)])
            descriptions.append(working.description(number))
            assert working.subtask._scheduler.queued and working.subtask._operators["out"].queue is not None
    for number, description in enumerate(descriptions, 1):
        assert set(totals(plan, *descriptions[:number]).values()) == {21 * number}
        rows_shown = sum(staged.rows for staged in description.staged)
        assert rows_shown == description.counters["out:count"] == description.counters["in:out"] > 0


# cuts.md rule 5: one sender in a leg of several processes; buffers that only pass through keep their side of the mark
def test_a_mark_goes_through_the_processes_of_a_leg(tmp_path: Path) -> None:
    job = hr.Job("leg")
    read = job.source("read", scripted(KEYS, KEYS))
    mapped = read.map(lambda record: record, name="a", chain=False).map(lambda record: record, name="b", chain=False)
    mapped.sink("out", hr.callback(print))
    read.sink("raw", hr.callback(print))  # in the leg's last process: its edge passes through the others
    plan = planned(job, tmp_path, poll_rows=7, flush="1 hour")
    stages = len(plan.layout.stages)
    assert stages == 3
    intervals = []
    with contextlib.ExitStack() as stack:
        first = [CutOrdered(ATTEMPT.cut(1), end=False, at_us=0, tables={}, editions={})]
        line = [stack.enter_context(Working(plan, stage, 1, given=() if stage else first)) for stage in range(stages)]
        passed = [0] * stages
        for number in (1, 2):
            if number == 2:
                line[0].until(lambda: line[0].subtask.exhausted)
                line[0].driver.give(CutOrdered(ATTEMPT.cut(2), end=False, at_us=0, tables={}, editions={}))
            for stage, working in enumerate(line):
                intervals.append(working.description(number))
                rows = [row for _, row in working.rows if row]
                if stage + 1 < stages:
                    line[stage + 1].take(rows[passed[stage] :])
                passed[stage] = len(rows)
    for parts in (intervals[:stages], intervals[stages:]):
        audit(parts)
        read_rows = parts[0].counters["out:read"]
        assert {staged.step: staged.rows for staged in parts[-1].staged} == {"out": read_rows, "raw": read_rows}
    assert sum(part.counters["out:read"] for part in intervals[::stages]) == len(KEYS)


@pytest.mark.parametrize("schedule", ["direct", "round-robin"])
@pytest.mark.parametrize("mode", ["microbatch", "batch"])
def test_stage_by_stage_there_is_one_cut_at_the_end(tmp_path: Path, mode: str, schedule: str) -> None:
    plan = counting(tmp_path, mode=mode, schedule=schedule)
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(Working(plan, 0, index)) for index in (0, 1)]
        for reader in readers:
            reader.ends_input()
        parts = [reader.description(1, logged=False) for reader in readers]
        for reader in readers:
            reader.until(lambda reader=reader: not reader.alive)  # nobody waits for the log
        counters = [stack.enter_context(Working(plan, 1, index)) for index in (0, 1)]
        for index, counter in enumerate(counters):
            counter.take([row for reader in readers for to, row in reader.rows if to == index])
            counter.a_while()
            assert not counter.driver.heard(Aligned), "not before the input has ended"
            counter.ends_input()
        parts += [counter.description(1, logged=False) for counter in counters]
    audit(parts)
    assert totals(plan, *parts[2:]) == {record["k"]: 2 for record in KEYS}
    assert sum(staged.rows for part in parts[2:] for staged in part.staged) == len(KEYS), "shown once, at the cut"
    assert (
        all(mark.end for reader in readers for mark in reader.marks(0)) and parts[2].watermarks == parts[3].watermarks
    )


# a run that is to stop, or whose seconds are over
@pytest.mark.parametrize("mode", ["microbatch", "batch"])
def test_stage_by_stage_an_ordered_cut_ends_the_reading(tmp_path: Path, mode: str) -> None:
    job = hr.Job("endless")
    read = job.source("read", hr.generate(lambda n: {"k": n % 5}, total=10**12, partitions=1))
    read.key_by("k").reduce(name="count", n=hr.count()).sink("out", hr.callback(print))
    plan = planned(job, tmp_path, mode=mode, parallelism=1, poll_rows=2)
    with Working(plan, 0, ended=True) as working:
        working.a_while()
        working.driver.give(CutOrdered(ATTEMPT.cut(1), True, 0, {}, {}))
        part = working.description(1, logged=False)
        working.until(lambda: not working.alive)
    assert not part.exhausted and 0 < part.counters["out:read"] < 10**6
    assert [mark.end for mark in working.marks(0)] == [True]


def test_stage_by_stage_a_sender_without_its_mark_is_missed(tmp_path: Path) -> None:
    plan = counting(tmp_path, mode="batch")
    one, other = both(plan)
    with Working(plan, 1) as working:
        working.take([*one.send(KEYS)[0], *one.mark(1, end=True), *other.send(KEYS)[0]])
        working.ends_input()
        error = working.fails()
    assert isinstance(error, ProtocolError) and "before senders [1] did" in str(error)
