"""Quantiles from mean and variance, the slowest of several, and the latency of a window's result.

SCALLA sections 2.10 and 2.11.
"""

from __future__ import annotations

from math import e, pi, sqrt
from statistics import NormalDist

from headrace.model.queueing import Spread

_EULER = 0.5772156649015329
_NORMAL = NormalDist()


def normal_quantile_s(latency: Spread, share: float) -> float:
    """Q(x) = μ + σΦ⁻¹(x): for a latency that was observed to be near normal.

    >>> round(normal_quantile_s(Spread(1.0, 0.04), 0.99), 3)
    1.465
    """
    return latency.mean_s + sqrt(latency.var_s2) * _NORMAL.inv_cdf(share)


def cantelli_quantile_s(latency: Spread, share: float) -> float:
    """Q(x) = μ + σ√(x/(1−x)): no distribution with this mean and variance has a larger quantile."""
    return latency.mean_s + sqrt(latency.var_s2 * share / (1 - share))


def slowest_of(count: int, latency: Spread) -> Spread:
    """Mean and variance of the largest of ``count`` independent normal latencies (2.10).

    The thesis's extreme-value approximation; it is undefined for one, which is its own slowest.
    """
    if count < 2:
        return latency
    near, far = _NORMAL.inv_cdf(1 - 1 / count), _NORMAL.inv_cdf(1 - 1 / (e * count))
    shift = _EULER * far + (1 - _EULER) * near
    narrowing = pi / sqrt(6) * (far - near)
    return Spread(latency.mean_s + shift * sqrt(latency.var_s2), narrowing**2 * latency.var_s2)


def finalize_spread(windows: int, finalize_s: float) -> Spread:
    """F: a window's turn while ``windows`` of them are finalized one after the other (2.10).

    A window is equally likely to be any of them. The variance departs from the thesis, which prints
    (1 + 1/k)·T_f²/12 with T_f the total: the discrete uniform distribution has (1 − 1/k²)·T_f²/12.
    """
    total_s = windows * finalize_s
    return Spread((1 + 1 / windows) * total_s / 2, (1 - 1 / windows**2) * total_s**2 / 12)


def window_spread(item: Spread, *, mappers: int, windows: int, finalize_s: float) -> Spread:
    """From a window's end to its result: the slowest mapper's last item, then the window's turn (2.10)."""
    return slowest_of(mappers, item) + finalize_spread(windows, finalize_s)
