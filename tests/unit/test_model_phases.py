"""Distributions of parts and of whole paths, against sampling."""

from __future__ import annotations

import numpy as np
import pytest
from thesis.scalla_quantiles import normal_quantile_s

from headrace.model.laws import Gamma, Gathered, Law, Uniform, WaitLaw, total_of
from headrace.model.phases import Phase, PhasedPath

LAWS: list[Law] = [
    Uniform(0.0, 0.02), Uniform(0.5, 0.6), Uniform.matching(0.01, 1e-5), Gathered(0.02, 0.3), Gathered(0.02, 1.0),
    WaitLaw(0.004, 0.5), WaitLaw(0.0, 0.5), Gamma(0.003, 1e-6), Gamma(0.003),
]  # fmt: skip


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_mean_and_variance_are_those_of_the_distribution(law: Law) -> None:
    times_s = np.linspace(0, 1, 200_001)
    above = 1 - law.below(times_s)
    mean = np.trapezoid(above, times_s)
    assert law.mean_s == pytest.approx(mean, abs=1e-5)
    assert law.var_s2 == pytest.approx(2 * np.trapezoid(times_s * above, times_s) - mean**2, abs=1e-5)


def test_a_sum_is_distributed_as_sampled() -> None:
    rng = np.random.default_rng(1)
    n = 400_000
    opener = rng.random(n) < 0.2
    sampled = (
        rng.uniform(0, 0.01, n)
        + np.where(opener, 0.02, rng.uniform(0, 0.02, n))
        + np.where(rng.random(n) < 0.6, rng.exponential(0.005 / 0.6, n), 0.0)
        + rng.gamma(4, 0.001, n)
    )
    laws = [Uniform(0.0, 0.01), Gathered(0.02, 0.2), WaitLaw(0.005, 0.6), Gamma(0.004, 4e-6)]
    path = PhasedPath(tuple(Phase(str(law), (law,)) for law in laws))
    for share in (0.1, 0.5, 0.9, 0.99, 0.999):
        assert path.quantile_s(share) == pytest.approx(np.quantile(sampled, share), rel=0.01)
    assert path.spread.mean_s == pytest.approx(sampled.mean(), rel=0.005)
    assert path.spread.var_s2 == pytest.approx(sampled.var(), rel=0.01)
    in_time = (sampled <= 0.05).mean()
    assert path.quantile_s(in_time - 5e-4) <= 0.05 <= path.quantile_s(in_time + 5e-4)


def test_a_sum_of_nothing_and_of_fixed_times() -> None:
    assert PhasedPath((Phase("fixed", (Gamma(0.010), Gamma(0.005))),)).quantile_s(0.99) == pytest.approx(
        0.015, rel=0.002
    )
    assert PhasedPath(()).quantile_s(0.5) == pytest.approx(0.0, abs=1e-9)
    assert total_of([]).above(1.0) == pytest.approx(0.0)


def test_the_tail_of_a_wait_that_few_items_meet_is_not_that_of_a_normal_law() -> None:
    """A row in two hundred is held up: p99 does not reach it, though the variance does."""
    body = Phase("body", (Gamma(0.010, 4e-6),))
    rare = PhasedPath((body, Phase("held", (WaitLaw(0.005 * 0.2, 0.005),))))
    often = PhasedPath((body, Phase("held", (WaitLaw(0.05 * 0.2, 0.05),))))
    assert rare.quantile_s(0.99) < 0.020 < 0.045 < normal_quantile_s(rare.spread, 0.99)
    assert often.quantile_s(0.99) > 0.2 > normal_quantile_s(often.spread, 0.99)
