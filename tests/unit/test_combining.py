"""Combining through the whole runtime: the switch, what it saves, the choice while running, what people are told."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import reference as ref
from reference import Record
from workflows import MS, Kept, out

import headrace as hr
from headrace.driver.schemafinding import _of, _step
from headrace.errors import GraphError
from headrace.graph.nodes import ReduceNode
from headrace.graph.windowing import FOREVER_US, TimeWindow
from headrace.runtime.batch import Batch
from headrace.runtime.build import build_reduce
from headrace.runtime.operators.usercode import Guard
from headrace.runtime.reduce.paned import PanedReduce
from headrace.runtime.reduce.reduce import Place
from headrace.testing import LocalRun, run_local, scripted

MODES = ("realtime", "microbatch", "batch")
WINDOW = hr.sliding("100 ms", every="30 ms")


def trades(n: int = 400, keys: int = 7) -> list[Record]:
    return [{"k": f"k{i * i % keys}", "v": i % 13, "t": i} for i in range(n)]


def job_of(rows: list[Record], window: Any = WINDOW, combine: Any = "auto") -> hr.Job:
    job = hr.Job("job")
    s = job.source("s", scripted(rows), event_time="t")
    keyed = s.key_by("k").window(window)
    keyed.reduce(name="r", state=hr.keep(combine=combine), n=hr.count(), mean=hr.mean("v")).sink("out", out())
    return job


# cmr fact 17: s ≥ w: Combine refused
@pytest.mark.parametrize(
    ("window", "why"),
    [
        (hr.tumbling("10 s"), "only windows that overlap share panes, and it is over tumbling 10 s"),
        (hr.whole_input(), "only windows that overlap share panes, and it is over the whole input"),
        (hr.session_window("10 s"), "has no panes"),
        (hr.versioned(hr.sliding("10 s", every="1 s")), "versioned window"),
    ],
)
def test_windows_that_do_not_overlap_are_refused(window: Any, why: str) -> None:
    with pytest.raises(GraphError, match=r"step 'r': combine=True, but .*leave combine= out") as refused:
        job_of(trades(), window, combine=True).graph()
    assert why in str(refused.value)
    assert job_of(trades(), window).graph() and job_of(trades(), window, combine=False).graph()


def test_states_that_cannot_be_merged_are_refused() -> None:
    job = hr.Job("job")
    keyed = job.source("s", scripted(trades()), event_time="t").key_by("k").window(WINDOW)
    counted = hr.reducer(init=int, update=lambda n, r: n + 1)
    keyed.reduce(name="r", state=hr.keep(combine=True), n=counted).sink("out", out())
    with pytest.raises(GraphError, match="n=reducer.* has no combine= to merge two states with"):
        job.graph()
    with pytest.raises(GraphError, match="combine='always' is not 'auto', True or False"):
        hr.keep(combine="always")  # type: ignore[arg-type]


# cmr fact 18: with and without Combine: equal answers with (sum, count)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("combine", ["auto", True, False])
def test_the_switch_changes_no_answer(mode: str, combine: Any) -> None:
    rows = trades()
    expected = ref.time_windows(ref.enter([rows]), ["k"], 100 * MS, 30 * MS, {"n": ref.count(), "mean": ref.mean("v")})
    got = run_local(job_of(rows, combine=combine), mode=mode, poll_rows=50, seed=1)["out"]
    assert ref.bag(got) == ref.bag(expected)


# cmr fact 19: each tuple is combined once; Reduce reads ≤ d·w/k values
@pytest.mark.parametrize("mode", MODES)
def test_a_tuple_is_added_once_and_a_window_merges_panes(mode: str, tmp_path: Path) -> None:
    calls: Counter[str] = Counter()

    def update(n: int, record: Record) -> int:
        calls["update"] += 1
        return n + 1

    def combine(a: int, b: int) -> int:
        calls["combine"] += 1
        return a + b

    rows = trades(600, keys=5)
    job = hr.Job("job")
    counted = hr.reducer(init=int, update=update, combine=combine)
    s = job.source("s", scripted(rows), event_time="t")
    keyed = s.key_by("k").window(hr.sliding("120 ms", every="40 ms"))
    keyed.reduce(name="r", state=hr.keep(combine=True), n=counted).sink("out", out())
    run = LocalRun(job, tmp_path, mode=mode, report="5 ms", poll_rows=1000)
    try:
        calls.clear()  # schemas are inferred from sample records
        run.batch()
        windows = {row["window_end"] for row in run.rows("out")}
    finally:
        run.close()
    assert calls["update"] == len(rows)
    distinct = len({row["k"] for row in rows})
    assert 0 < calls["combine"] <= len(windows) * distinct * 120 // 40


# cmr fact 21: re-run baseline maps tuples w/s times
def test_running_each_window_again_maps_tuples_again() -> None:
    """A batch job per window, as with a system that has no windows: each tuple is mapped in w/s of them."""
    mapped: Counter[int] = Counter()

    def note(record: Record) -> Record:
        mapped[record["t"]] += 1
        return record

    rows = trades(400, keys=3)
    answers = []
    size, every = 120, 40
    for end in range(every, 400 + size, every):
        inside = [row for row in rows if end - size <= row["t"] < end]
        job = hr.Job("again")
        s = job.source("s", scripted(inside, schema={"k": "string", "v": "int64", "t": "int64"}), event_time="t")
        noted = s.map(note, name="note", returns={"k": "string", "v": "int64", "t": "int64"})
        noted.key_by("k").window(hr.whole_input()).reduce(name="r", n=hr.count()).sink("out", out())
        answers += [{**row, "window_end": ref.at(end * MS)} for row in run_local(job, mode="batch")["out"]]
    assert set(mapped.values()) == {size // every}
    expected = ref.time_windows(ref.enter([rows]), ["k"], size * MS, every * MS, {"n": ref.count()})
    assert ref.bag(answers) == ref.bag([{k: row[k] for k in ("k", "n", "window_end")} for row in expected])


def second_of(second: int, values: int, keys: int) -> Batch:
    """One second's values, in order of time."""
    n = np.arange(values)
    records = pa.record_batch([pa.array(n % keys), pa.array(n)], ["k", "v"])
    return Batch(records, second * 1_000_000 + n * 1_000_000 // values, 0)


def operator_of(window: TimeWindow) -> tuple[PanedReduce, Kept]:
    node = ReduceNode("r", ("k",), window, (("n", hr.count()), ("total", hr.sum("v"))), ("s",))
    sample = second_of(0, 10, 10).records
    operator = build_reduce(
        node,
        sample.schema,
        _step(node, [_of(sample.schema, sample)], None, None).schema,
        Guard("r", "fail"),
        Place(4),
        eager=True,
    )
    assert isinstance(operator, PanedReduce)
    kept = Kept()
    operator.feed(kept)
    operator.restored([0, 1, 2, 3])
    return operator, kept


def test_the_form_follows_the_load() -> None:
    """Many values per key, then a key for every value, then many again: panes, windows, panes, and exact answers."""
    window = TimeWindow(8_000_000, 2_000_000)
    operator, kept = operator_of(window)
    loads = [(400, 5)] * 30 + [(400, 400)] * 30 + [(400, 5)] * 40
    forms = []
    for second, (values, keys) in enumerate(loads):
        operator.receive(0, second_of(second, values, keys))
        operator.watermark(0, second * 1_000_000)
        forms.append(operator.choice.engine if operator.choice is not None else "unknown")
    operator.watermark(0, FOREVER_US)
    changes = [form for i, form in enumerate(forms) if i == 0 or form != forms[i - 1]]
    assert changes == ["unknown", "panes", "windows", "panes"] and forms[29] == "panes" and forms[59] == "windows"
    assert operator.choice is not None and operator.choice.reason == (
        "400 values per second and 5 keys per pane make 836 values touched per slide with panes, 3,200 without"
    )
    expected: Counter[Any] = Counter()
    for second, (values, keys) in enumerate(loads):
        for end in ref.window_ends(second * 1_000_000, window.size_us, window.every_us):
            for key in range(keys):
                expected[key, ref.at(end)] += values // keys
    assert {(row["k"], row["window_end"]): row["n"] for row in kept.rows} == expected


def test_windows_that_would_hold_too_many_rows_are_not_kept() -> None:
    """Every value has a key of its own, never seen again: panes cost more time, but windows eight times the rows."""
    operator, _ = operator_of(TimeWindow(16_000_000, 2_000_000))
    for second in range(60):
        batch = second_of(second, 200, 200)
        keys = pa.array(np.arange(200) + 200 * second)
        operator.receive(0, Batch(batch.records.set_column(0, "k", keys), batch.times, 0))
        operator.watermark(0, second * 1_000_000)
    assert operator.choice is not None and operator.choice.engine == "panes"
    assert operator.choice.reason.endswith("windows of their own would hold too many rows")


def test_the_form_is_found_again_in_a_checkpoint() -> None:
    for keys, form in ((5, "panes"), (400, "windows")):
        operator, _ = operator_of(TimeWindow(8_000_000, 2_000_000))
        for second in range(60):
            operator.receive(0, second_of(second, 400, keys))
            operator.watermark(0, second * 1_000_000)
        again, _ = operator_of(TimeWindow(8_000_000, 2_000_000))
        for part, store in operator.stores().items():
            for change in store.changes():
                again.stores()[part].load(change.slice, change.puts, change.digest)
        again.restored([0, 1, 2, 3])
        assert again.forms is not None and again.forms.paned is (form == "panes") and again.choice is None


def test_a_window_is_emitted_once_whoever_comes_back() -> None:
    """Late records of a partition that was silent while others went on: only windows that are still open change."""
    operator, kept = operator_of(TimeWindow(8_000_000, 2_000_000))
    for second in range(21):
        operator.receive(0, second_of(second, 10, 1))
        operator.watermark(0, second * 1_000_000)
    emitted = len(kept.rows)
    late = second_of(9, 1, 1)
    operator.receive(0, Batch(late.records, late.times, 0, np.array([9_500_000])))
    late = second_of(15, 1, 1)
    operator.receive(0, Batch(late.records, late.times, 0, np.array([16_500_000])))
    operator.watermark(0, 22_000_000)
    assert [(row["window_end"], row["n"]) for row in kept.rows[emitted:]] == [(ref.at(22_000_000), 10 * 7 + 1)]
    assert operator.meter.late == 1


def test_subtasks_report_their_choice(tmp_path: Path) -> None:
    """What a run journals: see ``Run.decisions``."""
    run = LocalRun(job_of(trades(2000)), tmp_path, report="5 ms", parallelism=1, poll_rows=20, flush="0 ms")
    try:
        run.batch(seconds=10)
        told = [reported.engines["r"] for reported in run.reports if reported.engines]
        assert told and told[-1][0] in ("panes", "windows") and "values touched per slide with panes" in told[-1][1]
    finally:
        run.close()


def test_a_checkpoint_without_combining_is_another_one(tmp_path: Path) -> None:
    """Its states are by window, not by pane: they must not be taken for panes."""
    run = LocalRun(job_of(trades()), tmp_path, report="5 ms")
    try:
        run.batch(seconds=0.05)
    finally:
        run.close()
    LocalRun(job_of(trades(), combine=True), tmp_path, report="5 ms").close()
    with pytest.raises(hr.HeadraceError, match="'r'"):
        LocalRun(job_of(trades(), combine=False), tmp_path, report="5 ms").close()
