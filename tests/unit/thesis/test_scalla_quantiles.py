"""Quantiles, the slowest of several, and windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.queueing import Spread
from thesis.scalla_quantiles import (
    cantelli_quantile_s,
    finalize_spread,
    normal_quantile_s,
    slowest_of,
    window_spread,
)


@pytest.mark.parametrize(("share", "sigmas"), [(0.9, 3.0), (0.99, 9.95)])
def test_cantelli_in_sigmas(share: float, sigmas: float) -> None:
    assert cantelli_quantile_s(Spread(5.0, 4.0), share) == pytest.approx(5.0 + 2.0 * sigmas, rel=1e-3)


@given(st.lists(st.floats(0, 1000), min_size=2, max_size=40), st.sampled_from([0.5, 0.9, 0.99]))
def test_no_distribution_exceeds_cantelli(values: list[float], share: float) -> None:
    # scalla fact 30, for any distribution at all
    spread = Spread(float(np.mean(values)), float(np.var(values)))
    quantile = float(np.quantile(values, share, method="inverted_cdf"))
    assert cantelli_quantile_s(spread, share) >= quantile - 1e-6


def test_normal_quantile() -> None:
    values = np.random.default_rng(1).normal(3.0, 0.5, 200_000)
    assert normal_quantile_s(Spread(3.0, 0.25), 0.99) == pytest.approx(np.quantile(values, 0.99), rel=0.005)


def test_the_slowest_of_twenty() -> None:
    """The thesis's figures: a = 1.90 where simulation has 1.87, a' = 0.57 where it has 0.52."""
    slowest = slowest_of(20, Spread(0.0, 1.0))
    assert slowest.mean_s == pytest.approx(1.90, abs=0.005)
    assert slowest.var_s2**0.5 == pytest.approx(0.57, abs=0.005)
    simulated = np.random.default_rng(1).normal(size=(100_000, 20)).max(axis=1)
    assert simulated.mean() == pytest.approx(1.87, abs=0.01) and simulated.std() == pytest.approx(0.52, abs=0.01)


def test_one_is_its_own_slowest() -> None:
    assert slowest_of(1, Spread(2.0, 3.0)) == Spread(2.0, 3.0)


@pytest.mark.parametrize("windows", [1, 2, 7, 100])
def test_a_windows_turn(windows: int) -> None:
    turns_s = 0.002 * np.arange(1, windows + 1)
    turn = finalize_spread(windows, 0.002)
    assert (turn.mean_s, turn.var_s2) == pytest.approx((turns_s.mean(), turns_s.var()), abs=1e-12)


def test_window_latency_against_simulation() -> None:
    rng = np.random.default_rng(2)
    items = rng.normal(0.100, 0.020, size=(50_000, 8)).max(axis=1)
    simulated = items + 0.001 * rng.integers(1, 51, size=50_000)
    window = window_spread(Spread(0.100, 0.020**2), mappers=8, windows=50, finalize_s=0.001)
    assert window.mean_s == pytest.approx(simulated.mean(), rel=0.02)
    assert window.var_s2**0.5 == pytest.approx(simulated.std(), rel=0.1)
