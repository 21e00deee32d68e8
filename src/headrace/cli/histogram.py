"""Latencies counted in logarithmic buckets: quantiles of a run of any length in little memory."""

from __future__ import annotations

import math
from collections.abc import Iterable

_ACCURACY = 0.01
_LOG_RATIO = math.log((1 + _ACCURACY) / (1 - _ACCURACY))
_LEAST_MS = 1e-3


class Histogram:
    """Values in milliseconds, each within 1 % (DDSketch: Masson, Rim, Lee, VLDB 2019)."""

    def __init__(self) -> None:
        self._counts: dict[int, float] = {}
        self.weight = 0.0
        self.total_ms = 0.0
        self.max_ms: float | None = None

    def add(self, values_ms: Iterable[float], weight: float = 1.0) -> None:
        """Count values, each standing for ``weight`` of them."""
        for value in values_ms:
            bucket = math.ceil(math.log(max(value, _LEAST_MS)) / _LOG_RATIO)
            self._counts[bucket] = self._counts.get(bucket, 0.0) + weight
            self.weight += weight
            self.total_ms += value * weight
            self.max_ms = value if self.max_ms is None else max(self.max_ms, value)

    def merge(self, other: Histogram) -> None:
        """Count everything that another histogram has counted."""
        for bucket, weight in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0.0) + weight
        self.weight += other.weight
        self.total_ms += other.total_ms
        if other.max_ms is not None:
            self.max_ms = other.max_ms if self.max_ms is None else max(self.max_ms, other.max_ms)

    @property
    def mean_ms(self) -> float | None:
        return self.total_ms / self.weight if self.weight else None

    def quantile_ms(self, q: float) -> float | None:
        """The ``q``-quantile, or None if nothing was counted.

        >>> latencies = Histogram()
        >>> latencies.add(range(1, 101))
        >>> 98 <= latencies.quantile_ms(0.99) <= 100
        True
        """
        if not self._counts or self.max_ms is None:
            return None
        left = q * self.weight
        for bucket in sorted(self._counts):
            left -= self._counts[bucket]
            if left <= 0:
                middle = 2 * math.exp(bucket * _LOG_RATIO) / (1 + math.exp(_LOG_RATIO))
                return min(middle, self.max_ms)
        return self.max_ms
