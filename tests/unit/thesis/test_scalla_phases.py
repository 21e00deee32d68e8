"""The thesis's twelve phases against a simulation of its system."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from headrace.errors import UnstableError
from headrace.model.phases import PhasedPath
from thesis import simulated_scalla as simulated
from thesis.scalla_phases import JobStatistics, Periods, ThesisHardware, ThesisLayout, path_of
from thesis.scalla_quantiles import cantelli_quantile_s, normal_quantile_s

NODE = ThesisHardware(4, 4e9, 1e8, (0.0, 1e8), (2e8, 1e8))
JOB = JobStatistics(1.0, 100, 100, 400e3, 400e3, batch_cycles=2e5)
CORE_RATE_PER_S = 1e9 / 400e3
SECONDS = 12.0

SETTINGS = [
    (ThesisLayout(*layout), Periods(*periods), busy)
    for layout in ((1, 2, 2), (2, 2, 2), (4, 2, 2), (2, 1, 3))
    for periods in ((0.01, 0.2, 0.2), (0.01, 0.1, 0.2), (0.01, 0.2, 0.05), (0.005, 0.05, 0.05))
    for busy in (0.2, 0.5, 0.75)
]
"""The thesis's defaults and shorter periods, light to heavy load; 48 in all."""


def rate_of(layout: ThesisLayout, busy: float) -> float:
    return busy * layout.nodes * min(layout.mappers, layout.reducers) * CORE_RATE_PER_S


@cache
def run_of(at: int) -> simulated.Run:
    layout, periods, busy = SETTINGS[at]
    return simulated.run(rate_of(layout, busy), JOB, NODE, layout, periods, seconds=SECONDS, seed=at)


@cache
def predicted(at: int, *, bounded: bool = True) -> PhasedPath:
    """From the statistics of another, shorter run."""
    layout, periods, busy = SETTINGS[at]
    rate_per_s = rate_of(layout, busy)
    measured = simulated.run(rate_per_s, JOB, NODE, layout, periods, seconds=SECONDS / 3, seed=1000 + at)
    return path_of(rate_per_s, measured.statistics, NODE, layout, periods, bounded=bounded)


def test_phases_of_a_traced_tuple_sum_to_its_latency() -> None:
    # scalla fact 27
    run = run_of(4)
    assert run.phases_s.shape[1] == 12 and (run.phases_s >= -1e-9).all()
    assert run.phases_s.sum(axis=1) == pytest.approx(run.latency_s)


def test_predicted_mean_and_quantiles_are_near_the_simulated() -> None:
    # scalla fact 29
    mean_errors, errors = [], []
    for at in range(len(SETTINGS)):
        run, path = run_of(at), predicted(at, bounded=False)
        mean_errors.append(path.spread.mean_s / run.latency_s.mean() - 1)
        errors += [normal_quantile_s(path.spread, 0.9) / np.quantile(run.latency_s, 0.9) - 1]
        errors += [path.quantile_s(0.99) / np.quantile(run.latency_s, 0.99) - 1]
    assert np.mean(np.abs(mean_errors) < 0.15) >= 0.9
    assert np.mean(np.abs(errors) < 0.20) >= 0.85


def test_each_phase_is_predicted_not_only_their_sum() -> None:
    at = SETTINGS.index((ThesisLayout(2, 2, 2), Periods(0.01, 0.2, 0.2), 0.5))
    for phase, measured_s in zip(predicted(at).phases, run_of(at).phases_s.mean(axis=0), strict=True):
        assert phase.spread.mean_s == pytest.approx(measured_s, rel=0.1, abs=0.001), phase.name


@pytest.mark.parametrize("share", [0.9, 0.99])
def test_cantelli_is_never_below_the_simulated_quantile(share: float) -> None:
    # scalla fact 30
    for at in range(len(SETTINGS)):
        assert cantelli_quantile_s(predicted(at).spread, share) >= np.quantile(run_of(at).latency_s, share)


@pytest.mark.parametrize("busy", [1.0, 1.5])
def test_a_rate_that_a_task_cannot_carry_is_refused(busy: float) -> None:
    layout = ThesisLayout(2, 2, 2)
    with pytest.raises(UnstableError):
        path_of(rate_of(layout, busy), JOB, NODE, layout, Periods(0.01, 0.2, 0.2))
