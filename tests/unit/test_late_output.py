"""Late records as a stream of their own: just those that count in no window, in every mode, each once."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from acts import InActs, counters, in_acts, play
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Record
from soaking import MORE
from workflows import Kept, out

import headrace as hr
from headrace.errors import GraphError
from headrace.graph.nodes import JoinNode
from headrace.graph.windowing import FOREVER_US, TimeWindow
from headrace.runtime.batch import Batch
from headrace.runtime.operators.joins import Join, join_schema
from headrace.schemas import to_schema
from headrace.testing import PAUSE, LocalRun, run_local, scripted

MODES = ("realtime", "microbatch", "batch")
SCHEMA = {"k": "string", "v": "int64", "t": "int64", "note": "string"}


def record(t: int, v: int = 1, k: str = "a") -> Record:
    return {"k": k, "v": v, "t": t, "note": f"at {t}"}


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def windowed(stream: hr.Stream, window: Any, name: str, **reducers: Any) -> hr.Stream:
    return stream.key_by("k").window(window).reduce(name=name, **(reducers or {"n": hr.count()}))


def test_what_counts_in_no_window_comes_out_as_it_went_in(mode: str) -> None:
    job = hr.Job("job")
    read = job.source("s", scripted([record(t) for t in (5, 12, 3, 48, 9, 22)], schema=SCHEMA), event_time="t")
    counts = windowed(read, hr.tumbling("10 ms"), "counts").sink("out", out())
    counts.late().filter(lambda r: r["t"] > 3, name="some").sink("late-out", out())
    counts.late(name="again").sink("again-out", out())
    got = run_local(job, mode=mode)
    assert sorted(row["n"] for row in got["out"]) == [1, 1, 1]
    assert sorted(row["t"] for row in got["again-out"]) == [3, 9, 22]
    assert sorted(got["late-out"], key=lambda row: row["t"]) == [record(9), record(22)], "all columns, read or not"


SINGLY = hr.reducer(init=lambda: 0, update=lambda n, record: n + 1)
KINDS: dict[str, Callable[[hr.Stream], hr.Stream]] = {
    "paned": lambda s: windowed(s, hr.sliding("30 ms", every="10 ms"), "r"),
    "direct": lambda s: windowed(s, hr.sliding("30 ms", every="10 ms"), "r", n=SINGLY),
    "versioned": lambda s: windowed(s, hr.versioned(hr.sliding("30 ms", every="10 ms"), keep="20 ms"), "r"),
    "sessions": lambda s: windowed(s, hr.session_window("25 ms"), "r"),
    "bounded": lambda s: (
        s.key_by("k").window(hr.session_window("25 ms")).reduce(name="r", n=hr.count(), state=hr.keep(memory="1 MB"))
    ),
}
TIMES = st.lists(st.integers(0, 300), min_size=1, max_size=60)


@pytest.mark.parametrize("kind", KINDS)
@given(one=TIMES, other=TIMES, mode=st.sampled_from(["realtime", "microbatch"]), seed=st.integers(0, 1000))
@settings(max_examples=4 * MORE)
def test_late_records_are_just_those_that_are_counted_as_late(
    kind: str, one: list[int], other: list[int], mode: str, seed: int
) -> None:
    """With restarts and another parallelism in between, none is missing and none comes twice."""
    parts = [[record(t, v=i, k="ab"[t % 2]) for i, t in enumerate(times)] for times in (one, other)]
    reach = {"versioned": 50, "sessions": 25, "bounded": 25}.get(kind, 30)
    expected: Counter[tuple[int, int]] = Counter()
    for part in parts:
        newest = -(10**6)
        for r in part:
            t = r["t"]
            last = t + reach if kind in ("sessions", "bounded") else (t + 30) // 10 * 10 + reach - 30
            expected.update([(t, r["v"])] if last <= newest else [])
            newest = max(newest, t)
    source = in_acts(parts, SCHEMA, 3, seed)
    job = hr.Job("job")
    KINDS[kind](job.source("s", source, event_time="t")).sink("out", out()).late().sink("late-out", out())
    with tempfile.TemporaryDirectory() as checkpoint:
        got = play(job, source, Path(checkpoint), mode=mode, acts=3, seed=seed)
    assert Counter((row["t"], row["v"]) for row in got["late-out"]) == expected


def test_each_side_of_a_join_has_its_late_records(mode: str) -> None:
    job = hr.Job("job")
    left = job.source("l", scripted([record(t) for t in (5, 40, 1)], schema=SCHEMA), event_time="t")
    right = job.source("r", scripted([{"k": "a", "w": t, "t": t} for t in (6, 50, 2, 3)]), event_time="t")
    joined = left.key_by("k").window(hr.tumbling("10 ms")).join(right.key_by("k"), name="j").sink("out", out())
    joined.late("left").sink("left-out", out())
    joined.late("right").sink("right-out", out())
    got = run_local(job, mode=mode)
    assert [(row["t"], row["w"]) for row in got["out"]] == [(5, 6)]
    assert got["left-out"] == [record(1)] and sorted(row["w"] for row in got["right-out"]) == [2, 3]


@pytest.mark.parametrize("memory", [None, "4 MB"])
def test_each_side_of_an_interval_join_has_its_late_records(mode: str, memory: str | None) -> None:
    job = hr.Job("job")
    left = job.source("l", scripted([record(t) for t in (5, 40, 1)], schema=SCHEMA), event_time="t")
    right = job.source("r", scripted([{"k": "a", "w": t, "t": t} for t in (6, 50, 2, 3)]), event_time="t")
    joined = left.key_by("k").join(right.key_by("k"), within="5 ms", name="j", state=hr.keep(memory=memory))
    joined.sink("out", out())
    joined.late("left").sink("left-out", out())
    joined.late("right").sink("right-out", out())
    got = run_local(job, mode=mode)
    assert [(row["t"], row["w"]) for row in got["out"]] == [(5, 6)]
    assert got["left-out"] == [record(1)] and sorted(row["w"] for row in got["right-out"]) == [2, 3]


def test_a_join_does_not_open_a_window_again_for_one_who_was_silent() -> None:
    """Of its windows the first is closed by others' time: the record is late for all, as if it were so by its own."""
    schema = to_schema({"k": "string", "t": "int64"})
    node = JoinNode("j", ("k",), TimeWindow(30_000, 10_000), "outer", ("l", "r"))
    join = Join(node, (schema, schema), join_schema(node, schema, schema), 4)
    late, joined = Kept(), Kept()
    join.feed(joined)
    join.feed_late(late, 1)
    for port in (0, 1):
        join.watermark(port, 40_000)
    for port, t in ((1, 20), (1, 45), (0, 12)):
        records = pa.RecordBatch.from_pylist([{"k": "a", "t": t}], schema=schema)
        join.receive(port, Batch(records, np.array([t * 1000]), 1))
    assert late.rows == [{"k": "a", "t": 20}] and join.meter.late == 2
    for port in (0, 1):
        join.watermark(port, FOREVER_US)
    assert [row["t_right"] for row in joined.rows] == [45, 45, 45] and {row["t"] for row in joined.rows} == {None}


def test_steps_that_share_panes_have_late_records_of_their_own(mode: str, tmp_path: Path) -> None:
    job = hr.Job("job")
    read = job.source("s", scripted([record(t) for t in (5, 95, 70, 30)], schema=SCHEMA), event_time="t")
    windowed(read, hr.tumbling("20 ms"), "short", n=hr.count()).sink("a-out", out()).late().sink("short-out", out())
    windowed(read, hr.tumbling("60 ms"), "long", n=hr.count()).sink("b-out", out()).late().sink("long-out", out())
    local = LocalRun(job, tmp_path, mode=mode)
    try:
        assert any(name.endswith(".panes") for name in local.plan.graph.by_name)
        local.run()
        assert sorted(row["t"] for row in local.rows("short-out")) == [30, 70]
        assert [row["t"] for row in local.rows("long-out")] == [30]
    finally:
        local.close()


@pytest.mark.parametrize(("live", "mode"), [(True, "realtime"), (True, "microbatch"), (False, "microbatch")])
def test_what_a_source_brings_that_was_silent_is_late_record_by_record(live: bool, mode: str, tmp_path: Path) -> None:
    """Several records of one key would be combined before the shuffle, and could then not be handed out."""
    busy = tuple(record(t) for t in range(0, 500, 10))
    old, new = tuple(record(t, v=t) for t in (50, 51, 52, 53)), (record(10_000),)
    source = InActs(((busy, (), new), ((), old, new)), to_schema(SCHEMA), bounded=False, live=live)
    job = hr.Job("job")
    read = job.source("s", source, event_time="t", idle="20 ms", parallelism=2)
    windowed(read, hr.tumbling("100 ms"), "sums", v=hr.sum("v")).sink("out", out()).late().sink("late-out", out())
    local = LocalRun(job, tmp_path, mode=mode, parallelism=2)
    try:
        until(local, lambda: len(local.rows("out")) >= 4)
        source.curtain.acts = 2
        until(local, lambda: len(local.rows("late-out")) >= 4)
        assert sorted(row["v"] for row in local.rows("late-out")) == [50, 51, 52, 53]
        assert counters(local)["late:sums"] == 4
    finally:
        local.close()


def until(local: LocalRun, done: Callable[[], bool]) -> None:
    for _ in range(100):
        local.batch(seconds=0.1)
        if done():
            return
    raise AssertionError("it never happened")


def test_results_are_collected_although_only_late_records_are_read() -> None:
    job = hr.Job("job")
    read = job.source("s", scripted([record(5), record(40), record(1)], schema=SCHEMA), event_time="t")
    counts = windowed(read, hr.tumbling("10 ms"), "counts")
    counts.late()
    got = run_local(job)
    assert len(got["counts.collected"]) == 2 and got["counts.late.collected"] == [record(1)]


def test_late_records_can_be_in_time_for_longer_windows(mode: str) -> None:
    job = hr.Job("job")
    read = job.source(
        "s", scripted([record(5), record(40), PAUSE, record(1), record(2)], schema=SCHEMA), event_time="t"
    )
    late = windowed(read, hr.tumbling("10 ms"), "short").sink("out", out()).late()
    windowed(late, hr.tumbling("100 ms"), "long").sink("long-out", out())
    assert [row["n"] for row in run_local(job, mode=mode)["long-out"]] == [2]


def refused(make: Callable[[hr.Stream], hr.Stream]) -> str:
    job = hr.Job("job")
    read = job.source("s", scripted([record(1)], schema=SCHEMA), event_time="t")
    with pytest.raises(GraphError) as caught:
        make(read).sink("out", out())
        job.graph()
    return str(caught.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda s: s.late(), ["late() after 's'", "windowed reduce or join"]),
        (lambda s: s.map(dict, name="m").late(), ["late() after 'm'", "ask that step"]),
        (lambda s: s.key_by("k").reduce(name="r", n=hr.count()).late(), ["'r'", "all records so far"]),
        (lambda s: windowed(s, hr.count_window(3), "r").late(), ["'r'", "no record can be late for every 3 records"]),
        (lambda s: windowed(s, hr.whole_input(), "r").late(), ["'r'", "the whole input", "hr.tumbling"]),
        (lambda s: s.key_by("k").process(print, name="p", returns=SCHEMA).late(), ["process 'p'", "state.late"]),
        (
            lambda s: windowed(
                windowed(s, hr.tumbling("1 s"), "first").filter(bool), hr.tumbling("1 min"), "second"
            ).late(),
            ["'second'", "results of first", "none is late"],
        ),
        (lambda s: windowed(s, hr.tumbling("1 s"), "r").late("left"), ["late('left') after 'r'", "write late()"]),
        (
            lambda s: s.key_by("k").window(hr.tumbling("1 s")).join(s.key_by("k"), name="j").late(),
            ["join 'j'", "late('left') or late('right')"],
        ),
    ],
)
def test_steps_without_late_records_are_refused(make: Callable[[hr.Stream], hr.Stream], words: list[str]) -> None:
    said = refused(make)
    assert all(word in said for word in words), said


def test_results_in_versions_can_be_late_for_the_next_step() -> None:
    job = hr.Job("job")
    read = job.source("s", scripted([record(1)], schema=SCHEMA), event_time="t")
    first = windowed(read, hr.versioned(hr.tumbling("1 s"), keep="1 min"), "first")
    windowed(first, hr.tumbling("1 min"), "second").late().sink("out", out())
    job.graph()
