"""Which functions are called before a job runs, and with what."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.driver.schemafinding import infer
from headrace.testing import scripted

AT = 1_772_442_000_000  # 2026-03-02 09:00 UTC
RECORDS = [{"k": "a", "t": AT}, {"k": "b", "t": AT + 1000}]
Row = dict[str, Any]


class Called:
    """Functions of all kinds that tell when they are called."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.times: list[datetime] = []

    def map(self, record: Row) -> Row:
        self.names.append("map")
        return record

    def flat_map(self, record: Row) -> list[Row]:
        self.names.append("flat_map")
        return [record]

    def map_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.names.append("map_batch")
        return batch

    def update(self, state: int, record: Row) -> int:
        self.names.append("update")
        return state + 1

    def process(self, record: Row, state: Any, out: Any) -> None:
        self.names.append("process")
        self.times.append(state.time)
        state.timer(after="5 s")

    def on_timer(self, timer: Any, state: Any, out: Any) -> None:
        self.names.append("on_timer")
        self.times.append(timer.at)
        out({"k": timer.key})


def source(job: hr.Job, **options: Any) -> hr.Stream:
    return job.source("s", scripted(RECORDS), **options)


def test_nothing_that_is_declared_is_called_before_the_job_runs() -> None:
    called, job, columns = Called(), hr.Job("job"), {"k": "string", "t": "int64"}
    mapped = source(job).map(called.map, returns=columns).flat_map(called.flat_map, returns=columns)
    keyed = mapped.map_batch(called.map_batch, returns=columns).key_by("k")
    own = hr.reducer(init=int, update=called.update)
    keyed.window(hr.whole_input()).reduce(name="r", n=own, returns={"n": "int64"})
    keyed.process(called.process, on_timer=called.on_timer, name="p", returns={"k": "string"})
    assert infer(job.graph(need_sink=False)).schemas["r"] == pa.schema([("k", pa.string()), ("n", pa.int64())])
    assert called.names == []


def test_what_is_declared_is_called_if_a_later_step_needs_to_see_what_it_makes() -> None:
    called, job = Called(), hr.Job("job")
    first = source(job).map(called.map, returns={"k": "string", "t": "int64"})
    first.flat_map(called.flat_map, name="last")
    assert infer(job.graph(need_sink=False)).schemas["last"].names == ["k", "t"]
    assert called.names == ["map"] * 2 + ["flat_map"] * 2


def test_samples_have_their_own_times_and_so_have_timers() -> None:
    called, job = Called(), hr.Job("job")
    keyed = source(job, event_time="t").key_by("k")
    keyed.process(called.process, on_timer=called.on_timer, name="p")
    assert infer(job.graph(need_sink=False)).schemas["p"].names == ["k"]
    assert called.names == ["process"] * 2 + ["on_timer"] * 2
    assert called.times == [datetime(2026, 3, 2, 9, 0, second, tzinfo=UTC) for second in (0, 1, 5, 6)]


def test_samples_without_a_time_are_of_now() -> None:
    called, job = Called(), hr.Job("job")
    source(job).key_by("k").process(called.process, on_timer=called.on_timer, name="p")
    before = datetime.now(UTC)
    infer(job.graph(need_sink=False))
    assert all(time >= before for time in called.times)


def test_a_function_that_fails_on_samples_is_named_with_its_line() -> None:
    def divide(record: Row) -> Row:
        return {"x": 1 / 0}

    job = hr.Job("job")
    source(job).map(divide, name="divide")
    words = (
        r"step 'divide' failed on sample records at test_driver_samples.py:\d+ in divide: return .*ZeroDivisionError"
    )
    with pytest.raises(hr.SchemaError, match=words):
        infer(job.graph(need_sink=False))
