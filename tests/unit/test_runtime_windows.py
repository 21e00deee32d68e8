"""Windows one by one: boundaries, lateness, order, idle inputs, counts, versions, early results."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import reference as ref
from acts import counters
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Record
from workflows import MS, out

import headrace as hr
from headrace.connect.source import Offset, Poll
from headrace.graph.nodes import SourceNode
from headrace.graph.windowing import IDLE_US, NEVER_US, TimeWindow
from headrace.runtime.batch import Batch
from headrace.runtime.operators.eventtimes import first_end, last_end
from headrace.runtime.operators.sources import SourceOperator
from headrace.runtime.operators.usercode import Guard
from headrace.schemas import to_schema
from headrace.testing import PAUSE, LocalRun, run_local, scripted

MODES = ("realtime", "microbatch", "batch")
SCHEMA = {"k": "string", "v": "int64", "t": "int64"}


def records(*times: int, k: str = "a") -> list[Record]:
    return [{"k": k, "v": i, "t": t} for i, t in enumerate(times)]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(job: hr.Job, tmp_path: Path, mode: str, **options: Any) -> tuple[dict[str, list[Any]], dict[str, int]]:
    """Rows per sink of a job that fits in one epoch, and what its subtasks counted."""
    local = LocalRun(job, tmp_path, mode=mode, report="5 ms", **options)
    try:
        local.batch()
        assert local.finished
        return {name: local.rows(name) for name in local.plan.graph.by_name if name.endswith("out")}, counters(local)
    finally:
        local.close()


# cmr fact 6: w=10, s=3: boundaries 3 apart; a tuple lies in 3 or 4 windows
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 10_000))
def test_window_boundaries(size: int, every: int, at: int) -> None:
    size, every = max(size, every), min(size, every)
    window = TimeWindow(size, every)
    ends = ref.window_ends(at, size, every)
    times = np.array([at])
    assert [*first_end(times, window), *last_end(times, window)] == [ends[0], ends[-1]]
    assert all(end % every == 0 and end - size <= at < end for end in ends)
    if (size, every) == (10, 3):
        assert len(ends) in (3, 4)


def test_ten_every_three(mode: str) -> None:
    job = hr.Job("job")
    s = job.source("s", scripted(records(*range(40))), event_time="t", time_unit="s")
    s.key_by("k").window(hr.sliding("10 s", every="3 s")).reduce(name="r", n=hr.count()).sink("out", out())
    rows = run_local(job, mode=mode)["out"]
    ends = sorted((row["window_end"] - ref.at(0)).total_seconds() for row in rows)
    assert ends == list(range(3, 49, 3)) and sum(row["n"] for row in rows) == sum(
        len(ref.window_ends(t, 10, 3)) for t in range(40)
    )


# cmr fact 5: windows of one operator materialise in boundary order
def test_windows_come_in_the_order_of_their_ends(mode: str) -> None:
    job = hr.Job("job")
    parts = [records(*range(0, 3000, 7)), records(*range(2999, 0, -13))]
    s = job.source("s", scripted(*parts), event_time="t", lateness="5 s")
    s.key_by("k").window(hr.sliding("300 ms", every="70 ms")).reduce(name="r", n=hr.count()).sink("out", out())
    s.key_by("k").window(hr.session_window("50 ms")).reduce(name="q", n=hr.count()).sink("session-out", out())
    for sink, rows in run_local(job, mode=mode, seed=3, poll_rows=10, parallelism=1).items():
        ends = [row["window_end"] for row in rows]
        assert ends == sorted(ends) and len(ends) > (1 if sink == "out" else 0)


@pytest.mark.parametrize("poll_rows", [1, 100])
def test_a_pause_of_exactly_the_gap_ends_a_session(poll_rows: int, mode: str) -> None:
    """Within one batch, between batches, and where a record comes before those that are there."""
    job = hr.Job("job")
    times = (100, 150, 199, 249, 51, 1000)
    s = job.source("s", scripted(records(*times)), event_time="t", lateness="10 s")
    s.key_by("k").window(hr.session_window("50 ms")).reduce(name="q", n=hr.count()).sink("out", out())
    rows = run_local(job, mode=mode, poll_rows=poll_rows, flush="0 ms", parallelism=1)["out"]
    found = [(row["window_start"], row["window_end"], row["n"]) for row in rows]
    assert found == [
        (ref.at(start * MS), ref.at(end * MS), n)
        for start, end, n in ((51, 150, 2), (150, 249, 2), (249, 299, 1), (1000, 1050, 1))
    ]


# cmr fact 9: unsorted input is rejected or counted, never silently misplaced; late records are counted exactly
@given(
    st.lists(st.lists(st.integers(0, 2000), min_size=1, max_size=20), min_size=1, max_size=2),
    st.sampled_from([0, 100]),
    st.sampled_from([(500, 500), (500, 200)]),
    st.sampled_from(MODES),
)
@settings(max_examples=12)
def test_late_records_are_counted_exactly(parts: Any, lateness: int, shape: tuple[int, int], mode: str) -> None:
    size, every = shape
    scripts = [records(*times) for times in parts]
    job = hr.Job("job")
    s = job.source("s", scripted(*scripts), event_time="t", lateness=f"{lateness} ms")
    window = hr.sliding(f"{size} ms", every=f"{every} ms")
    s.key_by("k").window(window).reduce(name="paned", n=hr.count()).sink("paned-out", out())
    plain = hr.reducer(init=int, update=lambda n, r: n + 1)
    s.key_by("k").window(window).reduce(name="direct", n=plain).sink("direct-out", out())
    s.key_by("k").window(hr.session_window("90 ms")).reduce(name="session", n=hr.count()).sink("session-out", out())
    with tempfile.TemporaryDirectory() as directory:
        rows, counted = run(job, Path(directory), mode, poll_rows=3)
    seen = ref.enter(scripts, lateness * MS)
    expected = ref.time_windows(seen, ["k"], size * MS, every * MS, {"n": ref.count()})
    assert ref.bag(rows["paned-out"]) == ref.bag(rows["direct-out"]) == ref.bag(expected)
    late = ref.dropped_late(seen, size * MS, every * MS)
    assert counted["late:paned"] == counted["late:direct"] == late
    assert counted["late:session"] == sum(one.time_us + 90 * MS <= one.late_us for one in seen)


def test_a_record_is_late_against_its_own_partition_only(mode: str, tmp_path: Path) -> None:
    """A partition far ahead makes nobody else's records late."""
    job = hr.Job("job")
    s = job.source("s", scripted(records(900_000, 900_001), records(10, 20, 15, 5)), event_time="t", lateness="10 ms")
    s.key_by("k").window(hr.tumbling("10 ms")).reduce(name="r", n=hr.count()).sink("out", out())
    rows, counted = run(job, tmp_path, mode)
    assert {(row["window_end"] - ref.at(0)).total_seconds(): row["n"] for row in rows["out"]} == {
        900.01: 2, 0.02: 2, 0.03: 1
    }  # fmt: skip
    assert counted["late:r"] == 1, "5 came after its partition's watermark had reached 10"


@dataclass(frozen=True)
class Live:
    """A live source that plays its script once and then is silent."""

    script: tuple[tuple[Record, ...], ...]
    bounded: bool = False
    live: bool = True

    def partitions(self, parallelism: int) -> int:
        return len(self.script)

    def schema(self) -> pa.Schema:
        return pa.schema([("k", pa.string()), ("v", pa.int64()), ("t", pa.int64())])

    def sample(self, rows: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([r for part in self.script for r in part], schema=self.schema())

    def open(self, partition: int, of: int, offset: Offset | None, schema: pa.Schema, log_dir: Path) -> _Line:
        return _Line(iter(self.script[partition]), self.schema())

    def describe(self) -> str:
        return "live"


@dataclass(frozen=True)
class Flushed(Live):
    """The same with an end; at a PAUSE it is silent for longer than it takes to be idle, by the polls' own clock."""

    bounded: bool = True

    def sample(self, rows: int) -> pa.RecordBatch:
        first = [item for item in self.script[0] if item is not PAUSE]
        return pa.RecordBatch.from_pylist(first[:rows], schema=self.schema())

    def open(self, partition: int, of: int, offset: Offset | None, schema: pa.Schema, log_dir: Path) -> _Flushes:
        return _Flushes(list(self.script[partition]), self.schema(), **(offset or {"at": 0}))


class _Flushes:
    def __init__(self, items: list[Any], schema: pa.Schema, at: int) -> None:
        self._items, self._schema, self._at, self._from_us = items, schema, at, 0

    @property
    def exhausted(self) -> bool:
        return self._at >= len(self._items)

    def poll(self, max_rows: int, now_us: int) -> Poll | None:
        if now_us < self._from_us:
            return None
        record, self._at = self._items[self._at], self._at + 1
        if record is PAUSE:
            self._from_us = now_us + 20 * MS
            return None
        return Poll(pa.RecordBatch.from_pylist([record], schema=self._schema))

    def offset(self) -> Offset:
        return {"at": self._at}

    def next_due_us(self) -> int | None:
        return None

    def close(self) -> None:
        """Nothing to close."""


class _Line:
    exhausted = False

    def __init__(self, items: Iterator[Record], schema: pa.Schema) -> None:
        self._items, self._schema = items, schema

    def poll(self, max_rows: int, now_us: int) -> Poll | None:
        record = next(self._items, None)
        return None if record is None else Poll(pa.RecordBatch.from_pylist([record], schema=self._schema))

    def offset(self) -> Offset:
        return {}

    def next_due_us(self) -> int | None:
        return None

    def close(self) -> None:
        """Nothing to close."""


# cmr fact 10: an idle input holds nobody's windows open
@pytest.mark.parametrize("silent", [(), (("k", 1),)], ids=["never spoke", "spoke once"])
def test_an_idle_live_partition_does_not_hold_windows_back(silent: tuple[Any, ...], tmp_path: Path) -> None:
    quiet = tuple({"k": "a", "v": 1, "t": 1000} for _ in silent)
    busy = tuple({"k": "a", "v": 1, "t": 2000 + i} for i in range(11))
    job = hr.Job("job")
    s = job.source("s", Live((quiet, busy)), event_time="t", idle="20 ms")
    s.key_by("k").window(hr.tumbling("10 ms")).reduce(name="r", n=hr.count()).sink("out", out())
    local = LocalRun(job, tmp_path, report="5 ms", parallelism=1)
    try:
        deadline = time.monotonic() + 10
        while len(rows := local.rows("out")) < 1 + len(silent) and time.monotonic() < deadline:
            local.batch(seconds=0.1)
        assert sorted(row["n"] for row in rows) == [*(1 for _ in silent), 10], "the last window is still open"
    finally:
        local.close()


@pytest.mark.parametrize("lines", [1, 2])
def test_a_log_that_is_flushed_now_and_then_loses_nothing(lines: int, mode: str, tmp_path: Path) -> None:
    """Each flush brings what happened since the one before, and comes long after the source was taken for idle."""
    flushes = [records(*range(at, at + 100, 3)) for at in range(0, 600, 100)]
    script = [[*flush, PAUSE] for flush in flushes]
    source = Flushed(tuple(tuple(item for flush in script for item in flush) for _ in range(lines)))
    job = hr.Job("job")
    s = job.source("s", source, event_time="t", lateness="1 ms", idle="1 ms")
    s.key_by("k").window(hr.tumbling("10 ms")).reduce(name="r", n=hr.count()).sink("out", out())
    local = LocalRun(job, tmp_path, mode=mode, report="5 ms", parallelism=1)
    try:
        local.run()
        assert sum(row["n"] for row in local.rows("out")) == lines * sum(map(len, flushes))
        assert counters(local)["late:r"] == 0
    finally:
        local.close()


def test_a_bounded_partition_that_starts_late_still_counts(mode: str, tmp_path: Path) -> None:
    """Its records are sure to come, so no window closes before them, also where each epoch closes what it can."""
    job = hr.Job("job")
    s = job.source("s", scripted(records(1000, 2000), [PAUSE, PAUSE, *records(5, 6)], schema=SCHEMA), event_time="t")
    s.key_by("k").window(hr.tumbling("100 ms")).reduce(name="r", n=hr.count()).sink("out", out())
    assert sorted(row["n"] for row in run_local(job, mode=mode)["out"]) == [1, 1, 2]


@given(st.lists(st.sampled_from("abc"), max_size=40), st.integers(1, 5), st.sampled_from(MODES), st.data())
@settings(max_examples=10)
def test_count_windows(keys: list[str], n: int, mode: str, data: st.DataObject) -> None:
    script = [{"k": k, "v": i, "t": i} for i, k in enumerate(keys)]
    pauses = data.draw(st.lists(st.integers(0, len(script)), max_size=3))
    items: list[Any] = list(script)
    for at in sorted(pauses, reverse=True):
        items.insert(at, PAUSE)
    job = hr.Job("job")
    s = job.source("s", scripted(items, schema=SCHEMA), event_time="t")
    counted = s.key_by("k").window(hr.count_window(n)).reduce(name="r", vs=hr.collect_list("v"), total=hr.sum("v"))
    counted.sink("out", out())
    counted.key_by("k").window(hr.tumbling("10 ms")).reduce(name="later", n=hr.count()).sink("later-out", out())
    got = run_local(job, mode=mode, poll_rows=data.draw(st.integers(1, 7)))
    seen = ref.enter([script])
    rows = ref.count_windows(seen, ["k"], n, {"vs": ref.collected("v"), "total": ref.total("v")})
    assert ref.bag(got["out"]) == ref.bag(rows)
    for key in "abc":
        assert [row["vs"] for row in got["out"] if row["k"] == key] == [row["vs"] for row in rows if row["k"] == key]
    # a result has the time of the record that filled its window
    filled = [ref.Seen(row, max(row["vs"]) * MS) for row in rows]
    assert ref.bag(got["later-out"]) == ref.bag(ref.time_windows(filled, ["k"], 10 * MS, 10 * MS, {"n": ref.count()}))


def test_versions_follow_late_records(mode: str) -> None:
    job = hr.Job("job")
    script = [*records(10, 20, 150), PAUSE, *records(30), PAUSE, *records(40, 50, 5000, 60)]
    s = job.source("s", scripted(script), event_time="t")
    window = hr.versioned(hr.tumbling("100 ms"), keep="1 s")
    s.key_by("k").window(window).reduce(name="r", n=hr.count()).sink("out", out())
    rows = [row for row in run_local(job, mode=mode, poll_rows=1)["out"] if row["window_end"] == ref.at(100 * MS)]
    versions = [row["version"] for row in rows]
    assert versions == list(range(len(rows))), "each version once, in order"
    assert rows[-1]["n"] == 5, "60 came more than keep after the window's end"
    assert rows[0]["completeness"] == 1.0 and rows[-1]["completeness"] == pytest.approx(rows[0]["n"] / 5)
    if mode == "microbatch":
        assert [row["n"] for row in rows] == [2, 3, 5], "a version per epoch"


@pytest.mark.parametrize("window", [hr.tumbling("1 s"), hr.sliding("1 s", every="500 ms"), hr.whole_input()])
def test_early_results_come_once(window: Any, mode: str) -> None:
    job = hr.Job("job")
    s = job.source("s", scripted(records(*range(600, 640)) + records(700, 710, k="b")), event_time="t")
    full = hr.reducer(init=int, update=lambda n, r: n + 1, combine=lambda a, b: a + b, early=lambda n: n >= 10)
    s.key_by("k").window(window).reduce(name="r", n=full).sink("out", out())
    rows = run_local(job, mode=mode, poll_rows=4, flush="0 ms")["out"]
    by_window: dict[Any, list[int]] = {}
    for row in rows:
        by_window.setdefault((row["k"], row.get("window_end")), []).append(row["n"])
    assert {len(ns) for ns in by_window.values()} == {1}
    assert min(ns[0] for (k, _), ns in by_window.items() if k == "a") >= 10
    assert {ns[0] for (k, _), ns in by_window.items() if k == "b"} == {2}


def test_running_results_come_whenever_they_changed() -> None:
    job = hr.Job("job")
    s = job.source("s", scripted([*records(1, 2), PAUSE, *records(3), PAUSE, *records(4, k="b")]), event_time="t")
    s.key_by("k").reduce(name="r", n=hr.count()).sink("out", out())
    rows = run_local(job, mode="microbatch")["out"]
    assert [(row["k"], row["n"]) for row in rows] == [("a", 2), ("a", 3), ("b", 1)]


def test_an_input_without_records_gives_nothing_and_ends(mode: str) -> None:
    job = hr.Job("job")
    s = job.source("s", scripted([], [PAUSE], schema=SCHEMA), event_time="t")
    s.key_by("k").window(hr.tumbling("1 s")).reduce(name="r", n=hr.count()).sink("out", out())
    s.key_by("k").window(hr.whole_input()).reduce(name="w", n=hr.count()).sink("whole-out", out())
    s.key_by("k").window(hr.tumbling("1 s")).join(s.key_by("k"), how="outer", name="j").sink("join-out", out())
    assert run_local(job, mode=mode) == {"out": [], "whole-out": [], "join-out": []}


def test_a_stream_can_join_itself(mode: str) -> None:
    job = hr.Job("job")
    s = job.source("s", scripted(records(1, 2), records(3, k="b")), event_time="t")
    s.key_by("k").window(hr.tumbling("1 s")).join(s.key_by("k"), name="j").sink("out", out())
    rows = run_local(job, mode=mode)["out"]
    assert sorted((row["k"], row["v"], row["v_right"]) for row in rows) == [
        ("a", 0, 0), ("a", 0, 1), ("a", 1, 0), ("a", 1, 1), ("b", 0, 0)
    ]  # fmt: skip


def test_lists_and_structs_travel_through_joins(mode: str) -> None:
    script = [
        {"k": "a", "l": [1, 2], "d": {"x": 1}, "t": 1},
        {"k": "a", "l": None, "d": {"x": 2}, "t": 2},
        {"k": "b", "l": [], "d": None, "t": 3},
    ]
    job = hr.Job("job")
    s = job.source("s", scripted(script), event_time="t")
    kept = s.key_by("k").window(hr.tumbling("1 s")).reduce(name="r", ds=hr.collect_list("d"), ls=hr.last("l"))
    s.key_by("k").window(hr.tumbling("1 s")).join(kept.key_by("k"), how="left", name="j").sink("out", out())
    rows = run_local(job, mode=mode, parallelism=1)["out"]
    assert sorted((row["t"], row["l"], row["ls"], row["ds"]) for row in rows) == [
        (1, [1, 2], [1, 2], [{"x": 1}, {"x": 2}]), (2, None, [1, 2], [{"x": 1}, {"x": 2}]), (3, [], [], [])
    ]  # fmt: skip


@dataclass(frozen=True)
class Fed:
    """Like a user's streaming DataFrame: Spark hands the records over, and nothing is known of the next ones."""

    bounded: bool = False
    live: bool = False

    def partitions(self, parallelism: int) -> int:
        return parallelism

    def schema(self) -> pa.Schema:
        return to_schema(SCHEMA)

    def sample(self, rows: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], schema=self.schema())

    def open(self, partition: int, of: int, offset: Offset | None, schema: pa.Schema, log_dir: Path) -> _Line:
        return _Line(iter(()), self.schema())

    def describe(self) -> str:
        return "fed"


class Heard:
    """What a source hands on."""

    def __init__(self) -> None:
        self.late: dict[int, bool] = {}
        self.watermark_us = NEVER_US

    def receive(self, port: int, batch: Batch) -> None:
        self.late |= dict.fromkeys((batch.times // MS).tolist(), batch.late is not None)

    def watermark(self, port: int, watermark_us: int) -> None:
        self.watermark_us = watermark_us


def test_records_that_spark_read_are_late_against_earlier_epochs_only(tmp_path: Path) -> None:
    """Their order within a micro-batch means nothing."""
    node = SourceNode("s", Fed(), "t")
    source = SourceOperator(node, to_schema(SCHEMA), Guard("s", "fail"), 2, tmp_path, 1, eager=False)
    heard = Heard()
    source.feed(heard)
    source.restored([0])

    def epoch(*batches: list[int]) -> None:
        source.begin()
        for times in batches:
            source.take_external(pa.RecordBatch.from_pylist(records(*times), schema=to_schema(SCHEMA)), 10**15)
        source.on_cut(end=True)

    epoch([500, 100], [50, 900])
    assert heard.late == {500: False, 100: False, 50: False, 900: False} and heard.watermark_us == 900 * MS
    epoch([950, 899], [10])
    assert heard.late[899] and heard.late[10] and not heard.late[950] and heard.watermark_us == 950 * MS


def test_a_fed_subtask_without_records_holds_nobody_back(tmp_path: Path) -> None:
    source = SourceOperator(
        SourceNode("s", Fed(), "t"), to_schema(SCHEMA), Guard("s", "fail"), 2, tmp_path, 1, eager=False
    )
    heard = Heard()
    source.feed(heard)
    source.restored([1])
    source.begin()
    source.on_cut(end=True)
    assert heard.watermark_us == IDLE_US
