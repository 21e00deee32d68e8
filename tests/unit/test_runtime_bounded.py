"""Reduce steps within a memory bound, through the whole runtime: early answers, coverage, choice of engine."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import headrace as hr
from headrace.connect.callback import callback
from headrace.errors import DataError, GraphError
from headrace.graph.render import render
from headrace.graph.stages import lay_out
from headrace.graph.validate import validate
from headrace.state.index.choosing import Chooser, DistinctKeys
from headrace.testing import LocalRun, run_local

ENGINES = ["auto", "inc", "dinc", "dinc-space-saving", "dinc-marker", "mr"]
N = 30_000


def zipf(n: npt.NDArray[np.int64]) -> dict[str, Any]:
    """About ten thousand keys, some of them hot; the same for every run."""
    u = ((n * 2_654_435_761 + 11) % 1_000_003) / 1_000_003
    return {"k": (10_000 * u**4).astype(np.int64), "v": n % 97, "ts": n // 10}


def reference(size_ms: int | None = None) -> dict[Any, tuple[int, int]]:
    rows = zipf(np.arange(N))
    keys = list(zip(rows["k"].tolist(), (rows["ts"] // size_ms).tolist())) if size_ms else rows["k"].tolist()
    n, total = Counter(keys), Counter[Any]()
    for key, value in zip(keys, rows["v"].tolist()):
        total[key] += value
    return {key: (n[key], total[key]) for key in n}


def job_of(window: Any, emit: Any = None, **kept: Any) -> hr.Job:
    job = hr.Job("bounded")
    rows = job.source("rows", hr.generate(zipf, total=N), event_time="ts")
    reduced = (
        rows.key_by("k")
        .window(window)
        .reduce(name="r", state=hr.keep(**kept), emit=emit, n=hr.count(), total=hr.sum("v"))
    )
    reduced.sink("out", callback(print))
    return job


# scalla facts 1 and 40: the same functions, in batch and streaming mode, in any engine, equal the reference
@pytest.mark.parametrize(
    ("engine", "mode"), [*((engine, "realtime") for engine in ENGINES), ("auto", "microbatch"), ("auto", "batch")]
)
def test_every_engine_in_every_mode(engine: str, mode: str, to_disk: list[int]) -> None:
    rows = run_local(job_of(hr.whole_input(), engine=engine, memory="400 KB"), mode=mode)["out"]
    assert sum(to_disk) > 1000
    assert len(rows) == len(reference())
    assert {row["k"]: (row["n"], row["total"]) for row in rows} == reference()


@pytest.mark.parametrize("engine", ["auto", "dinc"])
@pytest.mark.parametrize("window", [hr.tumbling("1 s"), hr.sliding("1 s", every="500 ms")])
def test_windows_in_bounded_memory(engine: str, window: Any, to_disk: list[int]) -> None:
    bounded, free = (
        run_local(job_of(window, **options))["out"] for options in ({"engine": engine, "memory": "200 KB"}, {})
    )
    assert len(bounded) == len(free) > 1000 and sum(to_disk) > 1000
    assert sorted(map(str, bounded)) == sorted(map(str, free))


# scalla fact 39: kill and restart; the second run loads what the first had in memory and on disk
@pytest.mark.parametrize("engine", ["auto", "dinc", "mr"])
def test_a_restart_goes_on_with_state_beyond_memory(tmp_path: Path, engine: str) -> None:
    def make() -> hr.Job:
        job = hr.Job("bounded")
        rows = job.source("rows", hr.generate(zipf, total=N, rate=f"{N}/s"), event_time="ts")
        reduced = (
            rows.key_by("k")
            .window(hr.whole_input())
            .reduce(name="r", state=hr.keep(engine=engine, memory="250 KB"), n=hr.count(), total=hr.sum("v"))
        )
        reduced.sink("out", callback(print))
        return job

    first = LocalRun(make(), tmp_path, chunk="50 ms")
    first.batch(seconds=0.4)
    first.close()  # as after a kill: memory and local files are gone
    second = LocalRun(make(), tmp_path, chunk="50 ms")
    try:
        second.run(seconds=20)
        rows = second.rows("out")
    finally:
        second.close()
    assert {row["k"]: (row["n"], row["total"]) for row in rows} == reference()
    assert len(rows) == len(reference())


# scalla facts 19 and 21: an answer comes before the end of the input, once and for all
@pytest.mark.parametrize("kept", [{}, {"memory": "250 KB", "engine": "inc"}, {"memory": "250 KB", "engine": "dinc"}])
def test_keys_that_reach_a_threshold_are_told_once_and_early(kept: dict[str, Any], tmp_path: Path) -> None:
    job = hr.Job("frequent")
    rows = job.source("rows", hr.generate(zipf, total=N, rate=f"{N}/s"), event_time="ts")
    keyed = rows.key_by("k").window(hr.whole_input())
    frequent = keyed.reduce(name="r", state=hr.keep(**kept), emit=hr.at_least(n=50), n=hr.count())
    frequent.sink("out", callback(print))
    run = LocalRun(job, tmp_path)
    try:
        early: dict[int, int] = {}
        while not early and not run.finished:
            run.batch(seconds=0.5)
            early = {row["k"]: row["n"] for row in run.rows("out")}
        run.run(seconds=20)
        found = [row["k"] for row in run.rows("out")]
    finally:
        run.close()
    wanted = {key for key, (n, _) in reference().items() if n >= 50}
    assert early and set(early) <= wanted
    assert sorted(found) == sorted(wanted)


def test_keys_that_leave_memory_after_they_were_told_are_not_told_again(tmp_path: Path) -> None:
    """Counters start anew at each restart, so that also keys which were told are pushed out of memory, and come back."""
    job = hr.Job("frequent")
    rows = job.source("rows", hr.generate(zipf, total=N, rate=f"{N // 2}/s"), event_time="ts", parallelism=1)
    kept = hr.keep(memory="120 KB", engine="dinc")
    frequent = (
        rows.key_by("k").window(hr.whole_input()).reduce(name="r", state=kept, emit=hr.at_least(n=20), n=hr.count())
    )
    frequent.sink("out", callback(print))
    finished = False
    while not finished:  # as often as the machine lets it
        run = LocalRun(job, tmp_path, parallelism=1)
        try:
            run.batch(seconds=0.2)
            finished = run.finished
            found = [row["k"] for row in run.rows("out")]
        finally:
            run.close()
    assert sorted(found) == sorted(key for key, (n, _) in reference().items() if n >= 20)


def test_windows_tell_a_threshold_early_and_drop_what_is_below() -> None:
    rows = run_local(job_of(hr.tumbling("1 s"), hr.at_least(n=30)))["out"]
    wanted = {key for key, (n, _) in reference(1000).items() if n >= 30}
    assert sorted((row["k"], int(row["window_start"].timestamp())) for row in rows) == sorted(wanted)


# scalla facts 16 and 17: coverage is never overstated; what is returned has at least what was asked for
@pytest.mark.parametrize("engine", ["dinc", "dinc-space-saving"])
def test_coverage_is_told_and_kept(engine: str) -> None:
    rows = run_local(job_of(hr.whole_input(), engine=engine, memory="250 KB", coverage=0.8))["out"]
    truth = reference()
    assert sorted(row["k"] for row in rows) == sorted(truth), "every key is answered, once"
    approximate = [row for row in rows if row["coverage"] < 1]
    assert approximate, "some keys need not be looked up on disk"
    for row in rows:
        n, total = truth[row["k"]]
        assert row["coverage"] >= 0.8
        assert row["coverage"] * n <= row["n"] + 1e-9 and row["n"] <= n
        if row["coverage"] == 1:
            assert (row["n"], row["total"]) == (n, total)


# scalla fact 17: if the no-spill rule holds, nothing is written, and every frequent key is found, well covered
def test_frequent_keys_are_found_without_disk(to_disk: list[int]) -> None:
    minimum, share = 250, 0.7
    job = job_of(hr.whole_input(), hr.at_least(n=minimum), memory="400 KB", coverage=share, max_records=N)
    rows = run_local(job)["out"]
    truth = {key: n for key, (n, _) in reference().items()}
    frequent = {key for key, n in truth.items() if n >= minimum}
    assert len(frequent) >= 4 and not to_disk
    found = {row["k"]: row for row in rows}
    assert len(found) == len(rows) and frequent <= set(found)
    for key, row in found.items():
        assert share * minimum <= row["n"] <= truth[key], "what is reported is almost as frequent, and never too high"
        assert row["coverage"] >= share, "of the records so far, if the answer was early"


def test_more_records_than_expected_stop_the_job() -> None:
    with pytest.raises(DataError, match=f"max_records={N // 20}"):
        run_local(job_of(hr.whole_input(), hr.at_least(n=400), memory="400 KB", coverage=0.5, max_records=N // 20))


def test_where_memory_is_too_small_for_that_disk_is_used_and_nothing_is_missed(to_disk: list[int]) -> None:
    job = job_of(hr.whole_input(), hr.at_least(n=60), memory="250 KB", coverage=0.95, max_records=N)
    rows = run_local(job)["out"]
    truth = {key: n for key, (n, _) in reference().items()}
    assert sum(to_disk) > 1000
    assert {key for key, n in truth.items() if n >= 60} <= {row["k"] for row in rows}
    assert len({row["k"] for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"window": hr.whole_input(), "memory": "1 MB", "max_records": 100},
            ["max_records=", "coverage=", "hr.at_least("],
        ),
        ({"window": hr.versioned(hr.tumbling("1 s")), "memory": "1 MB"}, ["memory=", "versioned"]),
        ({"window": hr.whole_input(), "coverage": 0.9}, ["memory="]),
        ({"window": hr.tumbling("1 s"), "coverage": 0.9, "memory": "1 MB"}, ["whole_input"]),
        # scalla fact 18
        ({"window": hr.whole_input(), "coverage": 0.9, "memory": "1 MB", "engine": "dinc-marker"}, ["dinc-marker"]),
        ({"window": hr.whole_input(), "emit": hr.at_least(m=3)}, ["'m'"]),
        ({"window": None, "emit": hr.at_least(n=3)}, ["at_least"]),
    ],
)
def test_what_a_reduce_cannot_have_is_said(options: dict[str, Any], words: list[str]) -> None:
    window, emit = options.pop("window"), options.pop("emit", None)
    job = hr.Job("bounded")
    keyed = job.source("rows", hr.generate(zipf, total=N), event_time="ts").key_by("k")
    keyed = keyed.window(window) if window is not None else keyed
    keyed.reduce(name="r", state=hr.keep(**options), emit=emit, n=hr.count()).sink("out", callback(print))
    with pytest.raises(GraphError, match="'r'") as caught:
        validate(job.graph())
    for word in words:
        assert word in str(caught.value)


def test_explain_says_which_engine_and_why() -> None:
    graph = job_of(hr.whole_input(), memory="64 MB").graph()
    text = render(graph, lay_out(graph, 2))
    assert "64 MB per subtask, engine auto" in text and "while all keys fit" in text


def test_the_sketch_is_near_the_truth() -> None:
    dice = np.random.default_rng(5)
    for keys in (50, 3_000, 200_000):
        sketch = DistinctKeys()
        hashes = dice.integers(0, 2**64, keys, np.uint64, endpoint=False)
        for _ in range(2):
            sketch.add(hashes)
        assert sketch.estimate() == pytest.approx(keys, rel=0.06)


# scalla section 2.6, policy choice
@pytest.mark.parametrize(
    ("slots", "windowed", "late_refused", "engine"),
    [
        (1_000, False, 0, "dinc"),
        (13_000, True, 0, "dinc"),
        (13_000, False, 0, None),
        (13_000, False, 90, "dinc-marker"),
    ],
)
def test_the_engine_follows_what_was_seen(slots: int, windowed: bool, late_refused: int, engine: str | None) -> None:
    chooser = Chooser(slots, windowed=windowed)
    chooser.see(np.random.default_rng(6).integers(0, 2**64, 100_000, np.uint64, endpoint=False))
    assert chooser.choose(100_000, 0) is None, "nothing was refused: all keys fit"
    choices, refused = [], 0
    for step in range(1, 6):
        refused += 100_000 + (late_refused * 1000 if step > 3 else 0)
        choices.append(chooser.choose(step * 250_000, refused))
    made = [choice for choice in choices if choice is not None]
    assert (made[0].engine if made else None) == engine
    if made:
        assert f"{slots} of about" in made[0].reason


def test_nothing_is_left_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, to_disk: list[int]) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run_local(job_of(hr.whole_input(), memory="250 KB"))
    assert sum(to_disk) > 1000 and list(tmp_path.iterdir()) == []
