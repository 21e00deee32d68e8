"""What a subtask measures about itself: cheap counters and samples, handed over once per interval."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.runtime.batch import Batch

_MOST_SAMPLES = 256


@dataclass(slots=True)
class Sample:
    """Count, mean and variance by Welford's method, and a uniform reservoir of values (ms)."""

    n: int = 0
    mean: float = 0.0
    m2: float = 0.0
    values: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        self.n += 1
        delta = value - self.mean
        self.mean += delta / self.n
        self.m2 += delta * (value - self.mean)
        if len(self.values) < _MOST_SAMPLES:
            self.values.append(value)
        else:
            at = random.randrange(self.n)
            if at < _MOST_SAMPLES:
                self.values[at] = value

    def take(self) -> dict[str, Any] | None:
        """The interval's figures, then start anew; None when nothing was seen."""
        if not self.n:
            return None
        figures = {"n": self.n, "mean": self.mean, "var": self.m2 / self.n, "values": self.values}
        self.n, self.mean, self.m2, self.values = 0, 0.0, 0.0, []
        return figures


@dataclass(slots=True)
class StepMeter:
    """One step in one subtask. ``inner_ns`` is time spent in the steps it called."""

    step: str
    items_in: int = 0
    items_out: int = 0
    late: int = 0
    inner_ns: int = 0
    service_ms: Sample = field(default_factory=Sample)
    latency_ms: Sample = field(default_factory=Sample)

    def consumed(self, batch: Batch, service_ns: int) -> None:
        self.items_in += batch.rows
        self.service_ms.add(service_ns / 1e6 / batch.rows)

    def take(self) -> dict[str, Any]:
        figures = {
            "step": self.step,
            "in": self.items_in,
            "out": self.items_out,
            "late": self.late,
            "service_ms": self.service_ms.take(),
            "latency_ms": self.latency_ms.take(),
        }
        self.items_in = self.items_out = self.late = 0
        return figures


@dataclass(slots=True)
class ChannelMeter:
    """One incoming edge in one subtask: where its buffers spent their time."""

    edge: int
    items: int = 0
    buffers: int = 0
    buffer_ms: Sample = field(default_factory=Sample)
    transfer_ms: Sample = field(default_factory=Sample)
    queue_ms: Sample = field(default_factory=Sample)
    gap_ms: Sample = field(default_factory=Sample)
    last_us: int = 0

    def arrived(self, items: int, opened_us: int, shipped_us: int, queued_us: int, now_us: int) -> None:
        self.items += items
        self.buffers += 1
        self.buffer_ms.add((shipped_us - opened_us) / 1000)
        self.transfer_ms.add((queued_us - shipped_us) / 1000)
        self.queue_ms.add((now_us - queued_us) / 1000)
        if self.last_us:
            self.gap_ms.add((queued_us - self.last_us) / 1000)
        self.last_us = queued_us

    def take(self) -> dict[str, Any]:
        figures = {
            "edge": self.edge,
            "items": self.items,
            "buffers": self.buffers,
            "buffer_ms": self.buffer_ms.take(),
            "transfer_ms": self.transfer_ms.take(),
            "queue_ms": self.queue_ms.take(),
            "gap_ms": self.gap_ms.take(),
        }
        self.items = self.buffers = 0
        return figures
