"""A subtask at its cuts: what it takes before them and after, what it says, and that it waits for nobody's disk."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from onesubtask import ATTEMPT, Sender, Working, planned

import headrace as hr
from headrace.errors import FencedError, ProtocolError
from headrace.graph.windowing import FOREVER_US
from headrace.runtime import handover, sourceorders
from headrace.runtime.messages import Aligned, CutOrdered, Described, Fenced, GoOn, Logged
from headrace.runtime.plan import Description, JobPlan
from headrace.runtime.wire.frames import Kind, decode
from headrace.state.durable.loading import read_slice
from headrace.state.durable.manifest import SliceVersion
from headrace.state.durable.storage import LocalStorage
from headrace.state.plain import unpack
from headrace.testing import scripted
from headrace.tokens import Attempt

KEYS = [{"k": i, "v": 1} for i in range(40)]


def counting(checkpoint: Path, **settings: Any) -> JobPlan:
    """A running count per key of what two subtasks send."""
    job = hr.Job("counting")
    read = job.source("read", scripted(KEYS, KEYS))
    read.key_by("k").reduce(name="count", n=hr.sum("v")).sink("out", hr.callback(print))
    return planned(job, checkpoint, **settings)


def totals(plan: JobPlan, *descriptions: Description, step: str = "count") -> dict[int, int]:
    """The counts that descriptions' blocks add up to."""
    storage, found = LocalStorage(plan.checkpoint / "headrace"), {}
    changes = [change for description in descriptions for change in description.changes if change.step == step]
    for slice in {change.slice for change in changes}:
        mine = [change for change in changes if change.slice == slice]
        version = SliceVersion(mine[-1].digest, tuple(change.block for change in mine))
        image = read_slice(storage, step, slice, version)

        found.update(zip(image.column("k").to_pylist(), image.column("n.value").to_pylist()))
    return found


def both(plan: JobPlan) -> tuple[Sender, Sender]:
    return Sender(plan, 0, 0), Sender(plan, 0, 1)


def consumed(description: Description) -> dict[int, int]:
    """Items by sender."""
    return {sender: sum(counts) for by in description.consumed.values() for sender, counts in by.items()}


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
    assert second.aligned_ms < first.aligned_ms


# cuts.md rule 4.1 and the audit: what was put into buffers has left them before the mark
def test_a_cut_flushes_all_buffers_in_the_row_of_its_mark(tmp_path: Path) -> None:
    plan = counting(tmp_path, flush="1 hour", flush_bytes="1 GB")
    with Working(plan, 0) as working:
        working.until(lambda: working.subtask.exhausted)
        assert working.rows == []
        working.driver.give(CutOrdered(ATTEMPT.cut(1), end=False))
        first = working.description(1)
        payloads = [[row for to, row in working.rows if to == receiver] for receiver in (0, 1)]
    for rows in payloads:
        assert len(rows) == 2 and rows[1] == b"", "one row, and the empty one that pushes it"
        kinds = [frame.kind for frame in decode(rows[0])]
        assert kinds[0] in (Kind.DATA, Kind.PARTIAL) and kinds[-2:] == [Kind.WATERMARK, Kind.CUT]
    (edge,) = first.put
    assert first.put[edge] == {0: len(KEYS)} and sum(first.sent[edge][0]) == len(KEYS)
    assert first.exhausted


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


# chronostream fact 20, cuts.md "Audit": a buffer that is left open at a cut shows in what was put and what stood
def test_a_buffer_that_was_not_flushed_is_seen_by_the_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = counting(tmp_path, flush="1 hour")
    monkeypatch.setattr("headrace.runtime.wire.outlet.Outlet._flushed", lambda self, leaving: [[], []])
    with Working(plan, 0) as working:
        working.until(lambda: working.subtask.exhausted)
        working.driver.give(CutOrdered(ATTEMPT.cut(1), end=False))
        first = working.description(1)
    (edge,) = first.put
    assert first.put[edge] == {0: len(KEYS)} and sum(first.sent[edge][0]) == 0


# cuts.md rule 1, messages: only the next cut of the own attempt can be ordered, and once
def test_orders_of_other_attempts_and_other_cuts_are_dropped(tmp_path: Path) -> None:
    plan = counting(tmp_path)
    with Working(plan, 0) as working:
        strangers = [Attempt(3, 1), Attempt(2, 2)]
        working.driver.give(
            CutOrdered(ATTEMPT.cut(2), end=False), *(CutOrdered(other.cut(1), end=True) for other in strangers)
        )
        working.a_while()
        assert not working.driver.heard(Aligned)
        for number in (1, 2):
            order = CutOrdered(ATTEMPT.cut(number), end=False)
            working.driver.give(order, order, CutOrdered(ATTEMPT.cut(1), end=False))
            working.description(number)
        working.a_while()
        assert [m.token for m in working.driver.heard(Aligned)] == [ATTEMPT.cut(1), ATTEMPT.cut(2)]
        assert [mark.token for mark in working.marks(1)] == [ATTEMPT.cut(1), ATTEMPT.cut(2)]


# cuts.md rule 2: the offset of what was emitted belongs to the cut
def test_a_source_stores_what_it_has_emitted(tmp_path: Path) -> None:
    plan = counting(tmp_path, poll_rows=10)
    with Working(plan, 0, given=[CutOrdered(ATTEMPT.cut(1), end=False)]) as working:
        first = working.description(1)
        working.until(lambda: working.subtask.exhausted)
        working.driver.give(CutOrdered(ATTEMPT.cut(2), end=False))
        second = working.description(2)
    storage, emitted = LocalStorage(plan.checkpoint / "headrace"), 0
    for description in (first, second):
        emitted += sum(description.put[0].values())
        (change,) = description.changes
        image = read_slice(storage, "read", 0, SliceVersion(change.digest, (change.block,)))
        (value,) = image.column("value").to_pylist()
        assert unpack(value)["offset"] == {"at": emitted}
    assert sum(first.put[0].values()) < emitted == len(KEYS)


# cuts.md rule 6: described when durable, not before; and records do not wait for that
def test_a_cut_is_described_when_it_is_durable_and_work_goes_on_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = counting(tmp_path)
    one, other = both(plan)
    may_write, put = threading.Event(), LocalStorage.put

    def slow(self: LocalStorage, name: str, data: bytes) -> None:
        assert may_write.wait(20)
        put(self, name, data)

    monkeypatch.setattr(LocalStorage, "put", slow)
    with Working(plan, 1) as working:
        working.take([*one.send(KEYS)[0], *one.mark(1), *other.mark(1)])
        working.aligned(1)
        working.take(one.send(KEYS)[0])
        counted = working.subtask._operators["count"].meter
        working.until(lambda: counted.items_in > 0, "work goes on while the disk is slow")
        working.a_while()
        assert not working.driver.heard(Described), "nothing is durable yet"
        may_write.set()
        first = working.description(1)
        working.take([*one.mark(2), *other.mark(2)])
        second = working.description(2)
    # chronostream fact 5: updates during a checkpoint are readable at once, absent from that chunk
    assert set(totals(plan, first).values()) == {1} and set(totals(plan, first, second).values()) == {2}
    assert first.written_bytes == sum(change.block.length for change in first.changes) > 0 < first.written_ms


def test_a_description_is_told_as_soon_as_it_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.runtime.subtask._IDLE_WAIT_US", 10**9)
    plan = counting(tmp_path)
    one, other = both(plan)
    with Working(plan, 1) as working:
        working.take([*one.mark(1), *other.mark(1)])
        working.description(1)  # the writer wakes the loop: it would sleep for long otherwise


# cuts.md messages: DESC is repeated until it is answered
def test_a_description_is_told_again_until_it_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "_REPEAT_US", 30_000)
    plan = counting(tmp_path)
    one, other = both(plan)
    with Working(plan, 1) as working:
        working.take([*one.mark(1), *other.mark(1)])
        working.description(1, logged=False)
        working.driver.give(Logged(Attempt(3, 1).cut(1)))
        working.until(lambda: len(working.driver.heard(Described)) > 2)
        working.driver.give(Logged(ATTEMPT.cut(1)))
        working.until(lambda: working.subtask._cuts.handover.settled)
        told = working.driver.heard(Described)
    assert all(message == told[0] for message in told)


# issue 10, item 8: a write that fails is noticed at once
@pytest.mark.parametrize("during", ["interval", "cut", "sink"])
def test_what_cannot_be_written_stops_the_subtask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, during: str) -> None:
    plan = counting(tmp_path, chunk="1 ms" if during == "interval" else "1 hour")
    one, other = both(plan)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if during != "sink":
        monkeypatch.setattr(LocalStorage, "put", full)
    with Working(plan, 1) as working:
        if during == "sink":
            monkeypatch.setattr(working.subtask._cuts._sinks[0], "hand_over", lambda: full)
        working.take(one.send(KEYS)[0])
        if during != "interval":
            working.take([*one.mark(1), *other.mark(1)])
        error = working.fails()
    assert isinstance(error, OSError) and error.errno == 28
    assert not working.driver.heard(Described)


def test_chunks_of_an_interval_and_of_its_cut_are_one_description(tmp_path: Path) -> None:
    plan = counting(tmp_path, chunk="1 ms")
    one, other = both(plan)
    with Working(plan, 1) as working:
        for _ in range(3):
            written = len(list(tmp_path.rglob("*.seg")))
            working.take(one.send(KEYS)[0])
            working.until(lambda before=written: len(list(tmp_path.rglob("*.seg"))) > before)
        working.take([*one.mark(1), *other.mark(1)])
        first = working.description(1)
    files = {change.block.file for change in first.changes}
    assert len(files) >= 3 and set(totals(plan, first).values()) == {3}
    stem = f"segments/{ATTEMPT.cut(1)}-s01-0000-"
    assert all(name.startswith(stem) for name in files)


# cuts.md rule 7
@pytest.mark.parametrize("answer", [GoOn(ATTEMPT.cut(1)), Logged(ATTEMPT.cut(1))])
def test_a_source_does_not_run_far_ahead_of_a_cut_that_others_have_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: GoOn | Logged
) -> None:
    monkeypatch.setattr(sourceorders, "AHEAD_BYTES", 1000)
    plan = counting(tmp_path, poll_rows=1, flush="0 ms")
    with Working(plan, 0, given=[CutOrdered(ATTEMPT.cut(1), end=False)]) as working:
        first = working.description(1, logged=False)
        working.until(lambda: not working.subtask._may_poll)
        rows = [len(row) for _, row in working.rows]
        assert 1000 < sum(rows) - sum(rows[:2]) < 1000 + 2 * max(rows) + sum(rows[:4])
        working.driver.give(GoOn(Attempt(3, 1).cut(1)), Logged(Attempt(3, 1).cut(1)))
        working.a_while()
        assert not working.subtask.exhausted, "not for another attempt's cut"
        assert sum(first.put[0].values()) < len(KEYS)
        working.driver.give(answer)
        working.until(lambda: working.subtask.exhausted)


# cuts.md rule 8
def test_the_end_is_a_cut_and_is_waited_for_until_it_is_logged(tmp_path: Path) -> None:
    plan = counting(tmp_path)
    with Working(plan, 0) as working:
        working.driver.give(CutOrdered(ATTEMPT.cut(1), end=True))
        working.description(1, logged=False)
        working.a_while()
        assert working.alive, "not before the cut is logged"
        working.driver.give(Logged(ATTEMPT.cut(1)))
        working.until(lambda: working.subtask._cuts.handover.settled)
        assert working.subtask.version == (ATTEMPT.cut(1), 0, 2)
        working.ends()
    assert [mark.end for mark in working.marks(0)] == [True]


def test_sources_go_on_when_spark_has_no_rows_for_them(tmp_path: Path) -> None:
    plan = counting(tmp_path, poll_rows=1)
    with Working(plan, 0) as working:
        working.ends_input()
        working.until(lambda: working.subtask.exhausted)
        working.driver.give(CutOrdered(ATTEMPT.cut(1), end=True))
        working.description(1)
        working.until(lambda: not working.alive)


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
        working.driver.give(Fenced("a newer attempt has begun"))
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
