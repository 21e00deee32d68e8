"""Two executors: subtasks land anywhere, move between executors from epoch to epoch, and lose nothing."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

import headrace as hr

RATE, SECONDS, KEYS = 500, 14, 40


def numbered(n: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, Any]:
    return {"n": n, "key": n * 7 % KEYS, "ts": n * 1000 // RATE}


@pytest.mark.timeout(240)
def test_subtasks_move_between_executors(tmp_path: Any) -> None:
    job = hr.Job("cluster")
    source = hr.generate(numbered, rate=f"{RATE}/s", total=RATE * SECONDS)
    counted = job.source("items", source, event_time="ts").key_by("key").window(hr.tumbling("1 s"))
    counted.reduce(name="n", n=hr.count(), total=hr.sum("n")).sink("out", hr.collect())
    run = hr.start(job, master="local-cluster[2,4,1024]", epoch="4 s", checkpoint=tmp_path)
    run.wait()
    rows = run.rows("out")
    expected: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for i in range(RATE * SECONDS):
        entry = expected[i * 7 % KEYS, i * 1000 // RATE // 1000]
        entry[0], entry[1] = entry[0] + 1, entry[1] + i
    got = {(r["key"], int(r["window_start"].timestamp())): [r["n"], r["total"]] for r in rows}
    assert len(rows) == len(got)
    assert got == dict(expected)
    executors = defaultdict(set)
    for _, stage, index, executor, _ in run.placements:
        executors[stage, index].add(executor)
    assert len(set().union(*executors.values())) == 2, "both executors took part"
    assert any(len(seen) > 1 for seen in executors.values()), "no subtask ever moved"
    assert run.status().committed_epochs >= 3
