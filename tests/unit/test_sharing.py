"""Sharing through the whole runtime: equal answers, less work, several jobs in one run."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import reference as ref
from acts import counters, in_acts, play
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Record
from workflows import MS, Kept, out

import headrace as hr
from headrace.config import Settings
from headrace.connect.collect import collect_sink, read_collected
from headrace.driver.planning import plan_job
from headrace.graph.nodes import PaneNode
from headrace.graph.windowing import FOREVER_US
from headrace.runtime.batch import Batch
from headrace.runtime.build import build_stage
from headrace.testing import LocalRun, run_local, scripted

MODES = ("realtime", "microbatch", "batch")
SCHEMA = {"k": "string", "v": "int64", "t": "int64"}
MINUTE = 60_000


def trades(n: int = 300, step_ms: int = 10) -> list[Record]:
    return [{"k": f"k{i * i % 7}", "v": i % 13, "t": i * step_ms} for i in range(n)]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def macd(rows: list[Record], mapped: Any) -> hr.Job:
    """Means over 5 and 10 minutes, slide 1 minute, over one mapped stream (C-MR, section 3)."""
    job = hr.Job("macd")
    prices = job.source("s", scripted(rows), event_time="t").map(mapped, name="parse", returns=SCHEMA)
    for size in (5, 10):
        window = hr.sliding(f"{size} min", every="1 min")
        prices.key_by("k").window(window).reduce(name=f"mean{size}", m=hr.mean("v")).sink(f"out{size}", out())
    return job


# cmr fact 20: windows 5 and 10 min, slide 1: pane 1 min; Map and Combine run once per tuple
# cmr fact 8: each branch of a fork has its own boundaries
def test_map_and_combine_run_once_per_tuple(mode: str, tmp_path: Path) -> None:
    mapped: Counter[int] = Counter()

    def parse(record: Record) -> Record:
        mapped[record["t"]] += 1
        return record

    rows = trades(400, 3000)
    run = LocalRun(macd(rows, parse), tmp_path, mode=mode, report="5 ms", poll_rows=100)
    try:
        mapped.clear()  # schemas are inferred from sample records
        run.batch()
        panes = run.plan.graph.by_name["mean5.panes"]
        assert isinstance(panes, PaneNode) and panes.pane_us == MINUTE * 1000
        got, counted = {size: run.rows(f"out{size}") for size in (5, 10)}, counters(run)
    finally:
        run.close()
    assert mapped == Counter(row["t"] for row in rows)
    # Combine takes each tuple, or each partial from before the shuffle, once, and hands on one per key and pane.
    per_pane = {(row["k"], row["t"] // MINUTE) for row in rows}
    assert counted["out:mean5.panes"] == len(per_pane) == counted["in:mean5"] == counted["in:mean10"]
    assert counted["in:mean5.panes"] <= len(rows)
    for size, answers in got.items():
        expected = ref.time_windows(ref.enter([rows]), ["k"], size * MINUTE * MS, MINUTE * MS, {"m": ref.mean("v")})
        assert ref.bag(answers) == ref.bag(expected)


@given(
    st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), max_size=25), min_size=1, max_size=2),
    st.sampled_from([0, 5, 20]),
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=2, max_size=3),
    st.booleans(),
    st.integers(0, 10**6),
    st.sampled_from(["realtime", "microbatch"]),
)
@settings(max_examples=12)
def test_shared_panes_change_no_answer(
    parts: Any, lateness: int, shapes: list[tuple[int, int]], share: bool, seed: int, mode: str
) -> None:
    """Any windows over one stream, late records, epochs and restarts."""
    scripts = [[{"k": k, "v": i, "t": 10 * t} for i, (k, t) in enumerate(part)] for part in parts]
    source = in_acts(scripts, SCHEMA, 3, seed)
    job = hr.Job("job")
    keyed = job.source("s", source, event_time="t", lateness=f"{10 * lateness} ms").key_by("k")
    wanted: dict[str, list[Record]] = {}
    seen = ref.enter(scripts, 10 * lateness * MS)
    reducers: list[tuple[Any, ref.Reducers]] = [
        ({"n": hr.count(), "vs": hr.collect_list("v")}, {"n": ref.count(), "vs": ref.collected("v")}),
        ({"last": hr.last("v"), "n": hr.count()}, {"last": ref.last("v"), "n": ref.count()}),
    ]
    for i, (one, two) in enumerate(shapes):
        size, every = 10 * max(one, two), 10 * min(one, two)
        ours, theirs = reducers[i % 2]
        window = hr.sliding(f"{size} ms", every=f"{every} ms")
        keyed.window(window).reduce(name=f"w{i}", **ours).sink(f"w{i}-out", out())
        wanted[f"w{i}-out"] = ref.time_windows(seen, ["k"], size * MS, every * MS, theirs)
    with tempfile.TemporaryDirectory() as checkpoint:
        options: dict[str, Any] = {"slices": 5, "poll_rows": 4, "flush": "1 ms", "share": share}
        got = play(job, source, Path(checkpoint), mode=mode, acts=3, seed=seed, **options)
    assert {name: ref.bag(rows) for name, rows in got.items()} == {name: ref.bag(rows) for name, rows in wanted.items()}


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=25))
@settings(max_examples=40)
def test_records_behind_the_watermark_are_treated_alike(acts: list[tuple[bool, int]]) -> None:
    """A source that was silent comes back with old records: shared or not, the same are counted, and late."""
    job = hr.Job("job")
    keyed = job.source("s", scripted(trades(3), schema=SCHEMA), event_time="t").key_by("k")
    for i, (size, every) in enumerate(((10, 10), (12, 4), (20, 6))):
        keyed.window(hr.sliding(f"{size} ms", every=f"{every} ms")).reduce(name=f"w{i}", n=hr.count()).sink(
            f"o{i}", out()
        )
    answers = []
    for share in (True, False):
        plan = plan_job(job, Path("nowhere"), Settings.of(share=share, parallelism=1))
        operators = build_stage(plan, 1).operators
        kept: dict[str, Kept] = {name: Kept() for name in ("w0", "w1", "w2")}
        for name, end in kept.items():
            operators[name].outputs = [(end, 0)]
        entrances = [operators["w0.panes"]] if share else [operators[name] for name in kept]
        for operator in entrances:
            reached = 0
            for is_record, t in [*acts, (False, FOREVER_US // MS)]:
                if is_record:
                    records = pa.RecordBatch.from_pylist([{"k": "a", "v": 1, "t": t}], plan.schema_into(operator.name))
                    operator.receive(0, Batch(records, np.array([t * MS]), 0))
                elif t > reached:
                    reached = t
                    operator.watermark(0, t * MS)
        answers.append({name: (ref.bag(end.rows), operators[name].meter.late) for name, end in kept.items()})
    assert answers[0] == answers[1]


def double(record: Record) -> Record:
    return {**record, "v": 2 * record["v"]}


@pytest.mark.parametrize("chaining", ["static", "dynamic"])
def test_panes_reach_their_steps_in_a_stage_of_several_processes(mode: str, chaining: str) -> None:
    """Behind the windows is a step with a process of its own, and there may be more or fewer subtasks."""
    rows, job = trades(), hr.Job("job")
    keyed = job.source("s", scripted(rows), event_time="t").key_by("k")
    for name, size in (("a", 500), ("b", 1000)):
        counted = keyed.window(hr.tumbling(f"{size} ms")).reduce(name=name, v=hr.sum("v"), parallelism=(1, 2, 3))
        counted.map(double, name=f"{name}-double", chain=False).sink(f"{name}-out", out())
    got = run_local(job, mode=mode, chaining=chaining)
    for name, size in (("a", 500), ("b", 1000)):
        sums = ref.time_windows(ref.enter([rows]), ["k"], size * MS, size * MS, {"v": ref.total("v")})
        assert ref.bag(got[f"{name}-out"]) == ref.bag([double(row) for row in sums])


def alike(name: str, rows: list[Record], size: str, **options: Any) -> hr.Job:
    job = hr.Job(name, **options)
    doubled = job.source("s", scripted(rows), event_time="t").map(double, name="double")
    doubled.key_by("k").window(hr.tumbling(size)).reduce(name="r", total=hr.sum("v")).sink("out", out())
    return job


def test_jobs_together_give_what_they_give_apart(mode: str) -> None:
    rows = trades()
    apart = [run_local(alike(name, rows, size), mode=mode)["out"] for name, size in (("a", "1 s"), ("b", "500 ms"))]
    for share in (True, False):
        both = run_local([alike("a", rows, "1 s"), alike("b", rows, "500 ms")], mode=mode, share=share, seed=2)
        assert set(both) == {"a.out", "b.out"}
        assert [ref.bag(both["a.out"]), ref.bag(both["b.out"])] == [ref.bag(answers) for answers in apart]


def test_what_jobs_have_in_common_runs_once(tmp_path: Path) -> None:
    rows = trades()
    for share in (True, False):
        both = [alike("a", rows, "1 s"), alike("b", rows, "500 ms")]
        run = LocalRun(both, tmp_path / str(share), mode="batch", report="5 ms", share=share)
        try:
            run.batch()
            counted = counters(run)
        finally:
            run.close()
        read = [counted.get(f"out:{name}", 0) for name in ("a.s", "b.s", "a.double", "b.double")]
        assert read == ([len(rows), 0] * 2 if share else [len(rows)] * 4)


def test_dead_letters_reach_the_job_they_belong_to(mode: str, tmp_path: Path) -> None:
    def picky(record: Record) -> Record:
        return {**record, "v": 1 // record["v"]}

    jobs = []
    for name, rows in (("a", trades(20)), ("b", trades(40))):
        job = hr.Job(name, dead_letter=collect_sink(tmp_path / name))
        job.source("s", scripted(rows), event_time="t").map(picky, name="picky", returns=SCHEMA).sink("out", out())
        jobs.append(job)
    got = run_local(jobs, mode=mode)
    for name, rows in (("a", trades(20)), ("b", trades(40))):
        bad = sum(row["v"] == 0 for row in rows)
        assert len(got[f"{name}.out"]) == len(rows) - bad
        letters = read_collected(tmp_path / name)
        assert [letter["step"] for letter in letters] == [f"{name}.picky"] * bad


def test_a_checkpoint_belongs_to_one_way_of_sharing(tmp_path: Path) -> None:
    job = macd(trades(), double)
    run = LocalRun(job, tmp_path, report="5 ms")
    try:
        run.batch(seconds=0.05)
    finally:
        run.close()
    with pytest.raises(hr.HeadraceError, match="no longer share them"):
        LocalRun(job, tmp_path, report="5 ms", share=False).close()
    LocalRun(job, tmp_path, report="5 ms").close()
