"""Loads for the simulated plant: items per second as a function of the seconds since the start."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Load = Callable[[float], float]


def steady(rate_per_s: float) -> Load:
    return lambda at_s: rate_per_s


def stairs(rates_per_s: Sequence[float], step_s: float) -> Load:
    """One rate after the other, ``step_s`` each; the last one stays (the thesis's PrimeTest).

    >>> [stairs([10, 20], 60)(s) for s in (0, 59, 60, 500)]
    [10, 10, 20, 20]
    """
    return lambda at_s: rates_per_s[min(int(at_s // step_s), len(rates_per_s) - 1)]


def bursts(rate_per_s: float, factor: float, every_s: float, for_s: float) -> Load:
    """A base rate, multiplied for a while at the end of every period."""
    return lambda at_s: rate_per_s * (factor if at_s % every_s >= every_s - for_s else 1.0)


def waves(rate_per_s: float, swing: float, period_s: float) -> Load:
    """Slow drift up and down, as over a day."""
    return lambda at_s: rate_per_s * (1 + swing * math.sin(2 * math.pi * at_s / period_s))
