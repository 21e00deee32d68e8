"""Executors of a cluster: subtasks land anywhere and move, executors come and go with the load, and nothing is lost."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.control.executors import ExecutorPolicy

RATE, SECONDS, KEYS = 500, 30, 40


def numbered(n: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, Any]:
    return {"n": n, "key": n * 7 % KEYS, "ts": n * 1000 // RATE}


def test_subtasks_move_between_executors(cluster: Any, tmp_path: Any) -> None:
    job = hr.Job("cluster")
    source = hr.generate(numbered, rate=f"{RATE}/s", total=RATE * SECONDS)
    counted = job.source("items", source, event_time="ts").key_by("key").window(hr.tumbling("1 s"))
    counted.reduce(name="n", n=hr.count(), total=hr.sum("n")).sink("out", hr.rows())
    run = hr.start(job, spark=cluster, checkpoint=tmp_path)
    while not moved(run):  # a query that is started again has its subtasks where Spark likes
        kill_a_worker(run)
    run.wait()
    rows = run.rows("out")
    expected: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for i in range(RATE * SECONDS):
        entry = expected[i * 7 % KEYS, i * 1000 // RATE // 1000]
        entry[0], entry[1] = entry[0] + 1, entry[1] + i
    got = {(r["key"], int(r["window_start"].timestamp())): [r["n"], r["total"]] for r in rows}
    assert len(rows) == len(got)
    assert got == dict(expected)
    assert len({executor for _, _, _, executor, _ in run.placements}) == 2, "both executors took part"


# latency-guarantees fact 29 on executors: those that come and go with the load lose and double no item
def test_executors_come_and_go_with_the_load(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are dear while a file exists, so that one executor cannot keep up with them."""
    dear = tmp_path / "dear"
    # However long a restart takes on a busy machine, to let an executor go is worth it.
    monkeypatch.setattr("headrace.spark.fleet.ExecutorPolicy", partial(ExecutorPolicy, horizon_s=1e6))

    def work(record: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.005 if dear.exists() else 0.0)
        return record

    job = hr.Job("elastic")
    items = job.source("items", hr.generate(numbered, rate=f"{RATE}/s"), event_time="ts", parallelism=1)
    worked = items.map(work, name="work", parallelism=(1, 1, 5))
    counted = worked.key_by("key").window(hr.tumbling("1 s")).reduce(name="n", n=hr.count(), total=hr.sum("n"))
    counted.sink("out", hr.rows())
    job.constrain(items >> worked, mean="1 s", over="2 s")  # also kept by a busy machine, if records are cheap
    run = hr.start(
        job, spark=cluster, parallelism=1, report="500 ms", checkpoint=tmp_path / "state",
        executors=(1, 2), release="2 s",
    )  # fmt: skip
    try:
        until(run, lambda: run.status().cuts >= 1)
        assert hosts(run) == 1 and run.plan.layout.slots == 4
        dear.touch()
        until(run, lambda: run.plan.layout.slots == 7 and hosts(run) == 2)
        dear.unlink()
        until(run, lambda: run.plan.layout.slots == 4 and hosts(run) == 1)
        cuts = run.status().cuts
        until(run, lambda: run.status().cuts >= cuts + 2)
    finally:
        run.stop()
    assert run.status().state == "stopped" and run.status().restarts == 0
    said = "\n".join(event.detail for event in run.decisions())
    assert "provision executors: 1 → 2, because steps want more subtasks than there are" in said
    assert "effective: executors of the job went from 1 to 2" in said
    assert "effective: executors of the job went from 2 to 1" in said
    assert "have no slices to give away after" in said and "are let go" in said, "emptied, and then let go"
    used_s = run.executor_s()
    assert used_s is not None and run.busy_s * 0.95 < used_s < 0.95 * 2 * run.busy_s, "fewer than two all the time"
    rows = run.rows("out")
    windows = {int(row["window_start"].timestamp()) for row in rows}
    assert windows == set(range(len(windows))) and len(windows) > 5
    numbers = range(RATE * len(windows))
    assert Counter((r["key"], int(r["window_start"].timestamp()), r["n"], r["total"]) for r in rows) == Counter(
        (key, w, len(mine), sum(mine))
        for key in range(KEYS)
        for w in windows
        if (mine := [i for i in numbers[RATE * w : RATE * (w + 1)] if i * 7 % KEYS == key])
    )


def until(run: Any, happened: Callable[[], bool]) -> None:
    """Wait for it; a run that fails meanwhile raises, and pytest's timeout ends what never happens."""
    while not happened():
        assert not run.wait(0.05), "the run ended too early"


def kill_a_worker(run: Any) -> None:
    """After a cut, so that there is something to go on from; returns when the job runs again."""
    before = run.status()
    until(run, lambda: run.status().cuts > before.cuts and len(run.worker_pids()) == 4)
    os.kill(run.worker_pids()[0], signal.SIGKILL)
    until(run, lambda: run.status().restarts > before.restarts and run.status().state == "running")


def moved(run: Any) -> bool:
    """Whether some subtask has been on two executors."""
    executors = defaultdict(set)
    for _, stage, index, executor, _ in list(run.placements):
        executors[stage, index].add(executor)
    return any(len(seen) > 1 for seen in executors.values())


def hosts(run: Any) -> int:
    """Executors that subtasks of the newest query run on."""
    newest = run.placements[-1][0]
    return len({executor for query, _, _, executor, _ in list(run.placements) if query == newest})
