"""Distributions of parts and of whole paths, epoch gaps included, against sampling."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from thesis.scalla_quantiles import normal_quantile_s

from headrace.errors import UnstableError
from headrace.model.laws import Gamma, Gathered, Law, Uniform, WaitLaw, total_of
from headrace.model.phases import EpochGap, Phase, PhasedPath

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


@given(st.floats(0.01, 0.9), st.floats(0.05, 2.0))
def test_a_backlog_that_flows_makes_more_items_late_but_none_later(busy: float, gap_s: float) -> None:
    """A fluid queue that stands still for the gap, in exact arithmetic."""
    epoch_s = 60.0
    due_s = np.linspace(0, epoch_s, 60_001)
    waits_s = np.where(due_s < gap_s, gap_s - due_s + busy * due_s, np.maximum(0.0, gap_s - due_s + busy * due_s))
    (wait,) = EpochGap(gap_s, epoch_s, busy).waits()
    assert wait.share == pytest.approx((waits_s > 0).mean(), abs=2e-4)
    hit = waits_s[waits_s > 0]
    assert (wait.min_s, wait.max_s) == (0.0, gap_s)
    assert hit.mean() == pytest.approx((wait.min_s + wait.max_s) / 2, abs=2e-3)


def test_the_tail_of_a_gap_is_a_mixture_not_a_normal_law() -> None:
    body = (Phase("body", (Gamma(0.010, 4e-6),)),)
    rare, frequent = PhasedPath(body, EpochGap(0.4, 80.0)), PhasedPath(body, EpochGap(0.4, 20.0))
    assert rare.quantile_s(0.99) < 0.020 < 0.045 < normal_quantile_s(rare.spread, 0.99)
    assert frequent.quantile_s(0.99) == pytest.approx(0.010 + 0.2, rel=0.01)
    assert normal_quantile_s(frequent.spread, 0.99) < 0.1
    assert frequent.spread.mean_s == pytest.approx(0.010 + 0.02 * 0.2)


@given(st.floats(0, 0.95), st.floats(0, 3))
def test_lumps_hold_as_many_items_as_a_flow(busy: float, whole: float) -> None:
    lumps = EpochGap(0.1, 60.0, busy, whole).waits()
    (flow,) = EpochGap(0.1, 60.0, busy).waits()
    assert sum(lump.share for lump in lumps) == pytest.approx(flow.share)
    assert lumps[0].max_s == pytest.approx(0.1 * (1 + whole))


@pytest.mark.parametrize("busy", [0.5, 1.0, 1.2])
def test_a_backlog_that_outlives_its_epoch_is_refused(busy: float) -> None:
    with pytest.raises(UnstableError, match="lengthen the epoch"):
        PhasedPath((), EpochGap(1.0, 2.0, busy)).quantile_s(0.5)
