"""Costs from measurements: what the reports of a run show, and what its quantiles leave unexplained."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import numpy as np
from scipy.optimize import brentq

from headrace.measure.moments import Moments
from headrace.measure.report import Report, SubtaskReport
from headrace.model.costs import PER_RECORD, Costs, StepCost
from headrace.model.stages import Transfer

_ALIKE = 0.2
"""Batches whose sizes vary less than this share of their mean count as equal."""
_MOST_WAKE_S, _MOST_SD_S = 0.1, 0.3
_ROUNDS = 3


def fitted(reports: Iterable[Report], sources: Iterable[str], start: Costs | None = None) -> Costs:
    """Costs of the steps and channels in a run's reports; what they do not show stays as in ``start``.

    A report has, per step, the mean service of a batch and how many records it held. Over reports of unlike batches
    the line through both is the cost of a batch and that of a record.
    """
    start, reports = start or Costs(), tuple(reports)
    by_step: dict[str, list[SubtaskReport]] = {}
    for report in reports:
        for part in report.subtasks:
            by_step.setdefault(part.id.step, []).append(part)
    read = sum(part.items for source in sources for part in by_step.get(source, ()))
    steps = dict(start.steps)
    for step, parts in by_step.items():
        items = sum(part.items for part in parts)
        cost = _line(parts) or start.steps.get(step)
        if cost is not None:
            steps[step] = replace(cost, records_per_input=items / read if read else cost.records_per_input)
    transfers = [c.transfer_ms for r in reports for c in r.channels if c.transfer_ms is not None]
    transfer = _measured(transfers, start.transfer)
    return replace(start, steps=steps, transfer=transfer, origin="an earlier run")


def _measured(parts: list[Moments], otherwise: Transfer) -> Transfer:
    if not parts:
        return otherwise
    whole = parts[0]
    for part in parts[1:]:
        whole += part
    return Transfer(whole.mean / 1e3, 0.0, whole.variance / 1e6)


def _line(parts: list[SubtaskReport]) -> StepCost | None:
    """Service per batch and per record by weighted least squares; neither below zero."""
    seen = [(part.service_ms, part.items / part.service_ms.n) for part in parts if part.service_ms is not None]
    if not seen:
        return None
    weights = np.array([service.n for service, _ in seen], np.float64)
    sizes, means_s = np.array([size for _, size in seen]), np.array([service.mean / 1e3 for service, _ in seen])
    size, mean_s = np.average(sizes, weights=weights), np.average(means_s, weights=weights)
    spread = np.average((sizes - size) ** 2, weights=weights)
    slope_s = np.average((sizes - size) * (means_s - mean_s), weights=weights) / spread if spread else 0.0
    if spread < _ALIKE**2 * size**2:  # batches of one size show no slope: take the default's share per batch
        slope_s = (mean_s - min(PER_RECORD.batch_s, mean_s)) / size
    slope_s = float(np.clip(slope_s, 0.0, mean_s / size))
    var_s2 = float(np.average([service.variance / 1e6 for service, _ in seen], weights=weights))
    return StepCost(float(mean_s - slope_s * size), slope_s, var_s2)


def matched(
    costs: Costs, predict_s: Callable[[Costs], tuple[float, float]], measured_s: tuple[float, float]
) -> Costs:  # fmt: skip
    """Costs whose predicted median and p99 are those measured, as near as can be.

    What workers measure of themselves leaves out what the machine adds: a source that wakes late, a transfer that
    is held up now and then. The first is taken to be what moves the median, the second what moves the tail.
    """
    for _ in range(_ROUNDS):
        costs = _solved(partial(_with_wake, costs), 0, _MOST_WAKE_S, predict_s, measured_s)
        costs = _solved(partial(_with_sd, costs), 1, _MOST_SD_S, predict_s, measured_s)
    return costs


def _with_wake(costs: Costs, mean_s: float) -> Costs:
    return replace(costs, wake=Transfer(mean_s, 0.0, mean_s**2))


def _with_sd(costs: Costs, sd_s: float) -> Costs:
    return replace(costs, transfer=replace(costs.transfer, var_s2=sd_s**2))


def _solved(
    make: Callable[[float], Costs], which: int, most: float, predict_s: Callable[[Costs], tuple[float, float]],
    measured_s: tuple[float, float],
) -> Costs:  # fmt: skip
    """The costs, of those that differ in one number from zero to ``most``, whose prediction is nearest."""

    def excess_s(value: float) -> float:
        return predict_s(make(value))[which] - measured_s[which]

    least = 1e-6
    if excess_s(least) >= 0:
        return make(least)
    if excess_s(most) <= 0:
        return make(most)
    return make(float(brentq(excess_s, least, most, xtol=1e-6)))
