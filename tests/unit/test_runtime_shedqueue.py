"""``overload=hr.shed()`` on a reduce: late records are abandoned and counted, and nothing else changes."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from acts import counters
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import GraphError, UnitError
from headrace.graph.paths import bound_through
from headrace.runtime.batch import Batch
from headrace.runtime.operators.queues import QueuedBuffer
from headrace.runtime.shedding.shedqueue import OnDisk, ShedQueue
from headrace.testing import LocalRun, run_local, scripted


class Clock:
    def __init__(self) -> None:
        self.us = 0

    def __call__(self) -> int:
        return self.us


def buffer(first: int, rows: int, born_us: int) -> QueuedBuffer:
    records = pa.record_batch([pa.array(np.arange(first, first + rows))], ["id"])
    return QueuedBuffer(0, Batch(records, np.zeros(rows, np.int64), born_us), born_us, rows, records.nbytes)


def every_third(batch: Batch) -> Any:
    return batch.records.column("id").to_numpy() % 3 == 0


# scalla fact 38, nephele-qos fact 18: processed + shed = received, watermarks are never shed; cmr fact 3: a watermark waits for all that came before it
@pytest.mark.parametrize("on_disk", [None, every_third], ids=["by buffer", "by record"])
@given(data=st.data())
@settings(max_examples=60)
def test_every_record_is_processed_once_or_shed(on_disk: OnDisk | None, data: st.DataObject) -> None:
    clock = Clock()
    queue = ShedQueue(200, on_disk, clock)
    waiting: set[int] = set()
    expecting: deque[tuple[int, set[int]]] = deque()
    processed: list[int] = []
    given_in = 0

    def work() -> bool:
        taken = queue.take(clock.us, 1)
        if taken is None:
            return False
        assert isinstance(taken.data, Batch) and taken.data.rows == taken.rows
        processed.extend(taken.data.records.column("id").to_pylist())
        clock.us += data.draw(st.integers(0, 30))
        queue.worked(taken, 1000 * data.draw(st.integers(1, 30)) * taken.rows)
        return True

    def keep() -> None:
        while (taken := queue.take_watermark()) is not None:
            while expecting and expecting[0][0] <= taken.watermark_us:
                _, before = expecting.popleft()
                left = {i for item in queue._shedder.kept() for i in item.batch.batch.records.column("id").to_pylist()}
                assert not before & left, "a watermark overtook records that still wait"

    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["put", "put", "watermark", "work"])):
            case "put":
                rows = data.draw(st.integers(1, 9))
                queue.put(buffer(given_in, rows, clock.us - data.draw(st.integers(0, 250))))
                waiting |= set(range(given_in, given_in + rows))
                given_in += rows
                clock.us += data.draw(st.integers(0, 40))
            case "watermark":
                expecting.append((len(expecting) + given_in * 100, set(waiting)))
                queue.put_watermark(0, expecting[-1][0])
            case _:
                work()
        keep()
    while work():
        keep()
    keep()
    assert queue.empty and not expecting and queue.nbytes == 0 and queue.born_us is None
    figures = queue.figures
    assert len(processed) == len(set(processed)) == figures.processed
    assert figures.processed + figures.shed == figures.received == given_in
    assert queue.newly_shed() == figures.shed and queue.newly_shed() == 0


# scalla fact 37: where costs differ, knowing them keeps more records
def test_dear_records_are_shed_first() -> None:
    kept = {}
    for name, on_disk in (("buffers", None), ("records", every_third)):
        clock = Clock()
        queue = ShedQueue(1000, on_disk, clock)
        done = 0
        for turn in range(60):
            clock.us = max(clock.us, 500 * turn)
            queue.put(buffer(30 * turn, 30, 500 * turn))
            while (taken := queue.take(clock.us, 1)) is not None and clock.us < 500 * (turn + 1):
                assert isinstance(taken.data, Batch)
                cost_us = 10 * taken.rows + 90 * int(every_third(taken.data).sum())  # on disk 100 µs, else 10
                clock.us += cost_us
                queue.worked(taken, 1000 * cost_us)
                done += taken.rows if clock.us <= taken.born_us + 1000 else 0
        kept[name] = done
    assert kept["records"] > 1.3 * kept["buffers"] > 0


def slowly(state: int, record: dict[str, Any]) -> int:
    until = time.perf_counter() + 0.002
    while time.perf_counter() < until:
        pass
    return state + 1


RECORDS = [{"k": f"k{i % 7}", "t": 10 * i} for i in range(300)]


def slow_job(**options: Any) -> hr.Job:
    """Two milliseconds for each of 300 records, all there at once."""
    job = hr.Job("slow")
    source = job.source("s", scripted(RECORDS), event_time="t")
    counted = source.key_by("k").window(hr.tumbling("500 ms")).reduce(
        name="n", n=hr.reducer(init=int, update=slowly, combine=lambda a, b: a + b), **options
    )  # fmt: skip
    counted.sink("out", hr.rows())
    return job


def played(job: hr.Job, checkpoint: Path, **options: Any) -> tuple[int, dict[str, int], list[dict[str, Any]]]:
    """Records that are in the results, the counters, and the reports' figures about shedding."""
    run = LocalRun(job, checkpoint, parallelism=2, report="10 ms", flush="1 ms", poll_rows=20, **options)
    run.run(seconds=20)
    counted = counters(run)
    rows = run.rows("out")
    shed = [reported.backlog.shed for reported in run.reports]
    run.close()
    return sum(row["n"] for row in rows), counted, shed


# scalla fact 38: with it on, processed + shed = received, and that is reported; what was sent was consumed
@pytest.mark.parametrize("schedule", ["direct", "odf", "mem"])
def test_overload_is_shed(schedule: str, tmp_path: Path) -> None:
    in_results, counted, reported = played(slow_job(overload=hr.shed(after="100 ms")), tmp_path, schedule=schedule)
    assert counted["shed:n"] > 0 and in_results > 0
    assert in_results + counted["shed:n"] == len(RECORDS) == counted["in:s"]
    assert counted["in:n"] == in_results
    last = [figures["n"] for figures in reported if figures and figures["n"]["received"]]
    assert last and all(f["processed"] + f["shed"] + f["waiting"] == f["received"] for f in last)


# scalla fact 38: with scheduling off nothing is dropped, however late
def test_without_it_nothing_is_shed(tmp_path: Path) -> None:
    in_results, counted, reported = played(slow_job(), tmp_path)
    assert in_results == len(RECORDS) and not any("shed" in name for name in counted) and not any(reported)


def test_with_time_enough_nothing_is_shed(tmp_path: Path) -> None:
    in_results, counted, _ = played(slow_job(overload=hr.shed(after="10 min")), tmp_path)
    assert in_results == len(RECORDS) and counted["shed:n"] == 0


@pytest.mark.parametrize("mode", ["microbatch", "batch"])
def test_other_modes_process_everything(mode: str) -> None:
    rows = run_local(slow_job(overload=hr.shed(after="1 ms")), mode=mode)["out"]
    assert sum(row["n"] for row in rows) == len(RECORDS)


def test_records_on_disk_are_a_cost_group(tmp_path: Path) -> None:
    """A reduce with little memory: answers and what was shed still add up to what came."""
    records = [{"k": i % 3000, "t": i} for i in range(12_000)]
    job = hr.Job("bounded")
    source = job.source("s", scripted(records), event_time="t")
    counted = source.key_by("k").window(hr.tumbling("20 s"))
    kept = hr.keep(memory="40 KB", engine="inc")
    counted.reduce(name="n", state=kept, overload=hr.shed(after="15 ms"), n=hr.count()).sink("out", hr.rows())
    in_results, counted, _ = played(job, tmp_path)
    assert in_results + counted["shed:n"] == len(records)


def test_the_bound_is_that_of_the_tightest_constraint() -> None:
    job = slow_job(overload=hr.shed())
    with pytest.raises(GraphError, match="no constraint leads through it; give the job one, job.constrain"):
        job.graph()
    job = hr.Job("bound")
    source = job.source("s", scripted(RECORDS), event_time="t")
    counted = source.key_by("k").reduce(name="n", overload=hr.shed(), n=hr.count())
    upper = counted.map(lambda r: r, name="upper")
    upper.sink("out", hr.rows())
    job.constrain(source >> upper, p99="300 ms")
    job.constrain(source >> counted, mean="100 ms")
    job.constrain(counted >> upper, p95="200 ms")
    graph = job.graph()
    assert [bound_through(graph, step) for step in ("s", "n", "upper", "out")] == [100_000, 100_000, 200_000, None]


def test_wrong_options_are_named() -> None:
    with pytest.raises(GraphError, match="overload='shed' is not a value such as hr.shed"):
        slow_job(overload="shed")
    with pytest.raises(GraphError, match="after=0 must be more than zero"):
        hr.shed(after=0)
    with pytest.raises(UnitError, match="after 'soon'"):
        hr.shed(after="soon")
