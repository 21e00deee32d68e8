"""Costs from measurements: what the reports of a run show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from statistics import median

import numpy as np

from headrace.measure.moments import Moments
from headrace.measure.report import Report, SubtaskReport
from headrace.model.costs import PER_RECORD, Costs, StepCost
from headrace.model.stagephases import Transfer

_ALIKE = 0.2
"""Batches whose sizes vary less than this share of their mean count as equal."""


def fitted_costs(reports: Iterable[Report], sources: Iterable[str], start: Costs | None = None) -> Costs:
    """Costs of the steps and channels in a run's reports; what they do not show stays as in ``start``.

    A report has, per step, the mean service of a batch and how many records it held. Over reports of batches of
    different sizes, the line through both gives the cost of a batch and that of a record.
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
    transfer = _usual(transfers) if transfers else start.transfer
    return replace(start, steps=steps, transfer=transfer, origin="an earlier run")


def _usual(parts: list[Moments]) -> Transfer:
    """Medians over reports: in a mean, one report of a start or a stall would outweigh all others."""
    mean_ms, var_ms2 = (median(values) for values in zip(*((part.mean, part.variance) for part in parts), strict=True))
    return Transfer(mean_ms / 1e3, 0.0, var_ms2 / 1e6)


def _line(parts: list[SubtaskReport]) -> StepCost | None:
    """Service per batch and per record, neither below zero: the line of Theil and Sen, which stalls do not move."""
    seen = [(part.service_ms, part.items / part.service_ms.n) for part in parts if part.service_ms is not None]
    if not seen:
        return None
    sizes, means_s = np.array([size for _, size in seen]), np.array([service.mean / 1e3 for service, _ in seen])
    size, mean_s = float(np.median(sizes)), float(np.median(means_s))
    if np.ptp(sizes) > _ALIKE * size:
        from scipy.stats import theilslopes  # takes longer to import than all else

        slope_s = float(theilslopes(means_s, sizes)[0])
    else:  # batches of one size show no slope: a batch costs what it does by default
        slope_s = (mean_s - min(PER_RECORD.batch_s, mean_s)) / size
    slope_s = min(max(slope_s, 0.0), mean_s / size)
    return StepCost(mean_s - slope_s * size, slope_s, float(np.median([service.variance for service, _ in seen])) / 1e6)
