"""The reports that still count: those of the last ``span``, each at most once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from headrace.measure.moments import Moments, merge
from headrace.measure.report import Report, SubtaskId, SubtaskReport
from headrace.measure.summary import Summary, summarise


@dataclass(frozen=True, slots=True)
class EdgeParts:
    """An edge's latency in its three parts."""

    wait_ms: float
    transfer_ms: float
    queue_ms: float

    @property
    def total_ms(self) -> float:
        return self.wait_ms + self.transfer_ms + self.queue_ms


@dataclass(frozen=True, slots=True)
class Recent:
    """Reports younger than ``span_s``, oldest first. A report may come late, or twice, or never."""

    span_s: float
    reports: tuple[Report, ...] = ()

    def add(self, reports: Iterable[Report], at_s: float) -> Recent:
        """With new reports, and without those that ``at_s`` made too old (HPDC'12)."""
        known = {(r.worker, r.at_s): r for r in (*self.reports, *reports) if r.at_s > at_s - self.span_s + 1e-9}
        return Recent(self.span_s, tuple(known[key] for key in sorted(known, key=lambda k: (k[1], k[0]))))

    def summary(self, at_s: float, fresh_s: float) -> Summary:
        """The newest figures of each element, of reports not older than ``fresh_s``."""
        return summarise(r for r in self.reports if r.at_s > at_s - fresh_s + 1e-9)

    def pooled(self, since_s: float) -> Mapping[SubtaskId, SubtaskReport]:
        """All measurements of each subtask since then as one: steadier than the newest, and slower."""
        subtasks: dict[SubtaskId, SubtaskReport] = {}
        for report in self._since(since_s):
            for new in report.subtasks:
                old = subtasks.get(new.id)
                subtasks[new.id] = new if old is None else _both(old, new)
        return subtasks

    def step_latency_ms(self, step: str, since_s: float) -> float | None:
        """Mean latency of the step's items since then: every item counts equally, as in a constraint."""
        total = merge(s.latency_ms for r in self._since(since_s) for s in r.subtasks if s.id.step == step)
        return None if total is None else total.mean

    def edge_parts_ms(self, edge: int, since_s: float) -> EdgeParts | None:
        """Where the edge's items spent their time since then; None unless all three parts are known."""
        channels = [c for r in self._since(since_s) for c in r.channels if c.id.edge == edge]
        wait = _per_item([(c.items, c.wait_ms) for c in channels])
        transfer = _per_item([(c.items, c.transfer_ms) for c in channels])
        queue = _per_item([(c.items, c.queue_ms) for c in channels])
        return None if wait is None or transfer is None or queue is None else EdgeParts(wait, transfer, queue)

    def age_ms(self, step: str, quantile: float | None, since_s: float) -> float | None:
        """Mean or quantile of the time from when records were due until the step had them."""
        known = [s for r in self._since(since_s) for s in r.subtasks if s.id.step == step and s.ages_ms]
        if not known:
            return None
        ages = np.concatenate([s.ages_ms for s in known])
        # A sample stands for as many records as its subtask had per sample.
        weights = np.concatenate([np.full(len(s.ages_ms), max(s.items, 1) / len(s.ages_ms)) for s in known])
        if quantile is None:
            return float(np.average(ages, weights=weights))
        return float(np.quantile(ages, quantile, weights=weights, method="inverted_cdf"))

    def _since(self, since_s: float) -> Iterable[Report]:
        return (r for r in self.reports if r.at_s > since_s + 1e-9)


def _per_item(parts: list[tuple[int, Moments | None]]) -> float | None:
    """The mean over items, even where buffers were counted or sampled."""
    known = [(items, moments.mean) for items, moments in parts if moments is not None and items]
    total = sum(items for items, _ in known)
    return sum(items * mean for items, mean in known) / total if total else None


def _both(old: SubtaskReport, new: SubtaskReport) -> SubtaskReport:
    return SubtaskReport(
        new.id,
        old.items + new.items,
        merge((old.latency_ms, new.latency_ms)),
        merge((old.service_ms, new.service_ms)),
        merge((old.interarrival_ms, new.interarrival_ms)),
        merge((old.queue_ms, new.queue_ms)),
        (),
    )
