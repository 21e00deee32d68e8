"""Records and functions that fail: named and stopped, or skipped, counted and told to the dead letters."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import reference as ref
from acts import counters
from hypothesis import given
from hypothesis import strategies as st
from reference import Record
from workflows import out

import headrace as hr
from headrace.connect.collect import collect_sink, read_collected
from headrace.connect.source import BadRecord, Poll
from headrace.errors import DataError, SchemaError, UserCodeError
from headrace.graph.windowing import NEVER_US
from headrace.runtime.operators.eventtimes import check_time_type, event_times, own_watermarks
from headrace.runtime.operators.usercode import Guard, line_of, shorten
from headrace.testing import CRASH, LocalRun, run_local, scripted
from headrace.testing.scripted import Scripted, ScriptedCrash, _Player

MODES = ("realtime", "microbatch", "batch")
GOOD, BAD = {"k": "a", "v": 1, "t": 1}, {"k": "b", "v": 0, "t": 2}


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def invert(record: Record) -> Record:
    return {"k": record["k"], "v": 1 // record["v"], "t": record["t"]}


def refuse(state: int, record: Record) -> int:
    return state + 1 // record["v"]


STEPS: dict[str, Any] = {
    "map": lambda s, **o: s.map(invert, name="step", **o),
    "flat_map": lambda s, **o: s.flat_map(lambda r: [invert(r)], name="step", **o),
    "flat_map generator": lambda s, **o: s.flat_map(lambda r: (invert(r) for _ in "x"), name="step", **o),
    "filter": lambda s, **o: s.filter(lambda r: 1 // r["v"] > 0, name="step", **o),
    "process": lambda s, **o: s.key_by("k").process(lambda r, state, out: out(invert(r)), name="step", **o),
    "reduce, combining": lambda s, **o: s.key_by("k").window(hr.whole_input()).reduce(
        name="step", v=hr.reducer(init=int, update=refuse, combine=lambda a, b: a + b), **o
    ),
    "reduce": lambda s, **o: s.key_by("k").window(hr.tumbling("1 s")).reduce(
        name="step", v=hr.reducer(init=int, update=refuse), **o
    ),
}  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_a_failing_function_is_named_with_record_and_line(step: str, mode: str) -> None:
    job = hr.Job("job")
    s = job.source("s", scripted([GOOD, BAD]), event_time="t")
    STEPS[step](s).sink("out", out())
    with pytest.raises(UserCodeError) as caught:
        run_local(job, mode=mode)
    error = caught.value
    assert error.step == "step" and "'k': 'b'" in error.record and "ZeroDivisionError" in error.cause
    assert "test_runtime_errors.py:" in error.line and "1 // r" in error.line
    assert "step 'step' failed at" in str(error) and "on_error='skip' or a dead-letter sink" in str(error)


@pytest.mark.parametrize("step", STEPS)
def test_skipped_records_are_counted_and_reach_the_dead_letters(step: str, mode: str, tmp_path: Path) -> None:
    letters = collect_sink(tmp_path / "letters")
    job = hr.Job("job", dead_letter=letters)
    s = job.source("s", scripted([GOOD, BAD, GOOD | {"t": 3}], [BAD | {"k": "c"}]), event_time="t")
    STEPS[step](s).sink("out", out())
    run = LocalRun(job, tmp_path / "checkpoint", mode=mode, report="5 ms")
    try:
        run.batch()
        skipped = {name: n for name, n in counters(run).items() if name.startswith("skipped")}
        assert sum(skipped.values()) == 2 and {name.partition(" ")[0] for name in skipped} == {"skipped:step"}
        told = read_collected(letters.directory)
        assert sorted(letter["record"] for letter in told) == sorted([repr(BAD), repr(BAD | {"k": "c"})])
        assert {(letter["step"], letter["reason"].partition(":")[0]) for letter in told} == {
            ("step", "ZeroDivisionError")
        }
        assert {row["k"] for row in run.rows("out") if row["v"]} == {"a"}
    finally:
        run.close()


def test_a_step_can_skip_while_the_job_fails_and_the_other_way_round() -> None:
    job = hr.Job("job")
    job.source("s", scripted([GOOD, BAD])).map(invert, name="step", on_error="skip").sink("out", out())
    assert [row["k"] for row in run_local(job, mode="batch")["out"]] == ["a"]
    strict = hr.Job("job", on_error="skip")
    strict.source("s", scripted([GOOD, BAD])).map(invert, name="step", on_error="fail").sink("out", out())
    with pytest.raises(UserCodeError):
        run_local(strict, mode="batch")


def test_dead_letters_of_a_failed_attempt_are_not_published(tmp_path: Path) -> None:
    letters = collect_sink(tmp_path / "letters")
    job = hr.Job("job", dead_letter=letters)
    source = scripted([BAD, GOOD, CRASH, GOOD], flags=tmp_path / "flags")
    job.source("s", source, event_time="t").map(invert, name="step").sink("out", out())
    run = LocalRun(job, tmp_path / "checkpoint", mode="batch")
    with pytest.raises(ScriptedCrash):
        run.batch()
    assert read_collected(letters.directory) == []
    run.batch()
    run.close()
    assert len(read_collected(letters.directory)) == 1 and len(run.rows("out")) == 2


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ({"v": "text"}, "does not fit the schema fixed at the start"),
        ({"v": 1.5}, "does not fit the schema fixed at the start"),
        ({"v": 1, "new": 2}, "column 'new' is new"),
        ({"v": 2**70}, "does not fit the schema fixed at the start"),
        ("text", "must return records .mappings., not str"),
        (None, "must return records .mappings., not NoneType"),
    ],
)
def test_a_change_of_schema_is_named(made: Any, reason: str) -> None:
    job = hr.Job("job")
    records = [{"i": i} for i in range(300)]  # samples see the first 200
    s = job.source("s", scripted(records))
    s.map(lambda r: {"v": r["i"]} if r["i"] != 250 else made, name="step").sink("out", out())
    with pytest.raises(UserCodeError) as caught:
        run_local(job, mode="batch")
    assert caught.value.step == "step"
    assert re.search(reason, str(caught.value)), str(caught.value)
    skipping = hr.Job("job", on_error="skip")
    s = skipping.source("s", scripted(records))
    s.map(lambda r: {"v": r["i"]} if r["i"] != 250 else made, name="step").sink("out", out())
    assert len(run_local(skipping, mode="batch")["out"]) == 299


def test_declared_columns_are_a_choice(mode: str) -> None:
    job = hr.Job("job")
    s = job.source("s", scripted([GOOD, BAD]))
    s.map(lambda r: {**r, "more": 1} if r["v"] else {"k": "-"}, name="step", returns={"k": "str", "v": "int"}).sink(
        "out", out()
    )
    rows = run_local(job, mode=mode, parallelism=1)["out"]
    assert rows == [{"k": "a", "v": 1}, {"k": "-", "v": None}]


def test_a_huge_record_passes_and_is_shortened_in_errors(mode: str) -> None:
    huge = {"k": "x" * 5_000_000, "v": 0, "t": 1}
    job = hr.Job("job")
    job.source("s", scripted([huge]), event_time="t").key_by("k").window(hr.tumbling("1 s")).reduce(
        name="r", n=hr.count()
    ).sink("out", out())
    (row,) = run_local(job, mode=mode, queue="1 MB", flush_bytes=1000)["out"]
    assert row["n"] == 1 and len(row["k"]) == 5_000_000
    failing = hr.Job("job")
    failing.source("s", scripted([GOOD, huge])).map(invert, name="step").sink("out", out())
    with pytest.raises(UserCodeError) as caught:
        run_local(failing, mode=mode)
    assert len(str(caught.value)) < 1000 and "… (5000025 characters)" in caught.value.record


WRONG_TIMES: list[tuple[str, Any]] = [
    ("int64", None),
    ("int64", -1),
    ("int64", -(2**63)),
    ("int64", 2**63 - 1),
    ("int64", 253_402_300_799_000),
    ("float64", float("nan")),
    ("float64", float("inf")),
    ("float64", -math.inf),
    ("float64", 1e300),
    ("float64", -0.5),
    ("string", "yesterday"),
    ("string", ""),
    ("string", None),
    ("string", "9999-12-31T23:59:59Z"),
    ("timestamp[us]", datetime(9999, 12, 31)),
    ("timestamp[us]", datetime(1969, 12, 31)),
    ("timestamp[us]", None),
    ("uint64", 2**64 - 1),
]


@pytest.mark.parametrize(("kind", "wrong"), WRONG_TIMES, ids=lambda v: str(v))
def test_wrong_event_times_are_bad_records(kind: str, wrong: Any, tmp_path: Path) -> None:
    right: Any = {"string": "2024-01-01T00:00:00", "float64": 1.5, "timestamp[us]": datetime(2024, 1, 1)}.get(kind, 5)
    script = [{"k": k, "t": wrong if k in "bd" else right} for k in "abcde"]
    schema = {"k": "string", "t": kind}
    for on_error in ("fail", "skip"):
        job = hr.Job("job", on_error=on_error)  # type: ignore[arg-type]
        s = job.source("s", scripted(script, schema=schema), event_time="t")
        s.key_by("k").window(hr.tumbling("1 s")).reduce(name="r", n=hr.count()).sink("out", out())
        run = LocalRun(job, tmp_path / on_error, mode="batch")
        try:
            if on_error == "fail":
                with pytest.raises(DataError, match=r"source 's' read .* event time 't' = .* is not a usable time"):
                    run.batch()
            else:
                run.batch()
                assert counters(run)["skipped:s"] == 2, "both of one poll"
                assert sorted(row["k"] for row in run.rows("out")) == ["a", "c", "e"]
        finally:
            run.close()


_NOW = 1_800_000_000_000_000


@given(
    st.sampled_from(["s", "ms", "us", "ns", None]),
    st.lists(
        st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2 * 10**15)), min_size=1, max_size=10
    ),
)
def test_whole_numbers_as_times(unit: str | None, numbers: list[int | None]) -> None:
    times, usable = event_times(pa.array(numbers, pa.int64()), unit, _NOW)
    factor = {"s": 10**6, "ms": 1000, "us": 1, None: 1000}.get(unit)
    for number, at, good in zip(numbers, times.tolist(), usable.tolist()):
        exact = None if number is None else number * factor if factor else number // 1000
        assert good == (exact is not None and 0 <= exact <= _NOW + 86_400_000_000)
        assert not good or at == exact


@given(st.lists(st.datetimes(datetime(1970, 1, 1), datetime(2026, 1, 1)), min_size=1, max_size=6), st.data())
def test_iso_texts_as_times(moments: list[datetime], data: st.DataObject) -> None:
    """With and without zone, mixed with nonsense; no zone means UTC."""
    texts: list[str | None] = []
    for moment in moments:
        text = moment.isoformat()
        texts.append(data.draw(st.sampled_from([text, text + "Z", text + "+00:00", text.replace("T", " ")])))
    broken = data.draw(st.sampled_from([None, "nonsense", "2024-13-01T00:00:00"]))
    mixed = data.draw(st.booleans())
    times, usable = event_times(pa.array([*texts, broken] if mixed else texts), None, _NOW)
    assert usable.tolist() == [True] * len(texts) + [False] * mixed
    exact = [round((m.replace(tzinfo=UTC) - ref.at(0)).total_seconds() * 1e6) for m in moments]
    assert times.tolist()[: len(exact)] == pytest.approx(exact, abs=1)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.integers(0, 10), st.data())
def test_watermarks_do_not_depend_on_how_input_is_cut(times: list[int], lateness: int, data: st.DataObject) -> None:
    newest, got, at = NEVER_US, [], 0
    while at < len(times):
        size = data.draw(st.integers(1, len(times)))
        part = np.array(times[at : at + size])
        late, newest = own_watermarks(part, newest, lateness)
        for i, t in enumerate(part.tolist()):
            got.append(int(late[i]) if late is not None and t < late[i] else NEVER_US)
        at += size
    assert got == [one.late_us for one in ref.enter([[{"t": t} for t in times]], lateness, unit_us=1)]
    assert newest == max(times)


def test_event_time_types() -> None:
    for kind in (pa.bool_(), pa.list_(pa.int64()), pa.binary()):
        with pytest.raises(
            SchemaError, match="source 's': event time 't' is .*; it must be a timestamp, ISO text or a"
        ):
            check_time_type(kind, "t", "s")
    for kind in (pa.int8(), pa.float32(), pa.string(), pa.timestamp("ns", "UTC"), pa.date32()):
        check_time_type(kind, "t", "s")


class _Messy(_Player):
    def poll(self, max_rows: int, now_us: int) -> Poll | None:
        poll = super().poll(max_rows, now_us)
        return poll and Poll(poll.records, bad=[BadRecord("{broken" + "x" * 1000, "not JSON", "a.jsonl, line 7")])


class Messy(Scripted):
    """A script in which every poll also finds input that is no record."""

    def open(self, partition: int, of: int, offset: Any, schema: pa.Schema, log_dir: Path) -> Any:
        return _Messy(self, partition, (offset or {}).get("at", 0))


def test_input_that_is_no_record(tmp_path: Path) -> None:
    plain = scripted([GOOD, GOOD])
    source = Messy(plain.parts, plain.declared, None)
    job = hr.Job("job")
    job.source("s", source).sink("out", out())
    with pytest.raises(
        DataError, match=r"not a record, in a.jsonl, line 7: not JSON(?s:.)*repair the input, or .*on_error='skip'"
    ):
        run_local(job, mode="batch")
    letters = collect_sink(tmp_path / "letters")
    job = hr.Job("job", dead_letter=letters)
    job.source("s", source).sink("out", out())
    run = LocalRun(job, tmp_path / "checkpoint", mode="batch", poll_rows=1)
    run.batch()
    run.close()
    told = read_collected(letters.directory)
    assert [(t["step"], t["reason"], len(t["record"])) for t in told] == [("s", "not JSON (a.jsonl, line 7)", 300)] * 2


def batch_job(fn: Any, script: list[Any], *, window: str = "10 ms", before: Any = None, **options: Any) -> hr.Job:
    job = hr.Job("job")
    s = job.source("s", scripted(script), event_time="t")
    s = before(s) if before is not None else s
    made = s.map_batch(fn, name="step", **options)
    made.key_by("k").window(hr.tumbling(window)).reduce(name="r", n=hr.count(), v=hr.sum("v")).sink("out", out())
    return job


TIMED = [{"k": "a", "v": v, "t": t} for v, t in enumerate([1, 12, 25, 7, 31, 3])]


def windows(seen: list[ref.Seen]) -> list[Any]:
    return ref.bag(ref.time_windows(seen, ["k"], 10_000, 10_000, {"n": ref.count(), "v": ref.total("v")}))


BATCH_FUNCTIONS: dict[str, tuple[Any, Any]] = {
    "drops rows": (lambda b: b.filter(pc.greater(b.column("v"), 1)), lambda r: [r] if r["v"] > 1 else []),
    "drops all rows": (lambda b: b.slice(0, 0), lambda r: []),
    "repeats rows": (lambda b: pa.concat_batches([b, b]), lambda r: [r, r]),
    "returns a table": (lambda b: pa.Table.from_batches([b]), lambda r: [r]),
    "returns an empty table": (lambda b: pa.Table.from_batches([b]).slice(0, 0), lambda r: []),
    "reorders rows": (lambda b: b.sort_by([("v", "descending")]), lambda r: [r]),
    "changes the time column's unit": (
        lambda b: b.set_column(2, "t", pc.divide(b.column("t").cast(pa.float64()), 7.0)), lambda r: [r]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BATCH_FUNCTIONS)
@pytest.mark.parametrize("poll_rows", [1, 100])
def test_batch_functions_keep_times(name: str, poll_rows: int, mode: str) -> None:
    fn, meaning = BATCH_FUNCTIONS[name]
    got = run_local(batch_job(fn, TIMED), mode=mode, poll_rows=poll_rows, flush="0 ms")["out"]
    assert ref.bag(got) == windows(ref.flat_mapped(ref.enter([TIMED]), meaning))


def test_batch_functions_behind_windows_keep_times(mode: str) -> None:
    """Rows of several windows share a buffer there and have no time column of their own."""

    def per_window(s: hr.Stream) -> hr.Stream:
        return s.key_by("k").window(hr.tumbling("5 ms")).reduce(name="first", v=hr.sum("v"))

    fn = lambda b: pa.concat_batches([b.slice(0, 1), b])  # noqa: E731
    job = batch_job(fn, TIMED, before=per_window, chain=False)
    first = ref.time_windows(ref.enter([TIMED]), ["k"], 5000, 5000, {"v": ref.total("v")})
    got = run_local(job, mode=mode, flush="0 ms", poll_rows=1, parallelism=1)["out"]
    rows = {row["window_end"]: row["n"] for row in got}
    exact = ref.time_windows(ref.emitted(first), ["k"], 10_000, 10_000, {"n": ref.count()})
    assert set(rows) == {row["window_end"] for row in exact}
    assert all(rows[row["window_end"]] > row["n"] for row in exact)


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda b: 1 // 0 if b.num_rows < 200 else b, "ZeroDivisionError"),
        (lambda b: b.to_pylist() if b.num_rows < 200 else b, "must return a pyarrow.RecordBatch, not list"),
        (lambda b: b.drop_columns(["v"]) if b.num_rows < 200 else b, "column 'v' is missing"),
        (
            lambda b: b if b.num_rows == 200 else pa.record_batch({"k": ["a"], "v": [1], "t": [None]}, schema=b.schema),
            "without a usable event time",
        ),
    ],
)
def test_failing_batch_functions_are_named(fn: Any, reason: str) -> None:
    script = [{"k": "a", "v": 1, "t": t} for t in range(250)]
    with pytest.raises(UserCodeError, match=reason) as caught:
        run_local(batch_job(fn, script), mode="batch", poll_rows=50)
    assert caught.value.step == "step" and "batch_of" in caught.value.record


def test_guards_shorten_what_they_show() -> None:
    assert shorten({"a": 1}) == "{'a': 1}" and shorten("x" * 400).endswith("… (402 characters)")
    assert line_of(ValueError("never raised")) == "its call"
    guard = Guard("step", "skip")
    guard({"a": 1}, ValueError("x"))
    guard.bad_input("text", "reason")
    assert guard.skipped == 2
