"""ChronoStream's workloads, vectorised: their answers are those of the offline references, also after restarts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.bench.elasticity import similarpairs, topwords
from headrace.bench.elasticity.curves import curve_figures, load_figures, used_since
from headrace.bench.elasticity.filling import FillingReader, Phases
from headrace.bench.elasticity.similarpairs import SimilarityLoad, check_pairs, similarity_job
from headrace.bench.elasticity.slicecost import SliceRun, check_counts, slice_figures
from headrace.bench.elasticity.topwords import TopWordsLoad, check_tops, top_words_job
from headrace.bench.latency import Numbered
from headrace.testing import LocalRun

Case = tuple[Any, Callable[..., hr.Job], Callable[..., dict[str, int]], tuple[str, ...]]
PHASES = Phases(200, 500, 2500, 1000)
CASES: dict[str, Case] = {
    "topk": (TopWordsLoad(2, PHASES), top_words_job, check_tops, topwords.COLUMNS),
    "similarity": (SimilarityLoad(1, PHASES), similarity_job, check_pairs, similarpairs.COLUMNS),
}
RIGHT = {"lost": 0, "duplicated": 0, "wrong": 0}


def table_of(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> dict[str, Any]:
    return {name: np.array([row[name] for row in rows], np.int64) for name in columns}


# chronostream fact 1: any slice count, subtask count and schedule of restarts gives the one-process reference
@pytest.mark.parametrize(("subtasks", "slices"), [((1, 1, 1), 1), ((2, 1, 3), 7), ((3, 2, 1), 64)])
@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_the_reference(
    name: str, subtasks: tuple[int, ...], slices: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.bench.elasticity.filling._REST_US", 0)
    monkeypatch.setattr(topwords, "PANE", 8)
    monkeypatch.setattr(similarpairs, "MESSAGES", 4)
    load, make, check, columns = CASES[name]
    job = make(load, hr.rows())
    for parallelism in subtasks:  # each a driver that goes on where the one before was killed
        run = LocalRun(job, tmp_path, parallelism=parallelism, slices=slices, poll_rows=200, report="5 ms")
        try:
            run.batch(seconds=0.1)
            if parallelism is subtasks[-1]:
                run.run()
            table = table_of(run.rows("out"), columns)
        finally:
            run.close()
    assert check(load, table) == RIGHT and len(table[columns[0]]) > 100
    table[columns[3]][5] += 1
    assert check(load, table)["wrong"] == 1, "the check sees a wrong word or pair"
    missing = {column: values[1:] for column, values in table.items()}
    assert check(load, missing)["lost"] == 1


def test_phases_follow_each_other() -> None:
    """Filling in small polls, a rest, paced records, a rest, the burst at once; a reader that opens anew goes on."""
    load = SimilarityLoad(1, Phases(300, 20, 50, 10))
    reader = FillingReader(load, None)
    polled = [reader.poll(1000, at_us) for at_us in (0, 0, 0, 4_000_000)]
    assert [poll.records.num_rows if poll is not None else None for poll in polled] == [256, 44, None, 1]
    assert polled[-1] is not None and polled[-1].records.column("due_us").to_pylist() == [4_000_000]
    assert reader.next_due_us() == 4_100_000
    again = FillingReader(load, reader.offset())
    rest = again.poll(1000, 7_000_000)
    assert rest is not None and rest.records.column("due_us").to_pylist()[-1] == 4_000_000 + 1_900_000
    assert again.poll(1000, 9_999_999) is None and again.next_due_us() == 10_000_000
    burst = again.poll(1000, 10_000_000)
    assert burst is not None and again.exhausted
    assert burst.records.column("due_us").to_pylist() == [10_000_000] * 50


def test_rate_is_of_the_burst_and_latency_of_what_was_paced() -> None:
    phases = Phases(10, 100, 1000, 10)
    second = np.array([0, 2, 5, 9, 10, 40, 109])
    due_us = np.array([0, 2, 5, 9, 15, 15, 15]) * 1_000_000
    now_us = due_us + np.array([900, 7, 9, 5000, 100, 200, 4000]) * 1000
    figures = load_figures(phases, second, {"now_us": now_us, "due_us": due_us})
    assert figures["items_per_s"] == 250.0 and figures["us_per_item"] == 4000.0
    assert (figures["p50_ms"], figures["max_ms"]) == (7.0, 9.0), "neither warm-up nor the last second"
    with pytest.raises(hr.HeadraceError, match="--events"):
        load_figures(phases, second[:3], {"now_us": now_us[:3], "due_us": due_us[:3]})


def point(state_mb: float, us: float) -> dict[str, Any]:
    return {
        "state_mb": state_mb,
        "cpu_us_per_item": us,
        "items_per_s": 1e6 / us,
        "lost": 0,
        "duplicated": 0,
        "wrong": 1,
    }


def test_a_curve_has_its_ratio_and_slope() -> None:
    figures = curve_figures([point(10, 60.0), point(20, 110.0), point(40, 210.0), point(80, 410.0)])
    assert (figures["slope_us_per_mb"], figures["intercept_us"], figures["fit_r2"]) == (5.0, 10.0, 1.0)
    assert figures["rate_ratio_largest_to_smallest"] == round(60 / 410, 3) and figures["wrong"] == 4
    assert figures["state_ratio_largest_to_smallest"] == 8.0 and len(figures["settings"]) == 4
    assert figures["cpu_ratio_largest_to_smallest"] == round(410 / 60, 3)


def test_cpu_time_is_counted_from_the_burst_on() -> None:
    heard = [(1, 10, 2.0), (2, 12, 1.0), (1, 20, 2.5), (2, 22, 1.5), (1, 30, 4.5), (3, 31, 0.25)]
    assert used_since(heard, 20) == (4.5 - 2.5) + (1.5 - 1.0) + 0.25
    assert used_since(heard, 0) == 4.5 + 1.5 + 0.25 and used_since([], 0) == 0


# chronostream fact 36: ten slices against one; the share is of CPU time per record, of both jobs the worse
def test_the_share_of_slices_is_that_of_medians() -> None:
    cpu_s = {("reduce", 1): (1.0, 2.0, 1.1), ("reduce", 10): (1.2, 1.0, 1.1), ("process", 1): (4, 4, 4),
             ("process", 10): (4.4, 4.2, 3.0)}  # fmt: skip
    runs = [
        SliceRun(job, n, 1_000_000, 10.0, 2 * seconds, seconds, 10, 0, 0, 0)
        for turn in range(3)
        for (job, n), several in cpu_s.items()
        for seconds in (several[turn],)
    ]
    figures = slice_figures(runs, 1)
    assert figures["overhead_share"] == 0.05 and figures["reduce_10_overhead_share"] == 0.0
    assert figures["all_cpu_share"] == 0.05 and figures["wrong"] == 0
    assert [setting["cuts"] for setting in figures["settings"]] == [10.0] * 4


def test_counts_of_a_slices_run_are_checked() -> None:
    make = Numbered(3)
    expected = np.bincount(make.key(np.arange(30)), minlength=3)
    table = {"key": np.array([0, 1, 2, 0]), "n": np.array([*expected, 1])}
    assert check_counts(table, make, 30) == RIGHT
    assert check_counts(table | {"n": table["n"] - [0, 1, 0, 0]}, make, 30) == {"lost": 1, "duplicated": 0, "wrong": 1}
    twice = {name: np.concatenate((values, values[:1])) for name, values in table.items()}
    assert check_counts(twice, make, 30)["duplicated"] == 1
