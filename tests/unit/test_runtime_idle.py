"""A live source with a partition that falls silent and comes back, and what becomes of its windows: time is given."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from reference import Record

import headrace as hr
from headrace.connect.source import Offset, Poll
from headrace.driver.schemafinding import _of, _step
from headrace.graph.nodes import ReduceNode, SourceNode
from headrace.graph.windowing import FOREVER_US, NEVER_US, TimeWindow
from headrace.runtime.batch import Batch
from headrace.runtime.build import build_reduce
from headrace.runtime.operators.sources import SourceOperator
from headrace.runtime.operators.transforms import Forward
from headrace.runtime.operators.usercode import Guard
from headrace.runtime.reduce.paned import PanedReduce
from headrace.runtime.reduce.reduce import Place

MS, IDLE = 1000, 20_000
NOW = 1_800_000_000_000_000
SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64())])


@dataclass
class Spoken:
    """A reader that hands on what a test lets it say, each time as one batch."""

    batches: list[list[Record]] = field(default_factory=list)
    exhausted: bool = False
    due_us: int | None = None

    def poll(self, max_rows: int, now_us: int) -> Poll | None:
        return Poll(pa.RecordBatch.from_pylist(self.batches.pop(0), schema=SCHEMA)) if self.batches else None

    def offset(self) -> Offset:
        return {}

    def next_due_us(self) -> int | None:
        return self.due_us

    def close(self) -> None:
        """Nothing to close."""


@dataclass(frozen=True)
class LiveSource:
    readers: tuple[Spoken, ...]
    bounded: bool = False
    live: bool = True

    def open(self, partition: int, of: int, offset: Offset | None, schema: pa.Schema, log_dir: Path) -> Spoken:
        return self.readers[partition]


class Rows:
    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.tags_us: list[int | None] = []
        self.watermark_us = NEVER_US

    def receive(self, port: int, batch: Batch) -> None:
        assert batch.born_us > 0, "nothing comes from 1970"
        self.tags_us.append(batch.tag_us)
        for row in batch.records.to_pylist():
            end = round(row["window_end"].timestamp() * 1000)
            assert end not in self.counts, "a window is emitted once"
            self.counts[end] = row["n"]

    def watermark(self, port: int, watermark_us: int) -> None:
        self.watermark_us = watermark_us


class Played:
    """Two live partitions → counts over windows of 80 ms every 10 ms, assembled from eight panes."""

    def __init__(self, logs: Path, before: Played | None = None) -> None:
        self.busy, self.quiet = Spoken(), Spoken()
        node: Any = SourceNode("s", LiveSource((self.busy, self.quiet)), "t", "ms", idle_us=IDLE)  # type: ignore[arg-type]
        self.source = SourceOperator(node, SCHEMA, Guard("s", "fail"), 2, logs, IDLE, eager=True)
        window = TimeWindow(80 * MS, 10 * MS)
        reduce = ReduceNode("n", ("k",), window, (("n", hr.count()),), ("s",), combine=True)
        sample = pa.RecordBatch.from_pylist([{"k": 1, "t": 1}], schema=SCHEMA)
        out = _step(reduce, [_of(sample.schema, sample)], None, None).schema
        made = build_reduce(reduce, SCHEMA, out, Guard("n", "fail"), Place(4), eager=True)
        assert isinstance(made, PanedReduce)
        self.reduce, self.rows = made, Rows()
        self.reduce.feed(self.rows)
        self.source.feed(self.reduce)
        for operator, old in ((self.source, before and before.source), (self.reduce, before and before.reduce)):
            for part, store in old.stores().items() if old is not None else ():
                for change in store.changes():
                    operator.stores()[part].load(change.slice, change.puts, change.digest)
        self.reduce.restored([0, 1, 2, 3])
        self.source.restored([0, 1])
        self.source.begin()
        self.reduce.begin()

    def restarted(self, logs: Path) -> Played:
        """As after an epoch was committed and the job failed."""
        self.source.on_cut(end=True)
        self.reduce.on_cut(end=True)
        return Played(logs, self)

    def say(self, reader: Spoken, *times: int, now_us: int) -> None:
        reader.batches.append([{"k": 1, "t": t} for t in times])
        self.wait(now_us)

    def wait(self, *looks_us: int) -> None:
        """Look for something to read at these times."""
        for now_us in looks_us:
            self.source.poll(100_000, now_us)
            self.source.on_clock(now_us)


# cmr fact 10: an idle input does not hold windows back, and what it brings later counts where windows are open
@pytest.mark.parametrize("back", [(150, 151), (150, 250), (250, 150)], ids=["old", "old and new", "new and old"])
def test_a_silent_partition_that_comes_back_is_counted_in_windows_that_are_open(
    back: tuple[int, ...], tmp_path: Path
) -> None:
    """A record for a pane that was merged already makes the merged panes forgotten."""
    played = Played(tmp_path)
    early, late = range(0, 201, 5), range(205, 400, 5)
    played.wait(NOW)
    for t in early:
        played.say(played.busy, t, now_us=NOW + t)
    assert played.rows.counts == {}, "the quiet partition has neither spoken nor been silent for long"
    played.say(played.busy, 200, now_us=NOW + IDLE + 1000)
    closed = dict(played.rows.counts)
    assert sorted(closed) == list(range(10, 201, 10)), "it is idle now"
    played.say(played.quiet, *back, now_us=NOW + IDLE + 2000)
    for t in late:
        played.say(played.busy, t, now_us=NOW + IDLE + 3000 + t)
    played.reduce.watermark(0, FOREVER_US)
    times = [*early, 200, *late, *back]
    if back[0] > back[1]:
        times.remove(150)  # behind its own partition: open windows that its watermark has passed are closed for it
    expected = {end: sum(end - 80 <= t < end for t in times) for end in range(10, 471, 10)}
    assert {end: n for end, n in played.rows.counts.items() if end > 200} == {
        end: n for end, n in expected.items() if end > 200
    }
    assert {end: played.rows.counts[end] for end in closed} == closed, "what was emitted stays"


def test_partitions_take_turns_where_one_poll_is_not_enough_for_all(tmp_path: Path) -> None:
    played = Played(tmp_path)
    readers = (played.busy, played.quiet)
    for reader in readers:
        reader.batches = [[{"k": 1, "t": t}] for t in range(3)]
    left = []
    for _ in range(4):
        assert played.source.poll(1, NOW) == 1
        left.append(tuple(len(reader.batches) for reader in readers))
    assert left == [(2, 3), (2, 2), (1, 2), (1, 1)]
    assert played.source.poll(5, NOW) == 2


def test_a_source_knows_when_it_is_due_if_all_its_partitions_do(tmp_path: Path) -> None:
    played = Played(tmp_path)
    assert played.source.next_due_us() is None
    played.busy.due_us = NOW + 7
    assert played.source.next_due_us() is None, "the other may have something at any time"
    played.quiet.due_us = NOW + 3
    assert played.source.next_due_us() == NOW + 3
    played.quiet.exhausted = True
    assert played.source.next_due_us() == NOW + 7


@pytest.mark.parametrize("restart", [False, True])
def test_a_late_record_is_late_also_after_a_restart(restart: bool, tmp_path: Path) -> None:
    """It counts in the windows that are open, and in none that was emitted before."""
    played, early = Played(tmp_path), range(0, 201, 5)
    played.say(played.quiet, 200, now_us=NOW)
    played.say(played.busy, *early, now_us=NOW)
    assert sorted(played.rows.counts) == list(range(10, 201, 10))
    if restart:
        played = played.restarted(tmp_path)
    played.rows.counts.clear()
    late = played.reduce.meter.late
    played.say(played.busy, 60, now_us=NOW)
    played.say(played.busy, 125, now_us=NOW)
    assert played.reduce.meter.late == late + 2, "every window of 60 and of 125 was emitted"
    played.say(played.busy, 150, now_us=NOW)
    assert played.reduce.meter.late == late + 2
    played.say(played.busy, 205, now_us=NOW)
    played.say(played.quiet, 205, now_us=NOW)
    played.reduce.watermark(0, FOREVER_US)
    times = [*early, 200, 150, 205, 205]
    assert played.rows.counts == {
        end: n for end in range(210, 290, 10) if (n := sum(end - 80 <= t < end for t in times))
    }


def test_a_partition_that_falls_silent_stands_still_and_no_longer_holds_the_other_back(tmp_path: Path) -> None:
    played = Played(tmp_path)
    played.say(played.quiet, 100, now_us=NOW)
    played.say(played.busy, 5000, now_us=NOW)
    assert played.reduce.watermark_us == 100 * MS
    played.wait(NOW + IDLE)
    assert played.reduce.watermark_us == 100 * MS, "silent for just as long as it may be"
    played.say(played.busy, 5001, now_us=NOW + IDLE + 1)
    assert played.reduce.watermark_us == 5001 * MS
    played.wait(NOW + 2 * IDLE + 1, NOW + 1000 * IDLE)
    assert played.reduce.watermark_us == 5001 * MS, "nobody moves time on where all are silent"


def test_in_whatever_order_partitions_fall_silent_windows_of_all_of_them_close(tmp_path: Path) -> None:
    played = Played(tmp_path)
    played.say(played.busy, 5000, now_us=NOW)
    played.say(played.quiet, 100, now_us=NOW + 10)
    played.wait(NOW + IDLE + 5)
    assert played.reduce.watermark_us == 100 * MS, "the one that is further is silent, the other one is not yet"
    played.wait(NOW + IDLE + 11)
    assert played.reduce.watermark_us == 5000 * MS


def test_a_subtask_that_was_busy_does_not_take_its_source_for_silent(tmp_path: Path) -> None:
    """Only a poll tells: between two of them lies whatever the steps behind the source had to do."""
    played = Played(tmp_path)
    played.say(played.quiet, 100, now_us=NOW)
    played.say(played.busy, 5000, now_us=NOW)
    played.source.on_clock(NOW + 100 * IDLE)
    assert played.reduce.watermark_us == 100 * MS
    played.say(played.quiet, 101, now_us=NOW + 100 * IDLE)
    assert played.reduce.watermark_us == 101 * MS and played.reduce.meter.late == 0


@pytest.mark.parametrize("silent", [False, True], ids=["before any records", "after some"])
def test_what_partitions_bring_together_after_a_silence_is_in_time(silent: bool, tmp_path: Path) -> None:
    """Both are flushed at once, but one is read first: its time moves on when the other has had time to be heard."""
    played = Played(tmp_path)
    if silent:
        played.say(played.busy, 0, now_us=NOW)
        played.say(played.quiet, 0, now_us=NOW)
    played.wait(NOW, NOW + 50 * IDLE)
    played.say(played.busy, *range(1000, 6000), now_us=NOW + 50 * IDLE + 1)
    played.wait(NOW + 51 * IDLE)
    played.say(played.quiet, *range(1000, 6000), now_us=NOW + 51 * IDLE)
    played.wait(NOW + 51 * IDLE + 1, NOW + 60 * IDLE)
    assert played.reduce.watermark_us == 5999 * MS and played.reduce.meter.late == 0
    assert played.rows.counts[5900] == 160


def test_a_lone_partition_that_comes_back_moves_time_on_at_once(tmp_path: Path) -> None:
    lone = Lone(tmp_path, alone=True)
    lone.say((0, 100))
    lone.wait(50 * IDLE)
    lone.say((0, 200))
    assert lone.reduce.watermark_us == 200 * MS


TUMBLING, SLIDING = TimeWindow(10 * MS, 10 * MS), TimeWindow(30 * MS, 10 * MS)
SINGLY = hr.reducer(init=lambda: 0, update=lambda n, record: n + 1)
"""A count whose states cannot be merged, so that each window has its own."""


def test_a_window_that_no_record_of_its_own_closes_is_of_unknown_age(tmp_path: Path) -> None:
    """After a restart there was none at all, and the last one may be hours old where time is moved on elsewhere."""
    played = Played(tmp_path)
    played.say(played.busy, 0, now_us=NOW)
    played.say(played.quiet, 11, now_us=NOW)
    played.say(played.busy, 12, now_us=NOW)
    assert played.rows.counts == {10: 1} and played.rows.tags_us == [NOW]
    played.reduce.watermark(0, 20 * MS)
    assert played.rows.tags_us == [NOW, None], "what came last has had its result"
    again = played.restarted(tmp_path)
    again.reduce.watermark(0, FOREVER_US)
    assert len(again.rows.counts) == 7 and {*again.rows.tags_us} == {None}


class Lone:
    """Sources of one live partition each → counts over windows; the clock goes on as the test says."""

    def __init__(
        self, logs: Path, sources: int = 1, window: TimeWindow = TUMBLING, count: Any = None, *, alone: bool = False,
        lateness_us: int = 0,
    ) -> None:  # fmt: skip
        self.readers = [Spoken() for _ in range(sources)]
        self.sources, self.now_us, self.rows = [], NOW, Rows()
        self.union = Forward("u", sources, SCHEMA)
        for number, reader in enumerate(self.readers):
            node: Any = SourceNode(f"s{number}", LiveSource((reader,)), "t", "ms", lateness_us, IDLE)  # type: ignore[arg-type]
            source = SourceOperator(node, SCHEMA, Guard("s", "fail"), 1, logs, IDLE, eager=True, alone=alone)
            source.feed(self.union, number)
            source.restored([0])
            source.begin()
            self.sources.append(source)
        reduce = ReduceNode("n", ("k",), window, (("n", count or hr.count()),), ("u",))
        sample = pa.RecordBatch.from_pylist([{"k": 1, "t": 1}], schema=SCHEMA)
        out = _step(reduce, [_of(sample.schema, sample)], None, None).schema
        self.reduce = build_reduce(reduce, SCHEMA, out, Guard("n", "fail"), Place(4), eager=True)
        self.union.feed(self.reduce)
        self.reduce.feed(self.rows)

    def say(self, *spoken: tuple[int, int]) -> None:
        """So many milliseconds of event time, each by the source with that number."""
        for source, t in spoken:
            self.readers[source].batches.append([{"k": 1, "t": t}])
        self.look()

    def wait(self, span_us: int) -> None:
        for step_us in (span_us - span_us // 2, span_us // 2):
            self.now_us += step_us
            self.look()

    def look(self) -> None:
        for source in self.sources:
            while source.poll(1000, self.now_us):
                pass
            source.on_clock(self.now_us)

    def end(self) -> dict[int, int]:
        self.reduce.watermark(0, FOREVER_US)
        return self.rows.counts


SPANS = st.sampled_from([0, 1, 5, IDLE // 2, IDLE, IDLE + 1, 3 * IDLE, 1000 * IDLE])


@given(st.lists(st.tuples(SPANS, st.lists(st.integers(0, 30), max_size=5)), max_size=30), st.booleans())
def test_no_record_of_a_lone_source_is_late_because_it_was_quiet(
    bursts: list[tuple[int, list[int]]], alone: bool
) -> None:
    with tempfile.TemporaryDirectory() as logs:
        lone, t, expected = Lone(Path(logs), alone=alone), 0, Counter[int]()
        for span_us, steps in bursts:
            lone.wait(span_us)
            times = [t := t + step for step in steps]
            expected.update(t // 10 * 10 + 10 for t in times)
            lone.say(*((0, t) for t in times))
        assert lone.end() == expected and lone.reduce.meter.late == 0


@example([(0, 0, 40), (3 * IDLE, 1, 20)], 0, SLIDING, SINGLY)
@given(
    st.lists(st.tuples(SPANS, st.sampled_from([0, 0, 0, 1]), st.integers(0, 60)), max_size=40),
    st.integers(0, 20),
    st.sampled_from([TUMBLING, SLIDING]),
    st.sampled_from([hr.count(), SINGLY]),
)
def test_a_source_that_is_silent_holds_another_back_for_idle_at_most(
    spoken: list[tuple[int, int, int]], lateness_ms: int, window: TimeWindow, count: Any
) -> None:
    """And however long one was silent, what it brings counts in all windows that the other has not closed meanwhile."""
    with tempfile.TemporaryDirectory() as logs:
        two, newest = Lone(Path(logs), 2, window, count, lateness_us=lateness_ms * MS), [0, 0]
        heard: list[tuple[int, int, int]] = []
        expected, late = Counter[int](), 0
        for span_us, source, step in spoken:
            two.wait(span_us)
            newest[source] += step
            first = newest[source] // 10 * 10 + 10
            ends = [end for end in range(first, first + window.size_us // MS, 10) if end * MS > two.reduce.watermark_us]
            expected.update(ends)
            late += not ends
            two.say((source, newest[source]))
            heard.append((two.now_us, source, newest[source]))
            long_ago = [told for told in heard if told[0] < two.now_us - IDLE]
            awake = {source for at_us, source, _ in heard if at_us >= two.now_us - IDLE}
            for one, other in ((0, 1), (1, 0)):
                if other not in awake and any(source == one for _, source, _ in long_ago):
                    reached_ms = max(t for _, source, t in long_ago if source == one) - lateness_ms
                    assert two.reduce.watermark_us >= reached_ms * MS
        assert (two.end(), two.reduce.meter.late) == (expected, late)
