"""The parts of ``bench model-accuracy``, without Spark."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.measured import moments_of, of_channel, of_subtask, of_worker

from headrace.bench.guarantees.model_accuracy import (
    CALIBRATION,
    QUICK,
    TESTED,
    UNEVEN,
    AccuracySetting,
    MeasuredLatency,
    Probe,
    Service,
    by_second,
    calibrated,
    calibration_figures,
    calmest,
    compared,
    job_of,
    predict_s,
    shares,
)
from headrace.config import Settings
from headrace.driver.planning import plan_job
from headrace.errors import UnstableError
from headrace.measure.report import ChannelId, Report, SubtaskId
from headrace.model.costs import Costs, StepCost
from headrace.model.stagephases import Transfer
from headrace.runtime.plan import JobPlan
from headrace.testing import run_local

COSTS = Costs(
    {step: StepCost(0.0004, 20e-6, 0.0002**2) for step in ("count", "test", "out")},
    transfer=Transfer(0.003, 0.0, 0.001**2),
    wake=Transfer(0.001, 0.0, 0.001**2, 0.05, 0.01),
)


def plan_of(setting: AccuracySetting) -> JobPlan:
    job = job_of(setting, print, f"{setting.rate}/s", 1000)
    return plan_job(job, Path("nowhere"), Settings.of(parallelism=setting.subtasks, flush=f"{setting.flush_ms} ms"))


def report(batch_records: int, service_ms: float) -> Report:
    service = moments_of(10, service_ms, 0.4)
    steps = [of_subtask(SubtaskId(step, 0), 10 * batch_records, service_ms=service) for step in COSTS.steps]
    transfer = of_channel(ChannelId(0, 0, 0), 10, 10, transfer_ms=moments_of(10, 3.0, 10.0))
    return of_worker("w", 0.0, 0, (of_subtask(SubtaskId("items", 0), 10 * batch_records), *steps), (transfer,))


def measured(latency_s: list[float], reports: tuple[Report, ...] = ()) -> MeasuredLatency:
    return MeasuredLatency(plan_of(CALIBRATION), (np.array(latency_s),), reports, len(latency_s), 0, 0, 0.0)


def test_no_setting_is_tested_that_the_model_was_calibrated_on() -> None:
    assert CALIBRATION not in TESTED and {*QUICK} < {*TESTED} and len(UNEVEN) > 1


def test_the_job_gives_every_record_once() -> None:
    job = job_of(AccuracySetting(1000, 5, 1, 10), print, "1000/s", 200)
    assert sorted(row["seq"] for row in run_local(job, parallelism=1)["out"]) == list(range(200))


def test_a_service_takes_its_time_per_record() -> None:

    records = pa.record_batch({"n": list(range(20))})
    began_s = time.perf_counter()
    assert Service(0.001)(records) is records
    assert time.perf_counter() - began_s >= 0.020


def test_predictions_follow_the_settings() -> None:
    by_flush = [
        predict_s(plan_of(s), COSTS, s) for s in (AccuracySetting(2000, 10, 2, 50), AccuracySetting(2000, 40, 2, 50))
    ]
    assert by_flush[1][0] - by_flush[0][0] == pytest.approx(0.030 / 2, abs=0.003)
    assert 0.022 < by_flush[1][1] - by_flush[0][1] < 0.030, "the tail of the way blurs the shorter deadline more"
    slow = AccuracySetting(2000, 40, 2, 400)
    assert predict_s(plan_of(slow), COSTS, slow)[0] > by_flush[1][0] + 0.004
    overloaded = AccuracySetting(2000, 10, 1, 1000)
    with pytest.raises(UnstableError):
        predict_s(plan_of(overloaded), COSTS, overloaded)


def test_a_calibration_finds_what_it_was_made_from() -> None:
    """Reports give batch and record of each step; median and p99 give what workers do not see."""
    truth_s = predict_s(plan_of(CALIBRATION), COSTS, CALIBRATION)
    reports = tuple(report(records, 0.4 + 0.02 * records) for records in (3, 9, 30))
    even = replace(measured([truth_s[0]] * 98 + [truth_s[1]] * 2), reports=reports)
    found = calibrated(replace(even, latency_s=()), even)
    assert found.steps["count"].batch_s == pytest.approx(0.0004) and found.steps["count"].record_s == pytest.approx(
        20e-6
    )
    assert (found.transfer.row_s, found.transfer.var_s2) == (pytest.approx(0.003), pytest.approx(1e-6))
    assert found.wake.row_s == pytest.approx(0.001, rel=0.15) and found.wake.held_s == pytest.approx(0.010, rel=0.15)
    assert predict_s(even.plan, found, CALIBRATION) == pytest.approx(truth_s, rel=0.01)
    assert calibration_figures(found)["count_batch_us"] == pytest.approx(400)


def test_one_stall_does_not_decide_a_setting_but_is_shown() -> None:
    due_us = np.arange(0, 4_000_000, 1000)
    now_us = due_us + np.where(due_us // 1_000_000 == 1, 500_000, 10_000)
    seconds = by_second({"due_us": due_us, "now_us": now_us}, 1.0)
    assert [len(second) for second in seconds] == [1000, 1000, 1000]
    run = replace(measured([]), latency_s=seconds)
    assert run.quantile_s(0.99) == pytest.approx(0.010) and run.whole_s(0.99) == pytest.approx(0.500)


def test_the_calmest_seconds_count_by_the_probe_and_not_by_latency() -> None:
    seconds = tuple(np.array([float(n)]) for n in range(5))
    kept = calmest(seconds, [0.3, 0.1, 0.9, 0.2, 0.8, 0.0])
    assert [second[0] for second in kept] == [0.0, 1.0, 3.0]


def test_a_probe_notes_how_late_it_wakes() -> None:
    with Probe() as probe:
        while len(probe.late_s) < 5:
            time.thread_time()
    first, last = probe.late_s[0][0], probe.late_s[-1][0]
    assert first < last and probe.held_s(first, last + 1) == pytest.approx(sum(late_s for _, late_s in probe.late_s))
    assert probe.held_s(last + 1, last + 2) == 0


def test_shares_count_settings_near_enough_and_a_refusal_as_wrong() -> None:
    setting, run = TESTED[0], measured([0.010] * 98 + [0.020] * 2)
    rows = [compared(setting, times_s, run) for times_s in ((0.012, 0.014), (0.0121, 0.0261), None, (0.009, 0.021))]
    assert rows[0]["p50_error"] == pytest.approx(0.2) and rows[0]["whole_p99_ms"] == 20.0
    assert rows[2]["predicted_p99_ms"] is None
    assert shares(rows) == {"share_p50_within_20pct": 0.5, "share_p99_within_30pct": 0.5}
