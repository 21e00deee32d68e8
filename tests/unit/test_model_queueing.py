"""Waits in a queue: bounds, fitted form and estimate, against simulation and exact results."""

from __future__ import annotations

from itertools import pairwise
from math import inf, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from thesis.waits import QueueMoments, fitted_error, fitted_wait_s, kingman_wait_s, lindley_waits_s, wait_bounds

from headrace.errors import UnstableError
from headrace.model.queueing import Seconds, Spread, daley_wait_s, expected_wait_s, merged_cv2

CUSTOMERS = 200_000


def times(rng: np.random.Generator, mean_s: float, cv2: float, n: int) -> Seconds:
    return rng.gamma(1 / cv2, mean_s * cv2, n) if cv2 else np.full(n, mean_s)


def served(mean_s: float, cv2: float) -> Spread:
    return Spread(mean_s, cv2 * mean_s**2)


def sampling_error(values: Seconds) -> float:
    """Three standard errors of a mean of dependent values, from the means of 20 stretches."""
    return float(3 * np.std([np.mean(part) for part in np.array_split(values, 20)]) / sqrt(20))


@pytest.mark.parametrize("busy", [0.1, 0.5, 0.8, 0.9])
@pytest.mark.parametrize("service_cv2", [0.0, 0.25, 1.0, 3.0])
@pytest.mark.parametrize("arrivals_cv2", [0.0, 0.25, 1.0, 3.0])
def test_bounds_are_never_below_a_simulated_queue(arrivals_cv2: float, service_cv2: float, busy: float) -> None:
    # scalla fact 28
    rng = np.random.default_rng(7)
    waits = lindley_waits_s(times(rng, 1.0, arrivals_cv2, CUSTOMERS), times(rng, busy, service_cv2, CUSTOMERS))
    bounds = wait_bounds(QueueMoments.gamma(1.0, arrivals_cv2), QueueMoments.gamma(busy, service_cv2))
    assert bounds.mean_s >= np.mean(waits) - sampling_error(waits)
    assert bounds.second_s2 >= np.mean(waits**2) - sampling_error(waits**2)
    daley_s = daley_wait_s(arrivals_cv2, served(busy, service_cv2), busy)
    assert np.mean(waits) - sampling_error(waits) <= daley_s <= bounds.mean_s + 1e-12


@pytest.mark.parametrize("service_s", [1.0, 1.5])
def test_a_queue_that_cannot_keep_up_is_refused(service_s: float) -> None:
    # scalla fact 28
    with pytest.raises(UnstableError, match="add subtasks"):
        wait_bounds(QueueMoments.fixed(1.0), QueueMoments.gamma(service_s, 1.0))


@pytest.mark.parametrize(("busy", "factor"), [(0.9, 1.1), (0.5, 2.5)])
def test_the_bound_is_as_far_off_as_the_thesis_says(busy: float, factor: float) -> None:
    exact_s = busy * busy / (1 - busy)
    assert wait_bounds(QueueMoments.gamma(1.0, 1.0), QueueMoments.gamma(busy, 1.0)).mean_s / exact_s == pytest.approx(
        factor, rel=0.05
    )


def test_the_second_moment_is_a_square_of_a_time() -> None:
    """With E(T_s²) in place of E(T_s³), as printed, milliseconds would give another wait than seconds."""
    in_s = wait_bounds(QueueMoments.gamma(1.0, 0.5), QueueMoments.gamma(0.7, 2.0))
    in_ms = wait_bounds(QueueMoments.gamma(1000.0, 0.5), QueueMoments.gamma(700.0, 2.0))
    assert in_ms.second_s2 == pytest.approx(in_s.second_s2 * 1e6)


def test_kingman_in_an_example() -> None:
    # latency-guarantees fact 20
    assert kingman_wait_s(QueueMoments.gamma(0.0125, 1.0), QueueMoments.gamma(0.010, 1.0)) == pytest.approx(0.040)


def test_the_fit_is_exact_where_it_was_measured() -> None:
    # latency-guarantees fact 21
    arrivals, service = QueueMoments.gamma(0.002, 0.3), QueueMoments.gamma(0.0015, 2.0)
    error = fitted_error(0.0123, arrivals, service)
    assert error is not None
    wait_s = fitted_wait_s(6, measured_subtasks=6, arrivals=arrivals, service=service, error=error)
    assert wait_s == pytest.approx(0.0123)


def test_no_fit_where_the_model_says_nothing() -> None:
    assert fitted_error(0.01, QueueMoments.fixed(1.0), QueueMoments.fixed(0.5)) is None
    assert fitted_error(0.01, QueueMoments.gamma(1.0, 1.0), QueueMoments.gamma(1.0, 1.0)) is None


def test_wait_by_number_of_subtasks() -> None:
    # latency-guarantees fact 22
    arrivals, service = QueueMoments.gamma(0.010, 1.0), QueueMoments.gamma(0.008, 0.5)
    waits = [fitted_wait_s(p, measured_subtasks=5, arrivals=arrivals, service=service) for p in range(1, 12)]
    assert waits[:4] == [inf] * 4 and all(a > b for a, b in pairwise(waits[4:]))
    rate_per_s = 5 / 0.010
    a, b = rate_per_s * 0.008**2 * 1.5 / 2, rate_per_s * 0.008
    assert waits[4:] == pytest.approx([a / (p - b) for p in range(5, 12)])


def test_the_estimate_is_right_for_regular_arrivals() -> None:
    """Erlang with four phases at half load: 0.13 simulated, where the product form says 0.25."""
    rng = np.random.default_rng(1)
    waits = lindley_waits_s(times(rng, 2.0, 0.25, CUSTOMERS), times(rng, 1.0, 0.25, CUSTOMERS))
    assert kingman_wait_s(QueueMoments.gamma(2.0, 0.25), QueueMoments.gamma(1.0, 0.25)) == pytest.approx(0.25)
    assert expected_wait_s(0.25, served(1.0, 0.25), 0.5) == pytest.approx(np.mean(waits), abs=0.02)
    assert np.mean(waits) == pytest.approx(0.13, abs=0.01)


def test_limits_of_the_estimate() -> None:
    assert expected_wait_s(0.0, served(1.0, 0.0), 0.9) == 0.0
    assert expected_wait_s(1.0, served(1.0, 0.0), 1.0) == daley_wait_s(1.0, served(1.0, 0.0), 1.0) == inf


def test_merging_senders() -> None:
    assert merged_cv2(0.1, 1, 0.5) == pytest.approx(0.1)
    assert merged_cv2(0.0, 1000, 0.1) == pytest.approx(1.0, abs=0.01)
    assert merged_cv2(0.0, 1000, 1.0) == pytest.approx(0.0)


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), min_size=1, max_size=50))
def test_simulated_waits_follow_lindley(steps: list[tuple[float, float]]) -> None:
    gaps, services = np.array(steps).T
    wait, expected = 0.0, [0.0]
    for gap, service in steps:
        wait = max(0.0, wait + service - gap)
        expected.append(wait)
    assert lindley_waits_s(gaps, services) == pytest.approx(expected, abs=1e-9)


@given(st.floats(0.001, 10), st.floats(0, 4), st.floats(0.001, 10))
def test_moments_keep_their_shape(mean_s: float, cv2: float, other_s: float) -> None:
    scaled = QueueMoments.gamma(mean_s, cv2).scaled_to(other_s)
    wanted = QueueMoments.gamma(other_s, cv2)
    assert (scaled.second_s2, scaled.third_s3) == pytest.approx((wanted.second_s2, wanted.third_s3))
    assert scaled.cv2 == pytest.approx(cv2, abs=1e-9)
