"""What a subtask measures about itself while it works, taken once per interval.

After Lohrmann 2016, section 2.5 of our specification. A customer of a step is what it is given at
once: a buffer from the subtask's queue, or a batch from the step before it in the same chain.
Service times and inter-arrival times are counted for every customer, which costs less than choosing among them; where
time is read or values are kept only for it, a share of buffers or records is sampled.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace.measure.flows import Flow
from headrace.measure.report import SubtaskId, SubtaskReport
from headrace.runtime.metering.tallies import Ages, Held, Tally

_NS_PER_MS, _US_PER_MS = 1_000_000, 1000
Visit = tuple[int, int, int, int | None, int]
"""When it began (ns), the meter's ``inner_ns`` then, records, tag, and how many customers are served at once."""


@dataclass(slots=True)
class StepMeter:
    """One step in one subtask.

    ``inner_ns`` is time spent in the steps it called, which is theirs. Read-ready latency is the step's own
    time with the batch that an item came in; read-write latency runs from reading an item to the next
    writing of any.
    """

    step: str
    read_write: bool = False
    items_in: int = 0
    items_out: int = 0
    late: int = 0
    inner_ns: int = 0
    tag_us: int | None = None
    ages: Ages = field(default_factory=Ages)
    _service_ns: Tally = field(default_factory=Tally)
    _latency_ns: Tally = field(default_factory=Tally)
    _interarrival_us: Tally = field(default_factory=Tally)
    _queue_us: Tally = field(default_factory=Tally)
    _held: Held = field(default_factory=Held)
    _arrived_us: int = 0
    _aside_ns: int = 0
    _queued: int = 0
    _serving: bool = False
    _closing: bool = False

    def begin(self) -> None:
        """The pause between two attempts is no inter-arrival time."""
        self._arrived_us = 0

    def arrived(self, at_us: int) -> None:
        """A customer has come: to the subtask's queue, in the order of coming, or directly."""
        if self._arrived_us:
            self._interarrival_us.add(at_us - self._arrived_us)
        self._arrived_us = at_us

    def dequeued(self, waited_us: int) -> None:
        """The next customer, or one of those served next, comes out of the queue, where it waited that long."""
        self._queued += 1
        self._queue_us.add(waited_us)

    def enter(self, records: int, tag_us: int | None) -> Visit:
        """A customer's service begins; give what is returned to ``leave``."""
        if not self._queued:
            self.arrived(time.time_ns() // 1000)
        customers, self._queued, self._serving = max(self._queued, 1), 0, True
        self.items_in += records
        self.tag_us = tag_us
        began_ns = time.perf_counter_ns()
        if self.read_write:
            self._held.read(began_ns, records)
        return began_ns, self.inner_ns, records, tag_us, customers

    def leave(self, visit: Visit) -> None:
        """Service has ended. What was done aside since the last customer counts as this one's service."""
        began_ns, inner_ns, records, tag_us, customers = visit
        inner_ns = self.inner_ns - inner_ns
        own_ns = time.perf_counter_ns() - began_ns - inner_ns
        self._service_ns.add((own_ns + self._aside_ns) // customers, customers)
        self._aside_ns, self._serving = 0, False
        if not self.read_write:
            self._latency_ns.add(own_ns, records)
        if tag_us is not None and ((sampled := self.ages.due(records)) or self.ages.unknown):
            self.ages.add((time.time_ns() - inner_ns) // 1000 - tag_us, sampled)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Work without a customer: closing windows when time has come that far.

        Its results are as old as the customers since the last such work: what came with the watermark. Without any they
        are of unknown age, since it is not known here what moved time on.
        """
        began_ns, inner_ns, self._serving, self._closing = time.perf_counter_ns(), self.inner_ns, True, True
        yield
        self._serving = self._closing = False
        self.tag_us = None
        self._aside_ns += time.perf_counter_ns() - began_ns - (self.inner_ns - inner_ns)

    def wrote(self, records: int) -> int:
        """The step emits; returns the time (ns)."""
        self.items_out += records
        now_ns = time.perf_counter_ns()
        if self.read_write:
            self._held.written(now_ns, self._latency_ns)
        return now_ns

    def tag_for(self, born_us: int) -> int | None:
        """The tag of results: that of the input that led to them, or their own birth, or None if neither is known."""
        if self._serving and self.tag_us is not None:
            return self.tag_us
        return born_us if born_us and not self._closing else None

    def take(self, index: int) -> tuple[SubtaskReport, Flow]:
        """The interval's figures, then start anew."""
        latency, ages_ms = self.ages.take()
        report = SubtaskReport(
            SubtaskId(self.step, index),
            self.items_in,
            self._latency_ns.take(_NS_PER_MS),
            self._service_ns.take(_NS_PER_MS),
            self._interarrival_us.take(_US_PER_MS),
            self._queue_us.take(_US_PER_MS),
            ages_ms,
        )
        flow = Flow(self.step, self.items_in, self.items_out, self.late, latency)
        self.items_in = self.items_out = self.late = 0
        return report, flow
