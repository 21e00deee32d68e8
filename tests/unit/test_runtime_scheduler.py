"""The scheduler over real operators: any order of work gives the reference, and watermarks keep their place."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import reference as ref
import workflows
from acts import in_acts
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from reference import Seen
from test_equal_results import assert_equal, scripts
from test_runtime_interleavings import Catcher, batch_of, entering, partitions

import headrace as hr
from headrace.config import SCHEDULES, Schedule, Settings
from headrace.driver.planning import plan_job
from headrace.graph.windowing import FOREVER_US, NEVER_US, TimeWindow
from headrace.runtime.build import build_stage
from headrace.runtime.orders import NO_ORDERS
from headrace.runtime.plan import JobPlan
from headrace.runtime.scheduling import scheduler as scheduling
from headrace.runtime.scheduling.disciplines import Head
from headrace.runtime.scheduling.pressure import Pressure
from headrace.runtime.scheduling.scheduler import Scheduler
from headrace.runtime.wire.inbox import Inbox
from headrace.testing import PAUSE, LocalRun, run_local, scripted

QUEUED = [name for name in SCHEDULES if name != "direct"]


def more(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"n": row["n"] + 100}


class Drawn:
    """A policy that lets Hypothesis choose."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def pick(self, heads: Sequence[Head], used_share: float) -> Head:
        return self._data.draw(st.sampled_from(list(heads)))


@cache
def plan_of(size: int, every: int) -> JobPlan:
    job = hr.Job("stage")
    source = job.source("s", scripted([{"k": "a", "v": 1, "t": 0}]), event_time="t")
    windows = source.key_by("k").window(TimeWindow(size, every)).reduce(name="w", n=hr.count())
    windows.map(more, name="more").union(windows, name="both").sink("out", hr.rows())
    return plan_job(job, Path("nowhere"), Settings.of(schedule="odf", slices=3), collect=True)


class Stage:
    """A reduce, a map behind it, and a union of both, each with its queue; a worker that takes single buffers."""

    def __init__(self, plan: JobPlan, data: st.DataObject) -> None:
        self.operators = build_stage(plan, 1).operators
        self.both, self.first = Catcher(), Catcher()
        self.operators["both"].outputs = [(self.both, 0)]
        self.operators["w"].feed(self.first)
        self.scheduler = Scheduler(plan, 1, self.operators)
        self.scheduler.begin(Inbox(10**6), NO_ORDERS)
        self.scheduler._policy = Drawn(data)
        self.asked: list[tuple[int, int]] = []
        self.given = self.processed = 0
        self._watch()

    def _watch(self) -> None:
        """Check at every watermark that takes effect that all data given before it has been processed."""
        reduce = self.operators["w"]
        process, advance = reduce.process, reduce.advance

        def counted(port: int, batch: Any) -> None:
            process(port, batch)
            self.processed += batch.rows

        def checked(port: int, watermark_us: int) -> None:
            before = next(given for asked, given in self.asked if asked == watermark_us)
            assert self.processed >= before, "a watermark overtook data"
            advance(port, watermark_us)

        reduce.process, reduce.advance = counted, checked  # type: ignore[method-assign]

    def receive(self, members: list[Seen]) -> None:
        self.given += 1
        self.operators["w"].receive(0, batch_of(members))

    def watermark(self, watermark_us: int) -> None:
        self.asked.append((watermark_us, self.given))
        self.operators["w"].watermark(0, watermark_us)


# cmr facts 1 and 2: whatever works next, windows close when all inputs have come so far and their data is processed
# cmr fact 3: no watermark passes data that was queued before it; cmr fact 5: windows close in boundary order
@pytest.mark.parametrize(("shape", "request_us"), [((10, 10), 0), ((10, 3), 10**6), ((7, 5), 0)])
@given(made=partitions(), data=st.data())
@settings(max_examples=25)
def test_any_order_of_work(
    shape: tuple[int, int], request_us: int, made: tuple[list[list[tuple[str, int]]], int], data: st.DataObject,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(scheduling, "_TURN_NS", 0)
    monkeypatch.setattr(scheduling, "_REQUEST_US", request_us)
    parts, lateness = entering(*made), made[1]
    stage = Stage(plan_of(*shape), data)
    at, newest = [0] * len(parts), [NEVER_US] * len(parts)
    while any(at[p] < len(part) for p, part in enumerate(parts)):
        match data.draw(st.sampled_from(["records", "records", "watermark", "work", "work"])):
            case "records":
                p = data.draw(st.sampled_from([p for p in range(len(parts)) if at[p] < len(parts[p])]))
                one = parts[p][at[p]]
                at[p], newest[p] = at[p] + 1, max(newest[p], one.time_us)
                stage.receive([one])
            case "watermark":
                reached = [FOREVER_US if at[p] >= len(parts[p]) else newest[p] - lateness for p in range(len(parts))]
                stage.watermark(min(reached))
            case _:
                stage.scheduler.turn()
    stage.watermark(FOREVER_US)
    while stage.scheduler.waiting:
        stage.scheduler.turn()
    expected = ref.time_windows([one for part in parts for one in part], ["k"], *shape, {"n": ref.count()})
    assert ref.bag(stage.first.rows) == ref.bag(expected)
    assert ref.bag(stage.both.rows) == ref.bag([*expected, *map(more, expected)])
    ends = [row["window_end"] for row in stage.first.rows]
    assert ends == sorted(ends)


# cmr fact 1: N workers with random delays, under every policy and in little memory: the sequential reference
@pytest.mark.parametrize("schedule", QUEUED)
@given(parts=scripts(), lateness=st.sampled_from([0, 50, 400]), seed=st.integers(0, 99), data=st.data())
@settings(max_examples=2, phases=[Phase.generate])
def test_any_schedule_gives_the_reference(
    schedule: str, parts: list[list[ref.Record]], lateness: int, seed: int, data: st.DataObject
) -> None:
    workflow = data.draw(st.sampled_from([workflows.all_reducers, workflows.all_windows, workflows.all_steps]))
    job, expected = workflow(in_acts(parts, workflows.SCHEMA, 1, 0), parts, lateness)
    mode = data.draw(st.sampled_from(["realtime", "realtime", "microbatch", "batch"]))
    got = run_local(
        job, mode=mode, seed=seed, schedule=schedule, parallelism=data.draw(st.integers(1, 3)), slices=7,
        poll_rows=data.draw(st.sampled_from([1, 5, 1000])), budget=data.draw(st.sampled_from([1000, 10**6])), flush="1 ms",
    )  # fmt: skip
    assert_equal(got, expected)


# cmr fact 4: one worker slowed down, here until the others are done: they go on with later data; answers unchanged
@pytest.mark.parametrize("schedule", ["direct", "odf", "hybrid"])
def test_a_straggler_holds_nobody_back(schedule: str, tmp_path: Path) -> None:
    others_done, waited = threading.Event(), []

    def straggle(record: dict[str, Any], state: Any, out: Any) -> None:
        if threading.current_thread().name == "subtask-1-0":
            waited.append(others_done.wait(20))
        elif record["v"] >= 220:
            others_done.set()
        out({"k": record["k"], "v": record["v"]})

    records = [{"k": f"k{i % 16}", "v": i} for i in range(240)]
    job = hr.Job("straggler")
    job.source("s", scripted(records)).key_by("k").process(straggle, name="straggle").sink("out", hr.rows())
    run = LocalRun(job, tmp_path, schedule=schedule, report="5 ms", flush="1 ms", poll_rows=8)
    run.run(seconds=20)
    rows = run.rows("out")
    run.close()
    assert ref.bag(rows) == ref.bag(records)
    assert 20 < len(waited) < 220 and all(waited), "the others waited for the straggler"


def test_the_schedule_changes_while_a_job_runs(tmp_path: Path) -> None:
    names: Iterator[Schedule] = iter(["mem", "direct", "hybrid", "round-robin", "direct", "odf"])
    seen: set[str] = set()

    def follow(record: dict[str, Any]) -> dict[str, Any]:
        if record["v"] % 40 == 39:
            run.order(replace(NO_ORDERS, schedule=next(names)))
        return record

    records = [{"k": f"k{i % 5}", "v": i, "t": 10 * i} for i in range(240)]
    script = [item for record in records for item in (record, PAUSE)]
    job = hr.Job("changing")
    followed = job.source("s", scripted(script), event_time="t").map(follow, name="follow")
    followed.key_by("k").window(hr.tumbling("1 s")).reduce(name="n", n=hr.count()).sink("out", hr.rows())
    run = LocalRun(job, tmp_path, parallelism=1, report="1 ms", flush="1 ms", poll_rows=1)
    run.run(seconds=20)
    rows, seen = run.rows("out"), {reported.backlog.schedule for reported in run.reports}
    run.close()
    expected = ref.time_windows(ref.enter([records], 0), ["k"], 10**6, 10**6, {"n": ref.count()})
    assert ref.bag(rows) == ref.bag(expected)
    assert len(seen) >= 3, "each name is heard within 20 ms"


def test_what_is_queued_still_counts_against_the_inbox() -> None:
    inbox = Inbox(100)
    inbox.put_row(memoryview(bytes(60)))
    row = inbox.get(0)
    inbox.weigh(60, 0)
    inbox.done(row)
    reader = threading.Thread(target=inbox.put_row, args=(memoryview(bytes(50)),), name="headrace-reader")
    reader.start()
    assert inbox.get(0.05) is None and inbox.blocked, "60 of 100 bytes wait in a queue: 50 more have to wait"
    inbox.weigh(0, 10**6)
    assert inbox.get(5) is not None, "state alone must not stop reading for ever"
    reader.join()
    assert not inbox.blocked


def test_sources_are_not_read_while_memory_is_short() -> None:
    pressure = Pressure(1000, 10**6)
    assert pressure.poll_rows(5000, None) == 1024, "nothing is known about rows yet"
    pressure.weigh(200, 0, stopped=False)
    assert pressure.poll_rows(5000, 10) == 80 and pressure.poll_rows(30, 10) == 30
    pressure.weigh(990, 10, stopped=True)
    assert pressure.poll_rows(5000, 10) == 0, "until a little of it is free"
    pressure.weigh(900, 40, stopped=False)
    assert pressure.poll_rows(5000, 10) == 10 and pressure.stopped_us == 30
    pressure.state_bytes = 5000
    assert pressure.poll_rows(5000, 10) == 0
    pressure.weigh(0, 50, stopped=False)
    assert pressure.poll_rows(5000, 10) == 1024, "state alone must not stop reading for ever"
    assert (pressure.used_share, pressure.peak_bytes, pressure.stopped_us) == (5.0, 5000, 30)


def test_without_a_budget_only_what_is_queued_counts() -> None:
    pressure = Pressure(None, 1000)
    pressure.state_bytes = 10**9
    pressure.weigh(500, 0, stopped=False)
    assert pressure.used_share == 0.5


# cmr fact 25: more than fits is throttled, and reported; nothing is lost
@pytest.mark.parametrize("schedule", ["odf", "mem", "hybrid"])
def test_a_small_budget_stops_reading_and_says_so(schedule: str, tmp_path: Path) -> None:
    records = [{"k": i % 7, "text": "x" * 500, "v": i} for i in range(4000)]
    job = hr.Job("small")
    mapped = job.source("s", scripted(records)).map(lambda r: {"k": r["k"], "v": r["v"]}, name="strip")
    mapped.sink("out", hr.rows())
    budget = 300_000
    run = LocalRun(job, tmp_path, parallelism=1, schedule=schedule, budget=budget, report="2 ms", poll_rows=64)
    run.run(seconds=20)
    rows, figures = run.rows("out"), [reported.backlog for reported in run.reports]
    run.close()
    assert sorted(row["v"] for row in rows) == list(range(4000))
    peak = max(figure.peak_bytes for figure in figures)
    assert peak <= budget and figures[-1].queued_bytes == 0 and figures[-1].schedule == schedule
    assert max(figure.used_share for figure in figures) <= 1


def test_state_counts_against_the_budget(tmp_path: Path) -> None:
    records = [{"k": i, "v": i} for i in range(3000)]
    job = hr.Job("state")
    job.source("s", scripted(records)).key_by("k").reduce(name="n", n=hr.count()).sink("out", hr.rows())
    run = LocalRun(
        job, tmp_path, parallelism=1, schedule="hybrid", budget="10 KB", report="2 ms", flush="1 ms", poll_rows=50
    )
    run.run(seconds=20)
    rows, figures = run.rows("out"), [r.backlog for r in run.reports if r.stage == 1]
    run.close()
    assert len({row["k"] for row in rows}) == 3000
    assert figures[-1].state_bytes > 10_000 and figures[-1].used_share > 1
