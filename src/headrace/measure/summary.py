"""From reports to one summary of the running job.

A summary keeps the figures of each element (subtask or channel) under its id, so no element counts twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.measure.moments import Moments, mean_of
from headrace.measure.report import ChannelId, ChannelReport, Report, SubtaskId, SubtaskReport


@dataclass(frozen=True, slots=True)
class StepFigures:
    """A step over its subtasks; ``peak_utilisation`` is the busiest subtask's.

    ``items_per_customer``: how many share a buffer, and with it the time of its service.
    """

    latency_ms: float | None
    service_ms: float | None
    service_variation: float | None
    interarrival_ms: float | None
    interarrival_variation: float | None
    queue_ms: float | None
    peak_utilisation: float | None
    items_per_customer: float | None = None


@dataclass(frozen=True, slots=True)
class EdgeFigures:
    """An edge over its channels."""

    latency_ms: float | None
    wait_ms: float | None
    queue_ms: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """The newest figures of every element that is known."""

    subtasks: Mapping[SubtaskId, SubtaskReport]
    channels: Mapping[ChannelId, ChannelReport]
    versions: Mapping[ChannelId, int]

    def of_step(self, step: str) -> tuple[SubtaskReport, ...]:
        return tuple(report for id, report in sorted(self.subtasks.items()) if id.step == step)

    def of_edge(self, edge: int) -> tuple[ChannelReport, ...]:
        return tuple(report for id, report in sorted(self.channels.items()) if id.edge == edge)

    def step(self, name: str) -> StepFigures:
        """The unweighted mean over a step's subtasks."""
        parts = self.of_step(name)
        rate = mean_of(part.arrivals_per_ms for part in parts)
        utilisations = [u for part in parts if (u := part.utilisation) is not None]
        return StepFigures(
            latency_ms=mean_of(_mean(part.latency_ms) for part in parts),
            service_ms=mean_of(_mean(part.service_ms) for part in parts),
            service_variation=mean_of(_variation(part.service_ms) for part in parts),
            # Not the mean of inter-arrival times, as in the thesis: an idle subtask has a rate, zero, but no such time.
            interarrival_ms=1 / rate if rate else None,
            interarrival_variation=mean_of(_variation(part.interarrival_ms) for part in parts),
            queue_ms=mean_of(_mean(part.queue_ms) for part in parts),
            peak_utilisation=max(utilisations, default=None),
            items_per_customer=_items_per_customer(parts),
        )

    def edge(self, id: int) -> EdgeFigures:
        """The unweighted mean over an edge's channels."""
        parts = self.of_edge(id)
        return EdgeFigures(
            latency_ms=mean_of(part.latency_ms for part in parts),
            wait_ms=mean_of(_mean(part.wait_ms) for part in parts),
            queue_ms=mean_of(_mean(part.queue_ms) for part in parts),
        )


def summarise(reports: Iterable[Report]) -> Summary:
    """The newest report of each element; of two that are equally new, the one of the later settings."""
    subtasks: dict[SubtaskId, SubtaskReport] = {}
    channels: dict[ChannelId, ChannelReport] = {}
    versions: dict[ChannelId, int] = {}
    for report in sorted(reports, key=lambda r: (r.at_s, r.version, r.worker)):
        for subtask in report.subtasks:
            subtasks[subtask.id] = subtask
        for channel in report.channels:
            channels[channel.id] = channel
            versions[channel.id] = report.version
    return Summary(subtasks, channels, versions)


def _items_per_customer(parts: Iterable[SubtaskReport]) -> float | None:
    served = [part for part in parts if part.service_ms is not None]
    customers = sum(part.service_ms.n for part in served if part.service_ms is not None)
    return sum(part.items for part in served) / customers if customers else None


def _mean(moments: Moments | None) -> float | None:
    return None if moments is None else moments.mean


def _variation(moments: Moments | None) -> float | None:
    return None if moments is None else moments.variation
