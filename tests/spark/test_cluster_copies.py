"""Copies of state on the executors of a cluster: a job whose workers or executors are killed loads from them, exactly."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import headrace as hr

RATE, KEYS = 500, 40


def numbered(n: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, Any]:
    return {"n": n, "key": n * 7 % KEYS, "ts": n * 1000 // RATE}


# chronostream facts 15 and 31 and section 6(d): what a dead executor's workers had is loaded from copies
def test_what_killed_workers_and_executors_had_is_loaded_from_copies(cluster: Any, tmp_path: Path) -> None:
    job = hr.Job("copies")
    items = job.source("items", hr.generate(numbered, rate=f"{RATE}/s"), event_time="ts", parallelism=1)
    items.key_by("key").reduce(name="n", n=hr.count(), total=hr.sum("n")).sink("out", hr.rows())
    run = hr.start(job, spark=cluster, checkpoint=tmp_path, commit="4 s")  # longer than keepers take to see to a cut
    try:
        kills = sum(kill_until_copies_are_loaded(run, kill) for kill in KILLS)
        until(run, lambda: len(at_work(run)) == 2)  # the executor that came for the last one has subtasks as well
    finally:
        run.stop()
    assert run.status().state == "stopped" and run.status().restarts == kills
    got: dict[int, tuple[int, int]] = {}
    for row in run.rows("out"):
        got[row["key"]] = max(got.get(row["key"], (0, 0)), (row["n"], row["total"]))
    numbers = range(sum(n for n, _ in got.values()))
    mine = {key: [i for i in numbers if i * 7 % KEYS == key] for key in range(KEYS)}
    assert got == {key: (len(its), sum(its)) for key, its in mine.items()}
    assert sum("slices loaded: " in event.detail for event in run.decisions()) == kills


def until(run: Any, happened: Callable[[], bool]) -> None:
    """Wait for it; a run that fails meanwhile raises, and pytest's timeout ends what never happens."""
    while not happened():
        assert not run.wait(0.05), "the run ended too early"


def kill_until_copies_are_loaded(run: Any, kill: Callable[[int, set[int]], None]) -> int:
    """Kill on one executor when copies of the last cut are complete, and again where all slices came from the checkpoint
    nevertheless: that was seen once, on a machine with ten times more to do than cores. Returns how often it took.
    """
    for times in range(1, 4):
        loaded = kill_and_go_on(run, kill)
        if sum(loaded.get(origin, 0) for origin in ("memory", "node", "peer")) > loaded.get("checkpoint", 0):
            return times
    raise AssertionError(f"{kill.__name__}: {loaded}")


def kill_and_go_on(run: Any, kill: Callable[[int, set[int]], None]) -> dict[str, int]:
    """Kill, and say where slices were loaded from afterwards."""
    until(run, lambda: (cut := run.status().cut) is not None and run.status().copied_cut == cut.number)
    restarts = run.status().restarts
    daemon, pids = max(at_work(run).items())
    kill(daemon, pids)
    until(run, lambda: run.status().restarts > restarts and run.status().state == "running")
    return dict(run.status().loaded)


def at_work(run: Any) -> dict[int, set[int]]:
    """The processes with subtasks of the query that runs, by their executors' daemons."""
    placed, found = list(run.placements), dict[int, set[int]]()
    for query, _, _, daemon, pid in placed:
        if query == placed[-1][0]:
            found.setdefault(daemon, set()).add(pid)
    return found


def kill_workers(daemon: int, pids: set[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def kill_workers_and_keeper(daemon: int, pids: set[int]) -> None:
    """The last argument of a keeper begins with its executor's daemon."""
    kill_workers(daemon, pids)
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or [""]
        if "headrace.channel.keeping.keeper" in command and command[-1].startswith(f"{daemon}-"):
            process.kill()


def kill_executor(daemon: int, pids: set[int]) -> None:
    executor = psutil.Process(daemon).parent()
    assert executor is not None
    executor.kill()


KILLS = (kill_workers, kill_workers_and_keeper, kill_executor)
