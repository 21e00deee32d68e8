"""What the controller sees in one cycle, before it decides anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.control.chaining import Chain, chains_on
from headrace.control.constraints import Path, steps_of
from headrace.control.kingman import Station, fit_of
from headrace.control.policy import ControlledJob, ControlSettings
from headrace.control.standing import Standing
from headrace.control.topology import Topology
from headrace.measure.report import ChannelId, ChannelReport
from headrace.measure.summary import Summary
from headrace.model.queueing import kingman


@dataclass(frozen=True, slots=True)
class View:
    """The job as it is now.

    ``summary`` is of the newest reports, ``pooled`` of all in the span since the job last changed
    its shape, which is ``shaped_s``: deadlines follow the first, parallelism the second, which is less noisy.
    ``since`` has the settings version that last changed each channel.
    """

    job: ControlledJob
    cycle: int
    at_s: float
    topology: Topology
    settings: ControlSettings
    summary: Summary
    pooled: Summary
    standings: tuple[Standing, ...]
    since: Mapping[ChannelId, int]
    shaped_s: float = -math.inf

    @property
    def shape_measured(self) -> bool:
        """Whether the parallelism of now has been measured for long enough to take some of it away."""
        policy = self.job.policy
        return self.at_s - self.shaped_s >= (policy.quiet_cycles + 0.5) * policy.interval_s

    def channel(self, id: ChannelId) -> ChannelReport | None:
        """A channel's report, unless it is older than the channel's last change."""
        if self.summary.versions.get(id, -1) < self.since.get(id, 0):
            return None
        return self.summary.channels.get(id)

    def silent(self, path: Path) -> tuple[str, ...]:
        """Steps on the path of which some subtask has sent no report."""
        return tuple(
            step
            for step in steps_of(path)
            if any(id not in self.summary.subtasks for id in self.topology.subtasks(step))
        )

    def stations(self, path: Path) -> tuple[Station, ...] | None:
        """The path's queues with their servers, one per chain; None while one is unknown."""
        chains = chains_on(path, self.settings.chained, self.topology)
        found = [self._station(chain) for chain in chains if not self._is_at_source(chain)]
        known = [station for station in found if station is not None]
        return tuple(known) if len(known) == len(found) else None

    def _is_at_source(self, chain: Chain) -> bool:
        """Whether a source calls the chain directly, so that nothing queues for it."""
        before = [edge for edge in self.topology.into(chain[0]) if edge.id in self.settings.chained]
        return any(self.topology.by_name[edge.source].source for edge in before)

    def _station(self, chain: Chain) -> Station | None:
        """A chain as one server: what its steps cost per arrival at the first of them."""
        steps = [self.pooled.step(name) for name in chain]
        head, first = self.topology.by_name[chain[0]], steps[0]
        peaks = [self.summary.step(name).peak_utilisation for name in chain]
        if first.peak_utilisation == 0:  # known to be idle, so that its parallelism may fall
            return Station(head.name, head.parallelism, head.minimum, head.maximum, 0.0, 1.0, 0.0, 0.0, 0.0)
        if None in (
            first.interarrival_ms,
            first.interarrival_variation,
            first.service_ms,
            first.queue_ms,
            first.peak_utilisation,
        ):
            return None
        assert first.interarrival_ms and first.interarrival_variation is not None and first.queue_ms is not None
        service_ms = variance = 0.0
        for step in steps:
            if step.interarrival_ms and step.service_ms is not None:
                calls = first.interarrival_ms / step.interarrival_ms
                service_ms += calls * step.service_ms
                variance += calls * ((step.service_variation or 0.0) * step.service_ms) ** 2
        variation = variance**0.5 / service_ms if service_ms else 0.0
        shares = [(step.latency_ms or 0.0, step.items_per_customer or 1.0) for step in steps]
        batch_ms = sum(latency_ms * (1 - 1 / items) for latency_ms, items in shares if items > 1)
        predicted_ms = kingman(service_ms, first.interarrival_ms, first.interarrival_variation**2, variation**2)
        fit = fit_of(first.queue_ms, predicted_ms, self.job.policy.fit_limits)
        return Station(
            head.name, head.parallelism, head.minimum, head.maximum, service_ms, first.interarrival_ms,
            first.interarrival_variation, variation, sum(peak or 0.0 for peak in peaks), fit, batch_ms,
        )  # fmt: skip
