"""When each record of a paced source is due: an open-loop clock, given by a rate that may vary.

Records are numbered over all partitions; record ``n`` is due when the rate's integral reaches ``n``.
Nothing here reads a clock: times are microseconds since the source's start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace.errors import ConfigError
from headrace.units import Duration, duration_s, rate_per_s

Rate = str | float | Sequence[tuple[Duration, str | float]] | Callable[[float], str | float]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_CURVE_STEP_S = 0.1
_CURVE_STEPS = 64
# Hides float noise that would turn 300000 into 299999.
_NOISE_US = 1e-3
# How far ahead a rate function is asked when it stays at zero.
_CURVE_HORIZON_S = 60.0


class Pace(Protocol):
    """A schedule of numbered records."""

    def due_us(self, numbers: Ints) -> Ints:
        """When records are due, in whole microseconds after the start."""
        ...

    def count_due(self, elapsed_us: int) -> int:
        """How many records are due up to and including ``elapsed_us``."""
        ...


def as_pace(rate: Rate) -> Pace:
    """The schedule for ``"5000/s"``, for steps ``[("5 s", "100/s"), ("1 s", "2000/s")]`` that repeat
    forever, or for a function of the seconds since the start.

    >>> as_pace([("1 s", "2/s"), ("1 s", "4/s")]).due_us(np.arange(7)).tolist()
    [0, 500000, 1000000, 1250000, 1500000, 1750000, 2000000]
    """
    if callable(rate):
        return Curve(rate)
    if isinstance(rate, (str, int, float)):
        return RateCycle([(1.0, rate_per_s(rate))])
    steps = [(duration_s(seconds, "step"), _rate_or_pause(step)) for seconds, step in rate]
    if not steps or min(seconds for seconds, _ in steps) <= 0 or max(step for _, step in steps) <= 0:
        raise ConfigError(
            f"rate {rate!r} needs steps like ('5 s', '2000/s') that last longer than zero, at least one with a rate"
        )
    return RateCycle(steps)


def _rate_or_pause(rate: str | float) -> float:
    if isinstance(rate, str):
        return 0.0 if rate.partition("/")[0].strip() in ("0", "0.0") else rate_per_s(rate)
    return 0.0 if rate == 0 else rate_per_s(rate)


class _Knots:
    """A piecewise linear count of records over time."""

    def __init__(self, seconds: Floats, rates: Floats, start_s: float = 0.0, start_items: float = 0.0) -> None:
        self.rates = rates
        self.at_s = start_s + np.concatenate(([0.0], np.cumsum(seconds)))
        self.items = start_items + np.concatenate(([0.0], np.cumsum(seconds * rates)))

    def time_of(self, items: Floats) -> Floats:
        """When the count first reaches ``items`` (or the last knot)."""
        piece = np.clip(np.searchsorted(self.items, items, side="left") - 1, 0, len(self.rates) - 1)
        rates = self.rates[piece]
        past = np.divide(items - self.items[piece], rates, out=np.zeros_like(items), where=rates > 0)
        reached: Floats = np.minimum(self.at_s[piece] + past, self.at_s[-1])
        return reached

    def items_at(self, seconds: float) -> float:
        return float(np.interp(seconds, self.at_s, self.items))


class RateCycle:
    """Steps of constant rate, repeated forever; a single one is a steady rate."""

    def __init__(self, steps: Sequence[tuple[float, float]]) -> None:
        self._knots = _Knots(np.array([s for s, _ in steps]), np.array([r for _, r in steps]))
        self._seconds, self._items = float(self._knots.at_s[-1]), float(self._knots.items[-1])

    def due_us(self, numbers: Ints) -> Ints:
        cycles, items = np.divmod(numbers.astype(np.float64), self._items)
        return _whole_us(cycles * self._seconds + self._knots.time_of(items))

    def count_due(self, elapsed_us: int) -> int:
        cycles, seconds = divmod(_end_s(elapsed_us), self._seconds)
        return math.ceil(cycles * self._items + self._knots.items_at(seconds))


class Curve:
    """A rate that is a function of the seconds since the start, taken as constant over 0.1 s.

    The function must be pure: after a restart it is asked again from the start.
    """

    def __init__(self, rate: Callable[[float], str | float]) -> None:
        self._rate = rate
        self._knots = self._ahead(0.0, 0.0)

    def _ahead(self, start_s: float, start_items: float) -> _Knots:
        asked = start_s + np.arange(_CURVE_STEPS) * _CURVE_STEP_S
        rates = np.array([_rate_or_pause(self._rate(float(second))) for second in asked])
        return _Knots(np.full(_CURVE_STEPS, _CURVE_STEP_S), rates, start_s, start_items)

    def _extend(self) -> None:
        known, more = self._knots, self._ahead(float(self._knots.at_s[-1]), float(self._knots.items[-1]))
        known.rates = np.concatenate((known.rates, more.rates))
        known.at_s = np.concatenate((known.at_s, more.at_s[1:]))
        known.items = np.concatenate((known.items, more.items[1:]))

    def due_us(self, numbers: Ints) -> Ints:
        limit_s = self._knots.at_s[-1] + _CURVE_HORIZON_S
        while numbers[-1] > self._knots.items[-1] and self._knots.at_s[-1] < limit_s:
            self._extend()
        return _whole_us(self._knots.time_of(numbers.astype(np.float64)))

    def count_due(self, elapsed_us: int) -> int:
        while _end_s(elapsed_us) > self._knots.at_s[-1]:
            self._extend()
        return math.ceil(self._knots.items_at(_end_s(elapsed_us)))


def _whole_us(seconds: Floats) -> Ints:
    return np.floor(seconds * 1e6 + _NOISE_US).astype(np.int64)


def _end_s(elapsed_us: int) -> float:
    # Due times are cut to whole microseconds, so all of this microsecond counts as reached.
    return max(0.0, elapsed_us + 1 - _NOISE_US) / 1e6
