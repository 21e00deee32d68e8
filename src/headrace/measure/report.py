"""What one worker tells the driver once per interval, as values.

A *customer* is what a subtask takes from its input queue at once: a buffer in Headrace, an item in
the thesis. Service times, inter-arrival times and queue waits must count the same customers; utilisation is then
the same for either.

Parts of a report travel as short lists, without the names of their fields: reports go out every second.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from headrace.measure.moments import Moments


class SubtaskId(msgspec.Struct, frozen=True, order=True, array_like=True, forbid_unknown_fields=True):
    step: str
    index: int


class ChannelId(msgspec.Struct, frozen=True, order=True, array_like=True, forbid_unknown_fields=True):
    """One sender's way to one receiver along an edge: where buffers are first in, first out."""

    edge: int
    sender: int
    receiver: int


class SubtaskReport(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One step in one subtask. None where nothing was sampled.

    ``latency_ms``: read-ready or read-write, as the step declares. ``service_ms``, ``interarrival_ms`` (time
    between arrivals at the input queue) and ``queue_ms`` are over all inputs of the subtask.
    ``ages_ms`` are sampled times since records were due at their source.
    """

    id: SubtaskId
    items: int
    latency_ms: Moments | None
    service_ms: Moments | None
    interarrival_ms: Moments | None
    queue_ms: Moments | None
    ages_ms: tuple[float, ...]

    @property
    def utilisation(self) -> float | None:
        """Share of time spent working, above 1 while a queue grows; 0 if it is known to be idle."""
        if not self.items:
            return 0.0
        if self.service_ms is None or self.interarrival_ms is None or not self.interarrival_ms.mean:
            return None
        return self.service_ms.mean / self.interarrival_ms.mean

    @property
    def arrivals_per_ms(self) -> float | None:
        if not self.items:
            return 0.0
        return 1 / self.interarrival_ms.mean if self.interarrival_ms is not None and self.interarrival_ms.mean else None


class ChannelReport(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One channel, measured by its receiver: where items spent their time on it.

    ``wait_ms`` is an item's time in the open buffer (the thesis's output batch latency), and
    ``lifetime_ms`` a buffer's, from its first item to its flush; never from flush to flush, which would
    show a wait on channels where nothing waits.
    """

    id: ChannelId
    items: int
    buffers: int
    wait_ms: Moments | None
    lifetime_ms: Moments | None
    transfer_ms: Moments | None
    queue_ms: Moments | None

    @property
    def latency_ms(self) -> float | None:
        """Leaving the sender's code → entering the receiver's: wait, transfer and queue."""
        if self.wait_ms is None or self.transfer_ms is None or self.queue_ms is None:
            return None
        return self.wait_ms.mean + self.transfer_ms.mean + self.queue_ms.mean


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that a worker measured in the interval that ended at ``at_s``.

    ``version`` names the settings that were in force during all of it, so that no decision is made
    from measurements older than the change before.
    """

    worker: str
    at_s: float
    version: int
    subtasks: tuple[SubtaskReport, ...]
    channels: tuple[ChannelReport, ...]


def plain(value: Any) -> Any:
    """What encoders do with a figure that numpy computed: NumPy's number as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} is no part of a report or message")
