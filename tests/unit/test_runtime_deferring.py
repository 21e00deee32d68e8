"""Running results, count windows and sessions in bounded memory: those of the same step without a bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import reference as ref
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from soaking import MORE

import headrace as hr
from headrace.connect.callback import callback
from headrace.errors import GraphError
from headrace.graph.nodes import ReduceNode
from headrace.graph.render import render
from headrace.graph.stages import lay_out
from headrace.graph.validate import validate
from headrace.graph.windowing import FOREVER_US, NEVER_US, CountWindow, SessionWindow
from headrace.runtime.batch import Batch
from headrace.runtime.build import build_reduce
from headrace.runtime.operators.usercode import Guard
from headrace.runtime.reduce.keyedreduce import KeyedReduce
from headrace.runtime.reduce.overflow import Overflow
from headrace.runtime.reduce.reduce import Place
from headrace.state.durable.changes import digest_of, merge_chain
from headrace.testing import LocalRun, run_local

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
REDUCERS = {"n": hr.count(), "total": hr.sum("v")}
LISTS = {"vs": hr.collect_list("v")}
NO_COMBINE = {"u": hr.reducer(init=list, update=lambda s, r: [*s, r["v"]], finalize=lambda s: str(s))}
WINDOWS: dict[str, Any] = {"running": None, "count": CountWindow(3), "session": SessionWindow(100)}
ENGINES = ["auto", "inc", "dinc", "dinc-space-saving", "dinc-marker"]


def levels(overflow: Overflow | None) -> int:
    """How many tables are in use now, one below the other."""
    return 0 if overflow is None else 1 + levels(overflow._below)


class Out:
    """Takes a step's results; looks at the step's memory whenever one comes."""

    def __init__(self, operator: KeyedReduce) -> None:
        self._operator = operator
        self.rows: list[dict[str, Any]] = []
        self.times: list[int] = []
        self.watermark_us = NEVER_US
        self.peak_bytes = self.deepest = 0
        operator.feed(self)

    def receive(self, port: int, batch: Batch) -> None:
        assert batch.times.min() >= self.watermark_us, "a result that is older than the watermark"
        self.rows += batch.records.to_pylist()
        self.times += batch.times.tolist()
        if self._operator.deferring is not None:
            self.peak_bytes = max(self.peak_bytes, self._operator.deferring.nbytes)
            self.deepest = max(self.deepest, levels(self._operator.deferring))

    def watermark(self, port: int, watermark_us: int) -> None:
        self.watermark_us = max(self.watermark_us, watermark_us)


def step(window: str, spill: Path, reducers: dict[str, Any] = REDUCERS, **options: Any) -> tuple[KeyedReduce, Out]:
    """A reduce step by itself, and what it emits."""
    node = ReduceNode("r", ("k",), WINDOWS[window], tuple(reducers.items()), ("rows",), **options)
    bounds = [("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))] if window == "session" else []
    kinds = {"n": pa.int64(), "total": pa.int64(), "vs": pa.list_(pa.int64()), "u": pa.string()}
    out = pa.schema([("k", pa.int64()), *bounds, *((name, kinds[name]) for name in reducers)])
    made = build_reduce(node, SCHEMA, out, Guard("r", "fail"), Place(4, spill), eager=True)
    assert isinstance(made, KeyedReduce)
    return made, Out(made)


def feed(operator: KeyedReduce, keys: Any, times: Any = None) -> None:
    keys = np.asarray(keys, np.int64)
    times = np.zeros(len(keys), np.int64) if times is None else np.asarray(times, np.int64)
    records = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(np.arange(len(keys)))], schema=SCHEMA)
    operator.process(0, Batch(records, times, 0))


def finish(operator: KeyedReduce) -> None:
    operator.watermark(0, FOREVER_US)
    operator.on_cut(end=True)
    operator.close()


def answers(out: Out, window: str) -> Any:
    """What must be equal: the last running result of each key; of the others all, and a key's in order."""
    if window == "running":
        return sorted(map(str, ref.last_per(out.rows, "k")))
    return sorted(map(str, out.rows))


def chunks_of(operator: KeyedReduce, chains: dict[tuple[str, int], list[Any]]) -> None:
    for name, store in operator.stores().items():
        for change in store.changes():
            chains.setdefault((name, change.slice), []).append(change)


def load(operator: KeyedReduce, chains: dict[tuple[str, int], list[Any]]) -> None:
    for name, store in operator.stores().items():
        for slice, chain in [(slice, chain) for (of, slice), chain in chains.items() if of == name]:
            image = merge_chain([c.puts for c in chain], [c.deletes for c in chain])
            assert digest_of(image) == chain[-1].digest
            store.load(slice, image, chain[-1].digest)
    operator.restored([0, 1, 2, 3])


@st.composite
def epochs(draw: st.DrawFn) -> list[list[tuple[list[int], list[int], int]]]:
    """Epochs of batches: keys, times, and the watermark after them. Times go on; nothing is older than its watermark."""
    made, now = [], 0
    for _ in range(draw(st.integers(1, 4))):
        batches = []
        for _ in range(draw(st.integers(0, 4))):
            keys = draw(st.lists(st.integers(0, draw(st.sampled_from([3, 40]))), min_size=1, max_size=60))
            times = [now + draw(st.sampled_from([0, 0, 20, 90, 250])) for _ in keys]
            now += draw(st.sampled_from([0, 40, 150, 400]))
            batches.append((keys, times, now))
        made.append(batches)
    return made


# scalla facts 1, 2, 3 and 39: any input, memory, cuts, borders of epochs, chunks and restores into other memory
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("engine", ["auto", "inc", "dinc", "dinc-marker"])
@pytest.mark.parametrize("reducers", [REDUCERS, LISTS, NO_COMBINE], ids=["sums", "lists", "no combine"])
@given(epochs(), st.data())
@settings(max_examples=3 * MORE, phases=[Phase.generate], deadline=None)
def test_equal_to_the_step_without_a_bound(
    tmp_path_factory: Any, window: str, engine: str, reducers: Any, script: Any, data: st.DataObject
) -> None:
    if window == "session" and reducers is NO_COMBINE:
        return  # refused by the graph: sessions are merged
    spill = tmp_path_factory.mktemp("spill")
    free, expected = step(window, spill, reducers)
    memory = st.sampled_from([100, 4_000, 12_000, 100_000])
    bounded, got = step(window, spill, reducers, memory_bytes=data.draw(memory), engine=engine)
    chains: dict[tuple[str, int], list[Any]] = {}
    for batches in script:
        for operator in (free, bounded):
            operator.begin()
        for keys, times, watermark_us in batches:
            for operator in (free, bounded):
                feed(operator, keys, times)
                operator.watermark(0, watermark_us)
            if data.draw(st.booleans()):
                chunks_of(bounded, chains)
        for operator in (free, bounded):
            operator.on_cut(end=True)
        if window != "session":
            assert answers(got, window) == answers(expected, window), "all is told when an epoch ends"
        chunks_of(bounded, chains)
        if data.draw(st.booleans()):
            bounded.close()
            rows = got.rows
            bounded, got = step(window, spill, reducers, memory_bytes=data.draw(memory), engine=engine)
            got.rows = rows
            load(bounded, chains)
    for operator in (free, bounded):
        finish(operator)
    assert answers(got, window) == answers(expected, window)
    assert not [path for path in spill.rglob("*") if path.is_file()]


def job_of(window: Any, total: int, rate: str | None = None, **kept: Any) -> hr.Job:
    job = hr.Job("bounded")
    rows = job.source("rows", hr.generate(skewed, total=total, rate=rate), event_time="ts", parallelism=1).key_by("k")
    rows = rows if window is None else rows.window(window)
    rows.reduce(name="r", state=hr.keep(**kept), n=hr.count(), total=hr.sum("v")).sink("out", callback(print))
    return job


def skewed(n: Any) -> dict[str, Any]:
    """About two thousand keys, some of them hot; the same for every run."""
    u = ((n * 2_654_435_761 + 11) % 1_000_003) / 1_000_003
    return {"k": (2_000 * u**4).astype(np.int64), "v": n % 97, "ts": n // 4}


TOTALS = {"running": 3_000, "count": 2_500, "session": 1_500}
"""Records that are more than 100 KB of state."""
API_WINDOWS: dict[str, Any] = {"running": None, "count": hr.count_window(3), "session": hr.session_window("100 ms")}


def told(rows: list[dict[str, Any]], window: str) -> list[str]:
    return sorted(map(str, ref.last_per(rows, "k") if window == "running" else rows))


# scalla facts 1 and 40: the same step, in every mode and engine, gives the results it gives without a bound
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(
    ("engine", "mode"), [*((engine, "realtime") for engine in ENGINES), ("auto", "microbatch"), ("auto", "batch")]
)
def test_every_engine_in_every_mode(window: str, engine: str, mode: str, to_disk: list[int]) -> None:
    free = run_local(job_of(API_WINDOWS[window], TOTALS[window]), mode=mode)["out"]
    bounded = run_local(job_of(API_WINDOWS[window], TOTALS[window], engine=engine, memory="100 KB"), mode=mode)["out"]
    assert sum(to_disk) > 500
    assert told(bounded, window) == told(free, window)


# scalla fact 39: kill and restart; the second run loads what the first had in memory and on disk
@pytest.mark.parametrize("window", WINDOWS)
def test_a_restart_goes_on_with_state_beyond_memory(window: str, tmp_path: Path, to_disk: list[int]) -> None:
    total = TOTALS[window]
    rows: list[dict[str, Any]] = []
    for seconds in (0.3, 20.0):
        job = job_of(API_WINDOWS[window], total, f"{2 * total}/s", memory="100 KB")
        run = LocalRun(job, tmp_path, chunk="50 ms", parallelism=1)
        try:
            run.batch(seconds=seconds)
            rows = run.rows("out")
        finally:
            run.close()  # as after a kill: memory and local files are gone
        assert sum(to_disk) > 100
    assert told(rows, window) == told(run_local(job_of(API_WINDOWS[window], total))["out"], window)


# scalla fact 20: tables, metadata and write buffers, at all times, also while what is on disk is brought in
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("engine", ["auto", "dinc"])
@pytest.mark.parametrize("reducers", [REDUCERS, LISTS], ids=["sums", "lists"])
def test_memory_stays_within_the_bound(tmp_path: Path, window: str, engine: str, reducers: Any) -> None:
    bound, dice, records = 300_000, np.random.default_rng(3), 2_000 if reducers is REDUCERS else 1_000
    operator, out = step(window, tmp_path, reducers, memory_bytes=bound, engine=engine)
    assert operator.deferring is not None
    for epoch in range(2):
        operator.begin()
        for n in range(3):
            at_us = 300 * (3 * epoch + n)
            keys = dice.zipf(1.3, records) % 20_000 if reducers is REDUCERS else dice.integers(0, 2_000, records)
            feed(operator, keys, at_us + dice.integers(0, 50, records))
            operator.watermark(0, at_us)
            assert operator.deferring.nbytes <= bound
            for store in operator.stores().values():
                store.changes()
            assert operator.deferring.nbytes <= bound
        operator.on_cut(end=True)
    assert operator.deferring.waiting.rows_added > 500
    finish(operator)
    assert 0 < out.peak_bytes <= bound


# scalla fact 3
@pytest.mark.parametrize("window", WINDOWS)
def test_a_bucket_larger_than_memory_is_spread_by_another_hash_function(tmp_path: Path, window: str) -> None:
    keys = np.random.default_rng(1).permutation(np.repeat(np.arange(1_000), 3))
    operator, out = step(window, tmp_path, memory_bytes=16_000)
    feed(operator, keys)
    finish(operator)
    assert out.deepest >= 3, "the step's own table, its buckets', and theirs"
    assert {row["k"]: row["n"] for row in ref.last_per(out.rows, "k")} == dict.fromkeys(range(1_000), 3)


def test_resident_keys_are_told_at_once_and_the_others_when_the_epoch_ends(tmp_path: Path) -> None:
    operator, out = step("running", tmp_path, memory_bytes=100_000, engine="inc")
    operator.begin()
    feed(operator, np.repeat(np.arange(1_000), 2))
    at_once = {row["k"] for row in out.rows}
    assert 20 < len(at_once) < 500
    operator.on_cut(end=True)
    assert sorted({row["k"] for row in out.rows} - at_once) == sorted(set(range(1_000)) - at_once)
    assert [row["n"] for row in ref.last_per(out.rows, "k")] == [2] * 1_000
    before = len(out.rows)
    operator.begin()
    operator.on_cut(end=True)
    assert len(out.rows) == before, "what has not changed is not told again"
    operator.close()


# cuts.md, "what is emitted at the epoch's end": not at every cut, but every few seconds, and at an end
def test_deferred_results_follow_at_a_cut_every_few_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock_us = [0]
    monkeypatch.setattr("headrace.runtime.reduce.keyedreduce.now_us", lambda: clock_us[0])
    operator, out = step("running", tmp_path, memory_bytes=100_000, engine="inc")
    operator.begin()
    told, keys = [], set(range(1_000))
    for second in range(12):
        clock_us[0] = second * 1_000_000
        feed(operator, np.arange(1_000))
        before = len(out.rows)
        operator.on_cut(end=second == 11)
        told.append(len(out.rows) > before)
        if told[-1]:
            assert {row["k"] for row in out.rows} == keys
            assert {row["n"] for row in ref.last_per(out.rows, "k")} == {second + 1}
    assert [second for second, now in enumerate(told) if now] == [5, 10, 11]
    operator.close()


def test_a_hot_key_on_disk_comes_into_memory_with_its_state(tmp_path: Path) -> None:
    operator, out = step("running", tmp_path, memory_bytes=100_000, engine="dinc")
    for _ in range(2):
        operator.begin()
        feed(operator, np.concatenate((np.arange(1_000), np.full(3_000, 7_777))))
        operator.on_cut(end=True)
    operator.begin()
    feed(operator, [7_777])
    assert out.rows[-1]["n"] == 6_001, "told at once"
    operator.close()


# scalla fact 14
def test_space_saving_writes_about_as_much_as_frequent(tmp_path: Path) -> None:
    written = {}
    for engine in ("dinc", "dinc-space-saving"):
        operator, _ = step("running", tmp_path, memory_bytes=100_000, engine=engine)
        dice = np.random.default_rng(8)
        for _ in range(10):
            feed(operator, dice.zipf(1.3, 2000) % 20_000)
        assert operator.deferring is not None
        written[engine] = operator.deferring.waiting.rows_added
        operator.close()
    assert written["dinc"] > 2_000
    assert written["dinc-space-saving"] == pytest.approx(written["dinc"], rel=0.1)


# scalla fact 19: only what has expired leaves memory, and each session is told once and whole
def test_expired_users_make_way_and_almost_nothing_is_written(tmp_path: Path) -> None:
    spill_bytes = {}
    for engine in ("inc", "dinc"):
        operator, out = step("session", tmp_path, memory_bytes=400_000, engine=engine)
        for n in range(60):  # three thousand users, of whom some hundred are there at a time
            feed(operator, np.repeat(np.arange(50 * n, 50 * n + 100), 3), 60 * n + np.arange(300) // 6)
            operator.watermark(0, 60 * n)
        finish(operator)
        assert operator.deferring is not None
        spill_bytes[engine] = operator.deferring.spill_bytes
        assert sorted(row["k"] for row in out.rows) == list(range(3_050)), "each once"
        assert {row["n"] for row in out.rows if 50 <= row["k"] < 3_000} == {6}, "and whole"
    assert spill_bytes["inc"] > 100 * max(spill_bytes["dinc"], 1)


def test_sessions_on_disk_are_told_a_gap_late_at_most_and_hold_the_watermark_back(tmp_path: Path) -> None:
    operator, out = step("session", tmp_path, memory_bytes=1_000)
    operator.begin()
    feed(operator, np.arange(100), np.zeros(100, np.int64))
    operator.watermark(0, 150)
    assert len(out.rows) < 100 and out.watermark_us == 99, "they end at 100"
    operator.watermark(0, 199)
    assert sorted(row["k"] for row in out.rows) == list(range(100)) and out.watermark_us == 199
    operator.close()


@pytest.mark.parametrize("window", WINDOWS)
def test_engines_that_need_a_window_with_an_end_are_refused(window: str) -> None:
    for options in ({"engine": "mr"}, {"coverage": 0.9, "engine": "dinc"}):  # scalla facts 16 to 18: whole input only
        with pytest.raises(GraphError, match="'r'"):
            validate(job_of(API_WINDOWS[window], 10, memory="1 MB", **options).graph())


@pytest.mark.parametrize(("window", "engine"), [("running", "inc"), ("count", "inc"), ("session", "dinc")])
def test_the_step_says_which_engine_it_uses(tmp_path: Path, window: str, engine: str) -> None:
    operator, _ = step(window, tmp_path, memory_bytes=100_000)
    assert operator.choice is not None and operator.choice.engine == engine
    operator.close()


@pytest.mark.parametrize("window", WINDOWS)
def test_explain_says_which_engine_and_why(window: str) -> None:
    graph = job_of(API_WINDOWS[window], 10, memory="64 MB").graph()
    text = render(graph, lay_out(graph, 2))
    why = "dinc (open sessions stay" if window == "session" else "auto (first come stays"
    assert f"64 MB per subtask, engine {why}" in text
