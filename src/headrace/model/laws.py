"""The distributions that parts of a latency follow, and that of their sum.

Both theses add means and variances and then read a quantile off the normal law. With two or three
uniform waits, that is off by more than a bound allows, so we add distributions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Protocol

import numpy as np
from scipy.special import gammainc

from headrace.model.queueing import Seconds

_BINS = 2048
_SPREADS = 10.0
"""Standard deviations above the mean that the grid reaches: an exponential tail ends at 2e-5 there."""
_NOTHING_S = 1e-12


class Law(Protocol):
    """A distribution of a time of zero or more."""

    @property
    def mean_s(self) -> float: ...

    @property
    def var_s2(self) -> float: ...

    def below(self, times_s: Seconds) -> Seconds:
        """P(T ≤ t) for each time."""
        ...


@dataclass(frozen=True, slots=True)
class Uniform:
    """Anywhere between two times with equal chance: a wait for the next tick of a clock."""

    min_s: float
    max_s: float

    @property
    def mean_s(self) -> float:
        return (self.min_s + self.max_s) / 2

    @property
    def var_s2(self) -> float:
        return (self.max_s - self.min_s) ** 2 / 12

    @staticmethod
    def matching(mean_s: float, var_s2: float) -> Uniform:
        """The one with this mean and variance; it may begin a little below zero."""
        half_s = sqrt(3 * max(var_s2, 0.0))
        return Uniform(mean_s - half_s, mean_s + half_s)

    def below(self, times_s: Seconds) -> Seconds:
        width_s = max(self.max_s - self.min_s, _NOTHING_S)
        return np.clip((times_s - self.min_s) / width_s, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Gathered:
    """The wait in a buffer that its first arrival opens and that is flushed ``lifetime_s`` later.

    The item that opens it waits for all of that, and such items are ``opener_share`` of the arrivals; the others
    come at any moment, with equal chance. The theses' uniform wait is the limit of many arrivals per buffer.
    """

    lifetime_s: float
    opener_share: float

    @property
    def mean_s(self) -> float:
        return self.lifetime_s * (1 + self.opener_share) / 2

    @property
    def var_s2(self) -> float:
        return self.lifetime_s**2 * (1 + 2 * self.opener_share) / 3 - self.mean_s**2

    def below(self, times_s: Seconds) -> Seconds:
        joined = np.clip(times_s / max(self.lifetime_s, _NOTHING_S), 0.0, 1.0) * (1 - self.opener_share)
        return np.where(times_s >= self.lifetime_s, 1.0, joined)


@dataclass(frozen=True, slots=True)
class WaitLaw:
    """A queue's wait: none when the server is idle, else exponential (exact for M/M/1)."""

    mean_s: float
    busy_share: float

    @property
    def var_s2(self) -> float:
        return self.mean_s**2 * (2 / self.busy_share - 1) if self.mean_s else 0.0

    def below(self, times_s: Seconds) -> Seconds:
        if self.mean_s < _NOTHING_S:
            return np.where(times_s >= 0, 1.0, 0.0)
        wait = 1 - self.busy_share * np.exp(-np.maximum(times_s, 0.0) * self.busy_share / self.mean_s)
        return np.where(times_s >= 0, wait, 0.0)


@dataclass(frozen=True, slots=True)
class Gamma:
    """A measured time of which mean and variance are known; fixed if it does not vary."""

    mean_s: float
    var_s2: float = 0.0

    def below(self, times_s: Seconds) -> Seconds:
        if self.var_s2 <= 1e-12 * self.mean_s**2:
            return np.where(times_s >= self.mean_s, 1.0, 0.0)
        scale_s = self.var_s2 / self.mean_s
        return np.asarray(gammainc(self.mean_s / scale_s, np.maximum(times_s, 0.0) / scale_s), np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Total:
    """The distribution of a sum: ``mass[i]`` lies within half a step of ``times_s[i]``, ``reached`` is P(T ≤ t) there."""

    step_s: float
    times_s: Seconds
    mass: Seconds
    reached: Seconds

    def above(self, time_s: float) -> float:
        """P(T > t)."""
        return 1 - float(np.interp(time_s - self.step_s / 2, self.times_s, self.reached, left=0.0))


def total_of(laws: Sequence[Law]) -> Total:
    """The distribution of the sum of independent times, by convolution on a grid."""
    mean_s, var_s2 = sum(law.mean_s for law in laws), sum(law.var_s2 for law in laws)
    step_s = max(mean_s + _SPREADS * sqrt(var_s2), 1e-9) * 1.01 / _BINS
    edges_s = np.arange(-0.5, _BINS) * step_s
    product = np.ones(_BINS // 2 + 1, np.complex128)
    for law in laws:
        reached = law.below(edges_s)
        reached[0], reached[-1] = 0.0, 1.0
        product *= np.fft.rfft(np.diff(reached))
    mass = np.maximum(np.fft.irfft(product, _BINS), 0.0)
    mass /= mass.sum()
    return Total(step_s, np.arange(0.0, _BINS) * step_s, mass, np.cumsum(mass))
