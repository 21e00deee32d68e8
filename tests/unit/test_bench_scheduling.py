"""The workflow of the scheduling bench: its answers, its sizes, and what the bench concludes from a run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.bench import burst_on_spark
from headrace.bench.burst import PROFILES, RECEIVERS
from headrace.bench.burst_on_spark import (
    BurstStep,
    ScheduleOutcome,
    _differences,
    burst_job,
    disagreements_of,
    numbered,
)
from headrace.testing import run_local


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burst_on_spark, "_SLOWER", 0.1)


@pytest.mark.parametrize("schedule", ["direct", "odf", "mem", "hybrid"])
def test_the_workflow_answers_the_same_under_every_schedule(schedule: str) -> None:
    job = burst_job(hr.generate(numbered, total=405, due="due_us"), lambda step: hr.rows())
    rows = run_local(job, parallelism=1, schedule=schedule, budget="200 KB", poll_rows=40)
    assert sorted(row["number"] for row in rows["out-C"]) == list(range(0, 405, 2))
    assert sorted(row["number"] for row in rows["out-E"]) == list(range(0, 405, 10))


def test_steps_have_the_profiles_of_the_specification() -> None:
    n = np.arange(1000)
    made = {"A": pa.record_batch({**numbered(n), "due_us": n})}
    for step, receivers in RECEIVERS.items():
        records, profile = made[step], PROFILES[step]
        assert records.nbytes / records.num_rows / 25 == pytest.approx(profile.in_bytes, rel=0.02)
        out = BurstStep(step)(records)
        assert out.num_rows / records.num_rows == pytest.approx(profile.selectivity)
        assert out.nbytes / out.num_rows / 25 == pytest.approx(profile.out_bytes, rel=0.02)
        made |= dict.fromkeys(receivers, out)


def test_differences_are_counted() -> None:
    table = {"number": np.array([0, 2, 2, 6, 7])}
    assert _differences(table, 8, 2) == (1, 1, 1)
    assert _differences({"number": np.array([0, 10])}, 8, 2) == (3, 0, 1)


def test_what_the_paper_did_not_find_is_named() -> None:
    odf = ScheduleOutcome(4000, 80, 2.1, 9000, 0, 0, 0)
    runs = {"odf": odf, "mem": replace(odf, peak_mb=1.0), "hybrid": replace(odf, peak_mb=1.9, stopped_ms=0)}
    assert disagreements_of(runs, 2_000_000) == []
    calm = {**runs, "hybrid": replace(odf, calm_ms=300)}
    assert [text.split()[0] for text in disagreements_of(calm, 2_000_000)] == ["hybrid", "hybrid", "before"]
