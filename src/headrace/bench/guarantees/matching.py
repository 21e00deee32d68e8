"""What a machine adds that its workers do not measure of themselves, from what the quantiles leave unexplained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from scipy.optimize import brentq

from headrace.model.costs import Costs

_MAX_WAKE_S, _MAX_HELD_S = 0.1, 1.0
_HELD_SHARE = 0.05
"""Rows that are held up: rare enough to leave the median alone, frequent enough to decide the p99."""
_ROUNDS = 8


def matched(
    costs: Costs, predict_s: Callable[[Costs], tuple[float, float]], measured_s: tuple[float, float]
) -> Costs:  # fmt: skip
    """Costs whose predicted median and p99 are those measured, as nearly as possible.

    What workers measure of themselves leaves out what the machine adds: a source that wakes late, and now and then
    is held up. The first is taken to be what moves the median, the second what moves the tail.
    """
    for _ in range(_ROUNDS):
        costs = _solved(partial(_waking, costs), 0, _MAX_WAKE_S, predict_s, measured_s)
        costs = _solved(partial(_held, costs), 1, _MAX_HELD_S, predict_s, measured_s)
    return costs


def _waking(costs: Costs, mean_s: float) -> Costs:
    return replace(costs, wake=replace(costs.wake, row_s=mean_s, var_s2=mean_s**2))


def _held(costs: Costs, mean_s: float) -> Costs:
    return replace(costs, wake=replace(costs.wake, held_share=_HELD_SHARE, held_s=mean_s))


def _solved(
    make: Callable[[float], Costs], which: int, maximum: float, predict_s: Callable[[Costs], tuple[float, float]],
    measured_s: tuple[float, float],
) -> Costs:  # fmt: skip
    """The costs whose prediction is nearest, where one number may vary from zero to ``maximum``."""

    def excess_s(value: float) -> float:
        return predict_s(make(value))[which] - measured_s[which]

    minimum = 1e-6
    if excess_s(minimum) >= 0:
        return make(minimum)
    if excess_s(maximum) <= 0:
        return make(maximum)
    return make(float(brentq(excess_s, minimum, maximum, xtol=1e-6)))
