"""Where cuts begin: subtasks with sources, and the orders they get."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from onesubtask import ATTEMPT, KEYS, Working, counting, planned

import headrace as hr
from headrace.connect.source import Offset, Poll, Reader
from headrace.graph.windowing import FOREVER_US
from headrace.runtime.cutmaking import sourceorders
from headrace.runtime.cutmaking.sourceorders import SourceOrders
from headrace.runtime.messages import Aligned, CutOrdered, GoOn, Logged
from headrace.runtime.plan import JobPlan
from headrace.runtime.wire.frames import Kind, decode
from headrace.state.durable.loading import read_slice
from headrace.state.durable.manifest import SliceVersion
from headrace.state.durable.storage import LocalStorage
from headrace.state.plain import unpack
from headrace.testing import scripted
from headrace.tokens import Attempt


# cuts.md rule 4.1 and the audit: what was put into buffers has left them before the mark
def test_a_cut_flushes_all_buffers_in_the_row_of_its_mark(tmp_path: Path) -> None:
    plan = counting(tmp_path, flush="1 hour", flush_bytes="1 GB")
    with Working(plan, 0) as working:
        working.until(lambda: working.subtask.exhausted)
        assert working.rows == []
        working.driver.give(CutOrdered(ATTEMPT.cut(1), end=False, at_us=0, tables={}, editions={}))
        first = working.description(1)
        payloads = [[row for to, row in working.rows if to == receiver] for receiver in (0, 1)]
    for rows in payloads:
        assert len(rows) == 2 and rows[1] == b"", "one row, and the empty one that pushes it"
        kinds = [frame.kind for frame in decode(rows[0])]
        assert kinds[0] in (Kind.DATA, Kind.PARTIAL) and kinds[-2:] == [Kind.WATERMARK, Kind.CUT]
    (edge,) = first.put
    assert first.put[edge] == {0: len(KEYS)} and sum(first.sent[edge][0]) == len(KEYS)
    assert first.exhausted


# chronostream fact 20, cuts.md "Audit": a buffer that is left open at a cut shows in what was put and what stood
def test_a_buffer_that_was_not_flushed_is_seen_by_the_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = counting(tmp_path, flush="1 hour")
    monkeypatch.setattr("headrace.runtime.wire.outlet.Outlet._flushed", lambda self, leaving: [[], []])
    with Working(plan, 0) as working:
        working.until(lambda: working.subtask.exhausted)
        working.driver.give(CutOrdered(ATTEMPT.cut(1), end=False, at_us=0, tables={}, editions={}))
        first = working.description(1)
    (edge,) = first.put
    assert first.put[edge] == {0: len(KEYS)} and sum(first.sent[edge][0]) == 0


# cuts.md rule 1, messages: only the next cut of the own attempt can be ordered, and once
def test_orders_of_other_attempts_and_other_cuts_are_dropped(tmp_path: Path) -> None:
    plan = counting(tmp_path)
    with Working(plan, 0) as working:
        strangers = [Attempt(3, 1), Attempt(2, 2)]
        working.driver.give(
            CutOrdered(ATTEMPT.cut(2), end=False, at_us=0, tables={}, editions={}),
            *(CutOrdered(other.cut(1), end=True, at_us=0, tables={}, editions={}) for other in strangers),
        )
        working.a_while()
        assert not working.driver.heard(Aligned)
        for number in (1, 2):
            order = CutOrdered(ATTEMPT.cut(number), end=False, at_us=0, tables={}, editions={})
            working.driver.give(order, order, CutOrdered(ATTEMPT.cut(1), end=False, at_us=0, tables={}, editions={}))
            working.description(number)
        working.a_while()
        assert [m.token for m in working.driver.heard(Aligned)] == [ATTEMPT.cut(1), ATTEMPT.cut(2)]
        assert [mark.token for mark in working.marks(1)] == [ATTEMPT.cut(1), ATTEMPT.cut(2)]


# cuts.md rule 2: the offset of what was emitted belongs to the cut
def test_a_source_stores_what_it_has_emitted(tmp_path: Path) -> None:
    plan = counting(tmp_path, poll_rows=10)
    with Working(plan, 0, given=[CutOrdered(ATTEMPT.cut(1), end=False, at_us=0, tables={}, editions={})]) as working:
        first = working.description(1)
        working.until(lambda: working.subtask.exhausted)
        working.driver.give(CutOrdered(ATTEMPT.cut(2), end=False, at_us=0, tables={}, editions={}))
        second = working.description(2)
    storage, emitted = LocalStorage(plan.checkpoint / "headrace"), 0
    for description in (first, second):
        emitted += sum(description.put[0].values())
        (change,) = description.changes
        image = read_slice(storage, "read", 0, SliceVersion(change.digest, (change.block,)))
        (value,) = image.column("value").to_pylist()
        assert unpack(value)["offset"] == {"at": emitted}
    assert sum(first.put[0].values()) < emitted == len(KEYS)


# cuts.md rule 7
@pytest.mark.parametrize("answer", [GoOn(ATTEMPT.cut(1)), Logged(ATTEMPT.cut(1))])
def test_a_source_does_not_run_far_ahead_of_a_cut_that_others_have_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: GoOn | Logged
) -> None:
    monkeypatch.setattr(sourceorders, "AHEAD_BYTES", 1000)
    plan = counting(tmp_path, poll_rows=1, flush="0 ms")
    with Working(plan, 0, given=[CutOrdered(ATTEMPT.cut(1), end=False, at_us=0, tables={}, editions={})]) as working:
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


def test_sources_are_not_read_between_an_order_and_its_cut() -> None:
    orders = SourceOrders(ATTEMPT.cut(1))
    assert orders.may_poll(0, 9)
    orders.order(CutOrdered(ATTEMPT.cut(1), end=False, at_us=0, tables={}, editions={}), 5, 0)
    assert not orders.may_poll(0, 9) and orders.at_us == 5
    orders.order(CutOrdered(ATTEMPT.cut(1), end=False, at_us=0, tables={}, editions={}), 9, 0)
    assert orders.at_us == 5, "the same order again"
    orders.made(ATTEMPT.cut(1), 100)
    assert orders.may_poll(100 + sourceorders.AHEAD_BYTES, 9) and not orders.may_poll(101 + sourceorders.AHEAD_BYTES, 9)
    orders.go_on(ATTEMPT.cut(1))
    assert orders.may_poll(10**12, 9) and orders.ordered is None


# cuts.md rule 8
def test_the_end_is_a_cut_and_is_waited_for_until_it_is_logged(tmp_path: Path) -> None:
    plan = counting(tmp_path)
    with Working(plan, 0) as working:
        working.driver.give(CutOrdered(ATTEMPT.cut(1), end=True, at_us=0, tables={}, editions={}))
        working.description(1, logged=False)
        working.a_while()
        assert working.alive, "not before the cut is logged"
        working.driver.give(Logged(ATTEMPT.cut(1)))
        working.until(lambda: working.subtask._cuts.handover.settled)
        assert working.subtask.version == (ATTEMPT.cut(1), working.subtask._ticket.mine)
        working.ends()
    assert [mark.end for mark in working.marks(0)] == [True]


def test_sources_go_on_when_spark_has_no_rows_for_them(tmp_path: Path) -> None:
    plan = counting(tmp_path, poll_rows=1)
    with Working(plan, 0) as working:
        working.ends_input()
        working.until(lambda: working.subtask.exhausted)
        working.driver.give(CutOrdered(ATTEMPT.cut(1), end=True, at_us=0, tables={}, editions={}))
        working.description(1)
        working.until(lambda: not working.alive)


@dataclass(frozen=True)
class Ticking:
    """A source that has a record whenever it is polled, each later than the last."""

    bounded: bool = False
    live: bool = True

    def partitions(self, parallelism: int) -> int:
        return 1

    def schema(self) -> pa.Schema:
        return pa.schema([("t", pa.int64())])

    def sample(self, rows: int) -> pa.RecordBatch:
        return pa.record_batch({"t": [1]})

    def open(self, partition: int, of: int, offset: Offset | None, schema: pa.Schema, log_dir: Path) -> Reader:
        return Ticks()

    def describe(self) -> str:
        return "ticking"


class Ticks:
    exhausted, told = False, 0

    def poll(self, max_rows: int, now_us: int) -> Poll | None:
        self.told += 1
        return Poll(pa.record_batch({"t": [self.told]}))

    def offset(self) -> Offset:
        return {"told": self.told}

    def next_due_us(self) -> int | None:
        return None

    def close(self) -> None:
        """Nothing is open."""


def ticking(checkpoint: Path, **settings: Any) -> JobPlan:
    """A source whose watermark moves on with every poll, in one stage with what reads it."""
    job = hr.Job("live")
    read = job.source("read", Ticking(), event_time="t")
    read.map(lambda record: record, name="same").sink("out", hr.callback(print))
    return planned(job, checkpoint, parallelism=1, **settings)


# a watermark that rises all the time must not put a cut off for ever where operators have queues
@pytest.mark.parametrize("schedule", ["direct", "round-robin"])
def test_a_cut_is_made_although_time_goes_on(tmp_path: Path, schedule: str) -> None:
    plan = ticking(tmp_path, schedule=schedule)
    with Working(plan, 0) as working:
        same = working.subtask._operators["same"]
        working.until(lambda: same.watermark_us > 0, "every poll drives the watermark")
        for number in range(1, 4):
            before = same.watermark_us
            working.until(lambda: same.watermark_us > before)  # noqa: B023
            working.driver.give(CutOrdered(ATTEMPT.cut(number), end=number == 3, at_us=0, tables={}, editions={}))
            assert working.description(number).counters["in:same"] > 0
        working.ends()


def test_a_subtask_without_partitions_holds_nobody_back(tmp_path: Path) -> None:
    job = hr.Job("few")
    read = job.source("read", scripted(KEYS))
    read.key_by("k").reduce(name="count", n=hr.sum("v")).sink("out", hr.callback(print))
    plan = planned(job, tmp_path, mode="batch")
    with Working(plan, 0, 1, ended=True) as working:
        working.until(lambda: not working.alive)
        (mark,) = working.marks(0)
    assert mark.watermarks == {0: FOREVER_US} and mark.end


def test_a_cut_is_made_at_the_time_that_all_were_told_by_the_drivers_clock() -> None:
    orders = SourceOrders(ATTEMPT.cut(1))
    order = CutOrdered(ATTEMPT.cut(1), end=False, at_us=1_000_030, tables={}, editions={})
    orders.order(order, 10, 1_000_000)  # the driver's clock is a second ahead: it means 30 by ours
    assert orders.due(29) is None and orders.may_poll(0, 29), "until then sources are read"
    assert orders.due(30) == order and not orders.may_poll(0, 30)


@pytest.mark.parametrize(("at_us", "due_us"), [(0, 10), (10**15, 100_010)], ids=["long ago", "a wrong clock"])
def test_a_cut_is_put_off_neither_for_ever_nor_into_the_past(at_us: int, due_us: int) -> None:
    orders = SourceOrders(ATTEMPT.cut(1))
    orders.order(CutOrdered(ATTEMPT.cut(1), end=False, at_us=at_us, tables={}, editions={}), 10, 0)
    assert orders.due(due_us - 1) is None and orders.due(due_us) is not None
