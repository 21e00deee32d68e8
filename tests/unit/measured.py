"""Reports of which a test says only what matters to it: nothing on the wire has a default."""

from __future__ import annotations

from headrace.measure.moments import Moments
from headrace.measure.report import ChannelId, ChannelReport, Report, SubtaskId, SubtaskReport


def moments_of(n: int, mean: float, m2: float = 0.0) -> Moments:
    return Moments(n, mean, m2)


def of_subtask(
    id: SubtaskId,
    items: int,
    latency_ms: Moments | None = None,
    service_ms: Moments | None = None,
    interarrival_ms: Moments | None = None,
    queue_ms: Moments | None = None,
    ages_ms: tuple[float, ...] = (),
) -> SubtaskReport:
    return SubtaskReport(id, items, latency_ms, service_ms, interarrival_ms, queue_ms, ages_ms)


def of_channel(
    id: ChannelId,
    items: int,
    buffers: int,
    wait_ms: Moments | None = None,
    lifetime_ms: Moments | None = None,
    transfer_ms: Moments | None = None,
    queue_ms: Moments | None = None,
) -> ChannelReport:
    return ChannelReport(id, items, buffers, wait_ms, lifetime_ms, transfer_ms, queue_ms)


def of_worker(
    worker: str,
    at_s: float,
    version: int,
    subtasks: tuple[SubtaskReport, ...] = (),
    channels: tuple[ChannelReport, ...] = (),
) -> Report:
    return Report(worker, at_s, version, subtasks, channels)
