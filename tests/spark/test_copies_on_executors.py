"""Copies of state on the executors of a cluster: a job whose workers are killed loads from them, and is exact."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import headrace as hr

RATE, SECONDS, KEYS = 500, 25, 40


def numbered(n: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, Any]:
    return {"n": n, "key": n * 7 % KEYS, "ts": n * 1000 // RATE}


# chronostream facts 15 and 31 and section 6(d): what a dead executor's workers had is loaded from copies
def test_killed_workers_are_replaced_by_copies_of_their_state(cluster: Any, tmp_path: Path) -> None:
    job = hr.Job("copies")
    source = hr.generate(numbered, rate=f"{RATE}/s", total=RATE * SECONDS)
    counted = (
        job.source("items", source, event_time="ts").key_by("key").reduce(name="n", n=hr.count(), total=hr.sum("n"))
    )
    counted.sink("out", hr.rows())
    run = hr.start(job, spark=cluster, checkpoint=tmp_path)
    for killed in range(3):
        loaded = kill_and_go_on(run, killed % 2, also_keeper=killed == 1)
        assert sum(loaded.get(origin, 0) for origin in ("memory", "node", "peer")) > loaded.get("checkpoint", 0), loaded
    run.wait()
    expected: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for i in range(RATE * SECONDS):
        entry = expected[i * 7 % KEYS]
        entry[0], entry[1] = entry[0] + 1, entry[1] + i
    got: dict[int, list[int]] = {}
    for row in run.rows("out"):
        got[row["key"]] = max(got.get(row["key"], [0, 0]), [row["n"], row["total"]])
    assert got == dict(expected)
    assert any("slices loaded: " in event.detail for event in run.decisions())


def until(run: Any, happened: Callable[[], bool]) -> None:
    """Wait for it; a run that fails meanwhile raises, and pytest's timeout ends what never happens."""
    while not happened():
        assert not run.wait(0.05), "the run ended too early"


def kill_and_go_on(run: Any, executor: int, *, also_keeper: bool) -> dict[str, int]:
    """Kill all workers of one executor after some cuts; returns from where their slices were loaded."""
    before = run.status()
    until(run, lambda: run.status().cuts >= before.cuts + 3 and run.status().counters.get("copied", 0) > 0)
    newest = run.placements[-1][0]
    workers = [(daemon, pid) for query, _, _, daemon, pid in list(run.placements) if query == newest]
    daemons = sorted({daemon for daemon, _ in workers})
    daemon = daemons[executor % len(daemons)]
    for pid in {pid for its, pid in workers if its == daemon}:
        os.kill(pid, signal.SIGKILL)
    if also_keeper:
        kill_keeper_of(daemon)
    until(run, lambda: run.status().restarts > before.restarts and run.status().state == "running")
    return dict(run.status().loaded)


def kill_keeper_of(daemon: int) -> None:
    """Its last argument begins with the executor's daemon."""
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or [""]
        if "headrace.channel.keeping.keeper" in command and command[-1].startswith(f"{daemon}-"):
            process.kill()
