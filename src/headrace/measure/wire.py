"""Reports as plain data: what the control channel and traces carry. Nothing is pickled.

Both ends are here, so that they cannot disagree. Short lists, not names: a report goes out every second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import DataError
from headrace.measure.flows import Flow
from headrace.measure.moments import Moments
from headrace.measure.report import ChannelId, ChannelReport, Report, SubtaskId, SubtaskReport
from headrace.measure.sketches import Latencies

Plain = dict[str, Any]


def pack(report: Report) -> Plain:
    """A report as numbers, strings, lists and dicts, good for JSON and msgpack alike."""
    return {
        "worker": report.worker,
        "at_s": report.at_s,
        "version": report.version,
        "subtasks": [
            [s.id.step, s.id.index, s.items, *map(_packed, (s.latency_ms, s.service_ms, s.interarrival_ms, s.queue_ms)),
             list(s.ages_ms)]
            for s in report.subtasks
        ],
        "channels": [
            [c.id.edge, c.id.sender, c.id.receiver, c.items, c.buffers,
             *map(_packed, (c.wait_ms, c.lifetime_ms, c.transfer_ms, c.queue_ms))]
            for c in report.channels
        ],
    }  # fmt: skip


def unpack(data: Mapping[str, Any]) -> Report:
    """The report that was packed; DataError if it was not one."""
    try:
        return Report(
            data["worker"],
            data["at_s"],
            data["version"],
            tuple(_subtask(*fields) for fields in data["subtasks"]),
            tuple(_channel(*fields) for fields in data["channels"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"this is not a worker's report ({error!r}): {data!r:.200}") from error


def pack_flow(flow: Flow) -> list[Any]:
    latency = None if flow.latency is None else [_packed(flow.latency.moments), flow.latency.sketch]
    return [flow.step, flow.items_in, flow.items_out, flow.late, latency]


def unpack_flow(fields: Sequence[Any]) -> Flow:
    step, items_in, items_out, late, latency = fields
    return Flow(
        step, items_in, items_out, late, None if latency is None else Latencies(Moments(*latency[0]), latency[1])
    )


def _subtask(step: str, index: int, items: int, *figures: Any) -> SubtaskReport:
    latency_ms, service_ms, interarrival_ms, queue_ms = map(_moments, figures[:-1])
    return SubtaskReport(
        SubtaskId(step, index), items, latency_ms, service_ms, interarrival_ms, queue_ms, ages_ms=tuple(figures[-1])
    )


def _channel(edge: int, sender: int, receiver: int, items: int, buffers: int, *moments: Any) -> ChannelReport:
    return ChannelReport(ChannelId(edge, sender, receiver), items, buffers, *map(_moments, moments))


def _packed(moments: Moments | None) -> list[float] | None:
    return None if moments is None else [moments.n, moments.mean, moments.m2]


def _moments(fields: Sequence[Any] | None) -> Moments | None:
    return None if fields is None else Moments(*fields)
