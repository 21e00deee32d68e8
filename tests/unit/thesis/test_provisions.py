"""Plans: smallest resources, largest rate; and that a plan holds when it is run."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import simulated_runtime

from headrace.model.buffers import Buffering
from headrace.model.sizing import best_period
from headrace.model.stagephases import StagePhases, Transfer
from thesis import simulated_scalla
from thesis.provisions import Infeasible, PlannedRuntime, PlannedSystem, Provision, largest_rate, provision
from thesis.scalla_phases import JobStatistics, QueueShape, ThesisHardware
from thesis.scalla_plant import ThesisPlant, WindowModel, periods_of
from thesis.waits import QueueMoments

NODE = ThesisHardware(4, 4e9, 1e8, (0.0, 1e8), (2e8, 1e8))
NOISY = QueueShape(service=QueueMoments.gamma(1.0, 0.1))
JOB = JobStatistics(1.0, 100, 100, 400e3, 400e3, NOISY, NOISY, NOISY, NOISY, batch_cycles=4e5)
THESIS = ThesisPlant(JOB, NODE)

TRANSFER = Transfer(0.002, 1e-9, 0.001**2)
STAGES = (
    StagePhases("read", 50e-6, 50e-6**2, 300e-6),
    StagePhases("count", 100e-6, 100e-6**2, 300e-6, 150e-6**2, item_bytes=100, transfer=TRANSFER),
)
TOP = replace(STAGES[1], name="top")
OURS = PlannedRuntime(STAGES)
CLEARLY = 1.5
"""Plans are made with bounds, not estimates, and leave every stage a tenth of its time."""


def rates(plant: PlannedSystem[object], bound_s: float, maximum: int) -> list[float]:
    plans = [largest_rate(plant, resources, bound_s) for resources in range(1, maximum + 1)]
    return [found.rate_per_s if found else 0.0 for found in plans]


PLANTS = [(THESIS, 0.1, 0.3, 4), (OURS, 0.01, 0.03, 6)]


@pytest.mark.parametrize(("plant", "bound_s", "looser_s", "maximum"), PLANTS, ids=["thesis", "ours"])
def test_the_largest_rate_grows_with_resources_and_bound(
    plant: PlannedSystem[object], bound_s: float, looser_s: float, maximum: int
) -> None:
    # scalla fact 31
    tight, loose = rates(plant, bound_s, maximum), rates(plant, looser_s, maximum)
    for carried in (tight, loose):  # a rate is found to within 0.2 %
        assert all(a <= b * 1.003 for a, b in pairwise(carried))
    assert all(a <= b for a, b in zip(tight, loose, strict=True)) and tight[-1] > tight[1] > 0


@pytest.mark.parametrize(("plant", "bound_s", "looser_s", "maximum"), PLANTS, ids=["thesis", "ours"])
def test_a_quantile_bound_allows_less_than_the_same_bound_on_the_mean(
    plant: ThesisPlant | PlannedRuntime, bound_s: float, looser_s: float, maximum: int
) -> None:
    # scalla fact 31
    by_metric = [rates(replace(plant, quantile=quantile), looser_s, 3)[-1] for quantile in (None, 0.9, 0.99)]
    assert by_metric[0] >= by_metric[1] >= by_metric[2] > 0


@pytest.mark.parametrize(("plant", "bound_s", "looser_s", "maximum"), PLANTS, ids=["thesis", "ours"])
def test_the_plan_is_the_smallest_that_carries_the_rate(
    plant: PlannedSystem[object], bound_s: float, looser_s: float, maximum: int
) -> None:
    # scalla fact 31
    carried = rates(plant, looser_s, maximum)
    for asked in (0.1 * carried[-1], 0.4 * carried[-1], 0.8 * carried[-1], carried[-1]):
        found = provision(plant, asked, looser_s, maximum)
        assert isinstance(found, Provision)
        assert found.resources == 1 + next(at for at, rate in enumerate(carried) if rate >= asked)
        assert plant.latency_s(asked, found.setting, found.period_s) <= looser_s
        assert found.latency_s <= looser_s


def test_the_largest_rate_is_that_of_a_fine_grid() -> None:
    found = largest_rate(OURS, 4, 0.012)
    assert found is not None
    periods_s = np.geomspace(OURS.min_period_s, OURS.max_period_s, 60)
    feasible = [
        rate
        for setting in OURS.settings(4)
        for rate in np.linspace(5_000, 30_000, 60)
        if min(OURS.latency_s(rate, setting, period_s) for period_s in periods_s) <= 0.012
    ]
    assert found.rate_per_s == pytest.approx(max(feasible), abs=25_000 / 59)


def test_a_refusal_says_what_could_be_had() -> None:
    too_tight = provision(OURS, 8_000, 0.003, 4)
    assert isinstance(too_tight, Infeasible) and too_tight.largest_rate_per_s is None
    assert too_tight.smallest_bound_s is not None and "smallest bound" in too_tight.reason
    assert isinstance(provision(OURS, 8_000, too_tight.smallest_bound_s * 1.001, 4), Provision)
    too_fast = provision(OURS, 90_000, 0.020, 4)
    assert isinstance(too_fast, Infeasible) and too_fast.smallest_bound_s is None
    assert too_fast.largest_rate_per_s is not None and "no bound holds" in too_fast.reason
    assert isinstance(provision(OURS, too_fast.largest_rate_per_s, 0.020, 4), Provision)
    assert isinstance(provision(OURS, 1.0, 1.0, 1), Infeasible)  # two stages need two subtasks


def test_a_plan_for_windows_asks_for_more_than_one_for_tuples() -> None:
    windows = replace(THESIS, windows=WindowModel(100, 0.0005))
    assert rates(windows, 0.4, 2)[-1] < rates(THESIS, 0.4, 2)[-1]


def test_the_best_period_lies_between_too_many_rows_and_too_long_waits() -> None:
    period_s, latency_s = best_period(OURS, 15_000, (1, 2))
    for other_s in (period_s / 1.5, period_s * 1.5):
        assert OURS.latency_s(15_000, (1, 2), other_s) > latency_s


@pytest.mark.parametrize("quantile", [None, 0.9, 0.99])
@pytest.mark.parametrize(("stages", "resources"), [(STAGES, 3), (STAGES, 6), ((*STAGES, TOP), 5)])
def test_our_plan_holds_at_its_largest_rate_and_not_clearly_above(
    stages: tuple[StagePhases, ...], resources: int, quantile: float | None
) -> None:
    # scalla fact 32
    bound_s = 0.030
    found = largest_rate(PlannedRuntime(stages, quantile), resources, bound_s)
    assert found is not None

    def measured_s(rate_per_s: float, seed: int) -> float:
        buffering = Buffering(found.period_s)
        run = simulated_runtime.run(rate_per_s, stages, found.setting, buffering, seconds=2, seed=seed)
        assert len(run.latency_s) == pytest.approx(1.8 * rate_per_s, rel=0.02)
        return float(run.latency_s.mean() if quantile is None else np.quantile(run.latency_s, quantile))

    assert all(measured_s(found.rate_per_s, seed) <= bound_s for seed in (1, 2, 3))
    assert measured_s(CLEARLY * found.rate_per_s, 1) > bound_s


@pytest.mark.parametrize(("quantile", "bound_s"), [(None, 0.15), (0.9, 0.25)])
def test_the_thesiss_plan_holds_at_its_largest_rate_and_not_clearly_above(
    quantile: float | None, bound_s: float
) -> None:
    # scalla fact 32
    found = largest_rate(replace(THESIS, quantile=quantile), 2, bound_s)
    assert found is not None

    def run(rate_per_s: float, seed: int) -> simulated_scalla.Run:
        periods = periods_of(found.period_s)
        return simulated_scalla.run(rate_per_s, JOB, NODE, found.setting, periods, seconds=20, seed=seed, queue_s=1.0)

    def measured_s(latency_s: simulated_scalla.Numbers) -> float:
        return float(latency_s.mean() if quantile is None else np.quantile(latency_s, quantile))

    for seed in (1, 2, 3):
        at_most = run(found.rate_per_s, seed)
        assert measured_s(at_most.latency_s) <= bound_s and at_most.overdue == 0
    assert measured_s(run(1.3 * found.rate_per_s, 1).latency_s) > bound_s
