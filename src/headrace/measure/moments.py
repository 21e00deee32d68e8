"""Count, mean and spread of what was measured, mergeable without the values."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec


class Moments(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """``n`` values with their mean and the sum of squared distances from it.

    Addition is Chan, Golub and LeVeque's (1979) pairwise form of Welford's update, so a value at a
    time, a worker at a time and an interval at a time all give the same figures.

    >>> (Moments(1, 1.0, 0.0) + Moments(1, 3.0, 0.0)).variance
    1.0
    """

    n: int
    mean: float
    m2: float

    def __add__(self, other: Moments) -> Moments:
        n = self.n + other.n
        delta = other.mean - self.mean
        mean = self.mean + delta * other.n / n
        return Moments(n, mean, self.m2 + other.m2 + delta * delta * self.n * other.n / n)

    @property
    def variance(self) -> float:
        """Over the values themselves, not an estimate for a population they were drawn from."""
        return self.m2 / self.n

    @property
    def variation(self) -> float | None:
        """Coefficient of variation; None where the mean is zero."""
        return math.sqrt(self.variance) / self.mean if self.mean > 0 else None


def merge(parts: Iterable[Moments | None]) -> Moments | None:
    """All parts as one; None when nobody measured anything."""
    total: Moments | None = None
    for part in parts:
        if part is not None:
            total = part if total is None else total + part
    return total


def mean_of(values: Iterable[float | None]) -> float | None:
    """The unweighted mean of what is known (as in the thesis, all elements count equally, busy or not)."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
