"""Adaptive output batching: how long a channel's open buffer may live (thesis, Algorithms 1-3).

Each constrained channel gets an equal part of what its bound leaves after the steps before and
behind it. Departures: a chained edge has no buffer and takes no part; an undefined latency at
either end of a sequence reads as zero, where the printed pseudo-code leaves it unset; a subtask
without a measurement of its own is taken to be like the mean of its step; and batching yields to queues that
take more than their share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from headrace.control.constraints import Path, edges_of
from headrace.control.topology import Topology
from headrace.measure.report import ChannelId, SubtaskId
from headrace.measure.summary import Summary

_MARGIN = 0.05
"""Kept free when batching yields: measured means scatter by a few percent."""

Latencies = Mapping[SubtaskId, float]


def step_latencies(path: Path, topology: Topology, summary: Summary) -> Latencies | None:
    """The latency of each subtask on the path; None while a whole step is unknown."""
    latencies: dict[SubtaskId, float] = {}
    for step in (element for element in path if isinstance(element, str)):
        mean = summary.step(step).latency_ms
        if mean is None:
            return None
        for id in topology.subtasks(step):
            report = summary.subtasks.get(id)
            latencies[id] = mean if report is None or report.latency_ms is None else report.latency_ms.mean
    return latencies


def targets_ms(
    path: Path, topology: Topology, latencies: Latencies, bound_ms: float, *, share: float = 0.8,
    chained: AbstractSet[int] = frozenset(),
) -> dict[ChannelId, float]:  # fmt: skip
    """The wait that each channel may cost: ``max(0, w_ob (ℓ - dsl - usl) / #streams)``.

    ``share`` is w_ob, for which the thesis has no number and its prototype 0.8.
    """
    open_edges = edges_of(path, chained)
    below = _sums(topology, tuple(reversed(edges_of(path))), latencies, forwards=False)
    above = _sums(topology, edges_of(path), latencies, forwards=True)
    return {
        channel: max(0.0, share * (bound_ms - above[channel] - below[channel]) / len(open_edges))
        for edge in open_edges
        for channel in topology.channels(edge)
    }


def yielding_share(share: float, channels_ms: float, crowding_ms: float | None) -> float:
    """The share of channel time for batching: what transfer and queues leave of it, at most ``share``.

    Ours. Batches arrive at once, so batching itself makes items queue; with a fixed share this alone
    could break a bound for ever. At least half of the share is kept: when queues are long because a step
    is busy, smaller batches would only make it busier.

    >>> [round(yielding_share(0.8, 100.0, crowding_ms), 2) for crowding_ms in (15.0, 25.0, 1e9)]
    [0.8, 0.7, 0.4]
    """
    if crowding_ms is None or channels_ms <= 0:
        return share
    left = 1 - _MARGIN - crowding_ms / channels_ms
    return max(share / 2, min(share, left))


def _sums(
    topology: Topology, edges: tuple[int, ...], latencies: Latencies, *, forwards: bool
) -> dict[ChannelId, float]:
    """The largest sum of subtask latencies on the way to (or from) each channel."""
    reached: dict[SubtaskId, float] = defaultdict(float)
    sums: dict[ChannelId, float] = {}
    for edge in edges:
        wire = topology.by_id[edge]
        for channel in topology.channels(edge):
            sender, receiver = SubtaskId(wire.source, channel.sender), SubtaskId(wire.target, channel.receiver)
            near, far = (sender, receiver) if forwards else (receiver, sender)
            sums[channel] = reached[near] + latencies.get(near, 0.0)
            reached[far] = max(reached[far], sums[channel])
    return sums


def next_deadline_ms(current_ms: float, target_ms: float, wait_ms: float) -> float:
    """``oblt + (target - obl)``, within 0 and twice the target.

    The thesis expects two intervals until the wait is on target; that holds for sparse channels. On a
    busy one an item waits half the deadline, so the error halves each time: five intervals to 5 %.
    The upper limit is for channels whose buffers fill before the deadline: without it their
    deadlines would grow for ever, and make items wait long once the load falls.

    >>> next_deadline_ms(0.0, 16.0, 0.0)
    16.0
    """
    return max(0.0, min(2 * target_ms, current_ms + target_ms - wait_ms))


def lowest(wishes: Iterable[Mapping[ChannelId, float]]) -> dict[ChannelId, float]:
    """One value per channel: where several constraints ask, the lowest wins."""
    minimum: dict[ChannelId, float] = {}
    for wish in wishes:
        for channel, value in wish.items():
            minimum[channel] = min(value, minimum.get(channel, value))
    return minimum
