"""Costs of steps measured on sample records."""

from __future__ import annotations

import time
from pathlib import Path

import headrace as hr
from headrace.config import Settings
from headrace.driver.planning import plan_job
from headrace.forecast.calibrate import calibrated
from headrace.model.costs import Costs, StepCost
from headrace.runtime.plan import JobPlan

PER_RECORD_S = 0.0002


def burn(record: dict[str, int]) -> dict[str, int]:
    until = time.perf_counter() + PER_RECORD_S
    while time.perf_counter() < until:
        pass
    return record


def plan_of(build: object, **options: object) -> JobPlan:
    job = hr.Job("calibrated")
    read = job.source("read", hr.generate(lambda n: {"n": n, "key": n % 10, "at": n * 10}, rate="100/s"), **options)
    build(read).sink("out", hr.callback(print))  # type: ignore[operator]
    return plan_job(job, Path("nowhere"), Settings.of())


def test_a_steps_time_per_record_is_found_and_its_output_goes_on() -> None:
    found = calibrated(
        plan_of(lambda s: s.map(burn, name="burn").filter(lambda r: r["n"] % 4 == 0, name="few").map(dict, name="last"))
    )
    burned, few, last = (found.steps[name] for name in ("burn", "few", "last"))
    assert burned.record_s > PER_RECORD_S / 2, "at least what it burns; more on a busy machine"
    assert (burned.records_per_input, few.records_per_input, last.records_per_input) == (1.0, 1.0, 0.25)
    assert "out" not in found.steps and "sample" in found.origin


def test_keyed_and_windowed_steps_are_run_to_the_end_of_their_windows() -> None:
    window = hr.tumbling("1 s")
    plan = plan_of(
        lambda s: s.key_by("key").window(window).reduce(name="sums", n=hr.sum("n")).map(dict, name="after"),
        event_time="at",
    )
    found = calibrated(plan)
    assert 0 < found.steps["after"].records_per_input < found.steps["sums"].records_per_input == 1.0


def test_a_step_that_refuses_samples_keeps_what_it_had() -> None:
    def picky(record: dict[str, int]) -> dict[str, int]:
        if record["n"] == 3:
            raise ValueError("no")
        return record

    before = Costs({"picky": StepCost(1.0, 2.0)})
    found = calibrated(plan_of(lambda s: s.map(picky, name="picky").map(dict, name="next")), before)
    assert found.steps == before.steps


def test_two_sources_share_the_input() -> None:
    job = hr.Job("two")
    streams = [job.source(name, hr.generate(lambda n: {"n": n}, rate="10/s")) for name in ("a", "b")]
    streams[0].map(dict, name="own").union(streams[1], name="all").sink("out", hr.callback(print))
    found = calibrated(plan_job(job, Path("nowhere"), Settings.of(share=False)))
    assert (found.steps["own"].records_per_input, found.steps["all"].records_per_input) == (0.5, 1.0)
