"""The epochs' length of a real run, where it is ours to choose."""

from __future__ import annotations

from typing import Any

import numpy as np

import headrace as hr


def _numbered(numbers: Any) -> dict[str, Any]:
    return {"k": np.asarray(numbers) % 11, "v": np.asarray(numbers)}


def test_recovery_and_measured_gaps_decide_and_the_journal_says_so(spark: Any) -> None:
    job = hr.Job("epochs")
    source = job.source("src", hr.generate(_numbered, rate=500, total=6000))
    work = source.key_by("k").process(lambda r, state, emit: emit(r), name="work")
    work.sink("out", hr.callback(lambda rows: None))
    job.constrain(source >> work, mean="500 ms")
    run = hr.start(job, spark=spark, parallelism=1, recovery="2.5 s")
    try:
        assert run.wait(90)
    finally:
        run.delete_temporary_checkpoint()
    first, *_ = [event.detail for event in run.decisions() if event.what == "epoch"]
    assert first.startswith("epochs of 5 s, by usual gaps of 500 ms: ") and "repeats 2.5 s of input" in first
    assert run.status().committed_epochs >= 3 and len(run.gaps_s) >= 2, "12 s of input in epochs of 5 s"
