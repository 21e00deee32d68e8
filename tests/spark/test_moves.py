"""Slices change hands in a real run: subtasks come and go at cuts, and nothing is restarted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.errors import ConfigError

KEYS, STEPS = 53, (3, 1, 2)


def _numbered(numbers: Any) -> dict[str, Any]:
    return {"k": np.asarray(numbers) % KEYS, "v": np.asarray(numbers)}


def _until(run: hr.Run, holds: Any) -> None:
    while not holds():
        assert not run.wait(0.05), "the job ended before"


# chronostream facts 1, 21 and 29 on Spark: idle subtasks get slices without a restart, and nothing is lost or doubled
def test_a_keyed_step_grows_and_shrinks_while_it_runs(spark: Any) -> None:
    job = hr.Job("moves")
    source = job.source("src", hr.generate(_numbered, rate=2000, partitions=1))
    sums = source.key_by("k").reduce(name="sums", n=hr.count(), v=hr.sum("v"), parallelism=(1, 1, 3))
    sums.sink("out", hr.rows())
    run = hr.start(job, spark=spark, parallelism=1, commit="300 ms")
    try:
        for subtasks in STEPS:
            moved = len(run.moves())
            _until(run, lambda: run.status().cuts > 1)
            run.rescale("sums", subtasks)
            _until(run, lambda n=subtasks, m=moved: len(run.moves()) > m and len({s.owner for s in run.slices()}) == n)
        _until(run, lambda: any(figures.bytes for figures in run.slices()))
        with pytest.raises(ConfigError, match="'src' is no keyed step; those are: sums"):
            run.rescale("src", 2)
        run.stop()
        last: dict[int, tuple[int, int]] = {}
        for row in run.rows("out"):
            last[row["k"]] = max(last.get(row["k"], (0, 0)), (row["n"], row["v"]))
        total = sum(n for n, _ in last.values())
        assert last == {k: (len(range(k, total, KEYS)), sum(range(k, total, KEYS))) for k in range(KEYS)}
        assert not run.gaps and run.status().restarts == 0, "nothing stood still"
        assert {handed.stage for handed in run.moves()} == {1} and len(run.moves()) >= len(STEPS)
        assert sum(event.what == "moved" for event in run.decisions()) == len(run.moves())
    finally:
        run.stop()
        run.delete_temporary_checkpoint()
