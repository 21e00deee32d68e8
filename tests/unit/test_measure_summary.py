"""Moments, reports and summaries: what is known, what is merged, what is too old."""

from __future__ import annotations

import math
import random
from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.measured import moments_of, of_channel, of_subtask, of_worker
from tests.unit.plants import line

from headrace.control.policy import ControlSettings
from headrace.control.topology import ControlledStep
from headrace.measure.moments import Moments, merge
from headrace.measure.recent import EdgeParts, Recent
from headrace.measure.report import ChannelId, Report, SubtaskId
from headrace.measure.summary import summarise
from headrace.testing.plant import Plant
from headrace.testing.plant_model import PlantModel, StepModel, steady

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)


# latency-guarantees fact 9: Welford equals two-pass to 1e-9
@given(VALUES, st.integers(0, 60))
@settings(max_examples=100)
def test_merged_moments_equal_two_passes(values: list[float], split: int) -> None:
    mean = math.fsum(values) / len(values)
    m2 = math.fsum((v - mean) ** 2 for v in values)
    one_by_one = reduce(add, (moments_of(1, value) for value in values))
    left, right = values[:split], values[split:]
    in_parts = merge(
        [reduce(add, (moments_of(1, value) for value in part)) if part else None for part in (left, right)]
    )
    assert in_parts is not None
    for moments in (one_by_one, in_parts):
        assert moments.n == len(values)
        assert moments.mean == pytest.approx(mean, rel=1e-9, abs=1e-9 * max(map(abs, values)))
        assert moments.m2 == pytest.approx(m2, rel=1e-9, abs=1e-9 * max(map(abs, values)) ** 2 + 1e-300)


# latency-guarantees fact 9: sampled means at 10 % are within sampling error of full measurement
def test_a_tenth_of_the_events_tells_the_same() -> None:
    topology = line(ControlledStep("work"))
    means: dict[float, list[Moments]] = {}
    for share in (1.0, 0.1):
        plant = Plant(topology, PlantModel({"src": steady(400)}, {"work": StepModel(1.5)}, sample_share=share), seed=3)
        reports = [r for _ in range(20) for r in plant.run(ControlSettings()).reports]
        work = [s for r in reports for s in r.subtasks if s.id.step == "work"]
        for what in ("service_ms", "queue_ms"):
            total = merge(getattr(s, what) for s in work)
            assert total is not None
            means.setdefault(share, []).append(total)
    for full, sampled in zip(means[1.0], means[0.1]):
        assert sampled.n == pytest.approx(full.n / 10, rel=0.15)
        error = math.sqrt(full.variance / sampled.n)
        assert abs(sampled.mean - full.mean) < 3 * error


def test_unknown_is_none_and_idle_is_zero() -> None:
    id = SubtaskId("a", 0)
    assert merge([None, None]) is None
    assert moments_of(1, 0.0).variation is None
    assert of_subtask(id, 0).utilisation == 0.0
    assert of_subtask(id, 5).utilisation is None
    assert of_subtask(id, 5, service_ms=moments_of(5, 3.0), interarrival_ms=moments_of(5, 4.0)).utilisation == 0.75
    assert of_channel(ChannelId(0, 0, 0), 1, 1, wait_ms=moments_of(1, 1.0)).latency_ms is None
    empty = summarise([])
    assert empty.step("a").latency_ms is None and empty.step("a").peak_utilisation is None
    assert empty.edge(0).latency_ms is None


def test_an_idle_subtask_does_not_raise_the_total_rate() -> None:
    busy = of_subtask(SubtaskId("a", 0), 10, service_ms=moments_of(10, 1.0), interarrival_ms=moments_of(10, 2.0))
    summary = summarise([of_worker("w", 1.0, 0, (busy, of_subtask(SubtaskId("a", 1), 0)))])
    interarrival_ms = summary.step("a").interarrival_ms
    assert interarrival_ms is not None and 2 / interarrival_ms == pytest.approx(
        0.5
    )  # two subtasks, together one item per 2 ms
    assert summary.step("a").peak_utilisation == 0.5


def random_reports(seed: int, subtasks: int = 7) -> list[Report]:
    rng = random.Random(seed)

    def moments() -> Moments | None:
        return None if rng.random() < 0.1 else moments_of(rng.randrange(1, 9), rng.uniform(0, 50), rng.uniform(0, 9))

    reports = []
    for index in range(subtasks):
        task = of_subtask(SubtaskId("a", index), rng.randrange(5), moments(), moments(), moments(), moments())
        channels = tuple(
            of_channel(ChannelId(0, sender, index), 3, 2, moments(), moments(), moments(), moments())
            for sender in range(2)
        )
        reports.append(of_worker(f"w{index}", 1.0, 4, (task,), channels))
    return reports


# latency-guarantees fact 11: what comes in parts gives the directly computed global summary, overlap included
@given(st.integers(0, 10**6), st.lists(st.sets(st.integers(0, 6), min_size=1), min_size=1, max_size=4))
@settings(max_examples=50)
def test_parts_merge_to_the_global_summary(seed: int, parts: list[set[int]]) -> None:
    reports = random_reports(seed)
    parts = [*parts, set(range(7))] if set().union(*parts) != set(range(7)) else parts
    recent = Recent(5.0)
    for part in parts:
        recent = recent.add([reports[i] for i in sorted(part)], 1.0)
    merged, whole = recent.summary(1.0, 5.0), summarise(reports)
    assert merged == whole
    assert merged.step("a") == whole.step("a") and merged.edge(0) == whole.edge(0)


def test_a_step_counts_its_subtasks_alike() -> None:
    few = of_subtask(SubtaskId("a", 0), 1, moments_of(1, 10.0))
    many = of_subtask(SubtaskId("a", 1), 99, moments_of(99, 20.0))
    assert summarise([of_worker("w", 1.0, 0, (few, many))]).step("a").latency_ms == 15.0


def timed(at_s: float, latency_ms: float, *, version: int = 0, worker: str = "w") -> Report:
    channel = of_channel(ChannelId(0, 0, 0), 2, 1, *[moments_of(2, latency_ms)] * 4)
    return of_worker(worker, at_s, version, (of_subtask(SubtaskId("a", 0), 2, moments_of(2, latency_ms)),), (channel,))


# nephele-qos fact 3: values older than t never count
def test_old_values_leave() -> None:
    recent = Recent(5.0)
    for second in range(1, 21):
        recent = recent.add([timed(float(second), 100.0 if second <= 15 else 1.0)], float(second))
        assert all(second - 5 < r.at_s <= second for r in recent.reports)
    assert recent.step_latency_ms("a", 15.0) == 1.0
    assert recent.edge_parts_ms(0, 15.0) == EdgeParts(1.0, 1.0, 1.0)
    assert recent.add([timed(3.0, 7.0)], 20.0) == recent


def test_a_late_or_repeated_report_counts_once_and_in_its_place() -> None:
    recent = Recent(5.0).add([timed(2.0, 2.0)], 2.0)
    late = recent.add([timed(1.0, 8.0), timed(2.0, 2.0)], 3.0)
    assert [r.at_s for r in late.reports] == [1.0, 2.0]
    assert late.step_latency_ms("a", -2.0) == 5.0
    assert late.summary(3.0, 2.5).step("a").latency_ms == 2.0
    assert late.summary(6.0, 2.5).step("a").latency_ms is None


def test_quantiles_of_ages_weigh_subtasks_by_their_records() -> None:
    slow = of_subtask(SubtaskId("a", 0), 10, ages_ms=(100.0,) * 10)
    fast = of_subtask(SubtaskId("a", 1), 990, ages_ms=(1.0,) * 10)
    recent = Recent(5.0).add([of_worker("w", 1.0, 0, (slow, fast))], 1.0)
    assert recent.age_ms("a", 0.95, 0.0) == 1.0
    assert recent.age_ms("a", 0.995, 0.0) == 100.0
    assert recent.age_ms("a", None, 0.0) == pytest.approx(1.99)
    assert recent.age_ms("b", None, 0.0) is None


# latency-guarantees fact 10, nephele-qos fact 3: at most one report per worker and interval
def test_workers_send_one_report_per_interval() -> None:
    names = ("w1", "w2", "w1")
    topology = line(ControlledStep("a", 3, workers=names), ControlledStep("b", 3, workers=names), paired=True)
    plant = Plant(topology, PlantModel({"src": steady(100)}))
    for _ in range(5):
        reports = plant.run(ControlSettings()).reports
        workers = [r.worker for r in reports]
        assert len(workers) == len(set(workers)) and {"w1", "w2"} <= set(workers)
        assert {s.id for r in reports if r.worker == "w1" for s in r.subtasks} == {
            SubtaskId(step, index) for step in "ab" for index in (0, 2)
        }


# latency-guarantees fact 4: RW ≈ T/2 and RR ≈ compute time; nephele-qos fact 1 measures the same
def test_read_write_latency_is_half_the_window() -> None:
    rr, rw = [], []
    for window_ms in (None, 200.0):
        model = PlantModel({"src": steady(300)}, {"agg": StepModel(0.5, 0.0, window_ms=window_ms)})
        plant = Plant(line(ControlledStep("agg", latency="read-write" if window_ms else "read-ready")), model, seed=1)
        for _ in range(10):
            found = summarise(plant.run(ControlSettings()).reports).step("agg").latency_ms
            assert found is not None
            (rw if window_ms else rr).append(found)
    assert np.mean(rw) == pytest.approx(100.0, rel=0.03)
    assert np.mean(rr) == pytest.approx(0.5, rel=1e-6)
