"""What the simulated workers measure in one interval."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt

from headrace.control.topology import Topology
from headrace.measure.moments import Moments
from headrace.measure.report import ChannelId, ChannelReport, Report, SubtaskId, SubtaskReport
from headrace.testing.lindley import EDGE, EMITTED, QUEUED, SENDER, SHIPPED

Floats = npt.NDArray[np.float64]
_AGES = 64
"""Sampled ages per subtask and interval."""


class Gauges:
    """Collects one interval's measurements, then gives one report per worker."""

    def __init__(self, version: int, sample_share: float, luck: np.random.Generator) -> None:
        self._version, self._share, self._luck = version, sample_share, luck
        self._lifetimes: dict[ChannelId, list[float]] = {}
        self._queue_ms: dict[SubtaskId, Moments | None] = {}
        self._written: dict[SubtaskId, Moments | None] = {}
        self._subtasks: dict[SubtaskId, SubtaskReport] = {}
        self._channels: dict[SubtaskId, list[ChannelReport]] = defaultdict(list)

    def flush(self, channel: ChannelId, lifetimes_s: list[float]) -> None:
        self._lifetimes[channel] = lifetimes_s

    def arrived(self, id: SubtaskId, items: Floats, begins: Floats) -> None:
        """Items that began service: where they spent the time until then, by channel."""
        self._queue_ms[id] = self._sampled(begins - items[:, QUEUED])
        codes = items[:, EDGE] * 65_536 + items[:, SENDER]
        for code in np.unique(codes):
            mine = codes == code
            edge, sender = divmod(int(code), 65_536)
            channel = ChannelId(edge, sender, id.index)
            part = items[mine]
            lifetimes = self._lifetimes.get(channel, [])
            report = ChannelReport(
                channel,
                len(part),
                len(lifetimes),
                wait_ms=self._sampled(part[:, SHIPPED] - part[:, EMITTED]),
                lifetime_ms=self._sampled(np.array(lifetimes)),
                transfer_ms=self._sampled(part[:, QUEUED] - part[:, SHIPPED]),
                queue_ms=self._sampled(begins[mine] - part[:, QUEUED]),
            )
            self._channels[id].append(report)

    def served(
        self, id: SubtaskId, begins: Floats, ends: Floats, born: Floats, interarrivals_s: Floats | None, windowed: bool
    ) -> None:
        """Items that went through one step; ``interarrivals_s`` None for a step inside a chain, which has no queue."""
        service_ms = self._sampled(ends - begins)
        every = max(1, len(ends) // _AGES)
        self._subtasks[id] = SubtaskReport(
            id,
            len(ends),
            latency_ms=None if windowed else service_ms,
            service_ms=service_ms,
            interarrival_ms=self._sampled(np.diff(begins) if interarrivals_s is None else interarrivals_s),
            queue_ms=self._queue_ms.get(id),
            ages_ms=tuple(((ends - born)[::every] * 1000).tolist()),
        )

    def written(self, id: SubtaskId, latencies_s: Floats) -> None:
        """Read-write latencies of a windowed step, known when it writes."""
        self._written[id] = self._sampled(latencies_s)

    def reports(self, topology: Topology, at_s: float) -> list[Report]:
        """One report per worker; a step without named workers has a worker per subtask."""
        workers: dict[str, list[SubtaskId]] = defaultdict(list)
        for step in topology.steps:
            for id in topology.subtasks(step.name):
                named = step.workers[id.index] if id.index < len(step.workers) else f"{step.name}/{id.index}"
                workers[named].append(id)
        return [
            Report(
                worker,
                at_s,
                self._version,
                tuple(self._report(id) for id in ids),
                tuple(channel for id in ids for channel in self._channels.get(id, ())),
            )
            for worker, ids in workers.items()
        ]

    def _report(self, id: SubtaskId) -> SubtaskReport:
        report = self._subtasks.get(id, SubtaskReport(id, 0, None, None, None, None, ()))
        if id not in self._written:
            return report
        return SubtaskReport(
            id,
            report.items,
            self._written[id],
            report.service_ms,
            report.interarrival_ms,
            report.queue_ms,
            report.ages_ms,
        )

    def _sampled(self, values_s: Floats) -> Moments | None:
        """Moments in ms of the values, or of a Bernoulli sample of them."""
        if self._share < 1:
            values_s = values_s[self._luck.random(len(values_s)) < self._share]
        n = len(values_s)
        if not n:
            return None
        mean = float(values_s.sum()) / n
        spread = values_s - mean
        return Moments(n, mean * 1000, float(spread @ spread) * 1e6)
