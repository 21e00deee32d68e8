"""Operators: what a subtask hosts. They call each other directly, batch by batch, or through queues."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.graph.windowing import FOREVER_US, IDLE_US, NEVER_US
from headrace.runtime.batch import Batch
from headrace.runtime.clock import now_us
from headrace.runtime.metering.meter import StepMeter
from headrace.runtime.operators.progress import Progress
from headrace.runtime.operators.queues import InputQueue, QueuedBuffer
from headrace.state.durable.changes import Store
from headrace.state.index.choosing import Choice

OnDisk = Callable[[Batch], npt.NDArray[np.bool_]]
"""Which records' keys are not in memory."""


class Receiver(Protocol):
    """Whatever a step can feed: another operator, or an edge to the next stage."""

    def receive(self, port: int, batch: Batch) -> None: ...

    def watermark(self, port: int, watermark_us: int) -> None: ...


@dataclass(frozen=True, slots=True)
class ShedRule:
    """How an operator sheds: what is not processed ``within_us`` of its birth (None: within the tightest bound on a path
    through it) is abandoned. ``on_disk`` None: all records cost the same.
    """

    within_us: int | None
    on_disk: OnDisk | None


class Operator:
    """A step in one subtask.

    Subclasses implement ``on_batch`` and, where time matters, ``on_watermark``, ``on_clock`` and
    ``on_cut``; ``stores`` names the state they keep. With a ``queue`` what it receives waits there
    until the scheduler hands it to ``work`` and ``advance``. ``polled``: it is read, not fed, so nothing queues for it.
    """

    polled = False

    def __init__(self, name: str, ports: int = 1) -> None:
        self.name = name
        self.outputs: list[tuple[Receiver, int]] = []
        self._late_outputs: list[tuple[Receiver, int]] = []
        self.meter = StepMeter(name)
        self.queue: InputQueue | None = None
        self._ports = range(ports)
        self.inputs = Progress(self._ports)
        self.watermark_us = self._passed_on_us = NEVER_US
        self._passed_idle = False

    def feed(self, receiver: Receiver, port: int = 0) -> None:
        """Hand results and watermarks to one more receiver."""
        self.outputs.append((receiver, port))

    def feed_late(self, receiver: Receiver, port: int) -> None:
        """Hand what comes too late at one of its own ports, and watermarks, to a receiver of one port."""
        self._late_outputs.append((receiver, port))

    def receive(self, port: int, batch: Batch) -> None:
        if self.queue is None:
            self.process(port, batch)
        elif batch.rows:
            self._enqueue(QueuedBuffer(port, batch, batch.born_us, batch.rows, batch.records.nbytes))

    def receive_partial(self, port: int, partial: pa.RecordBatch, born_us: int, tag_us: int | None = None) -> None:
        """Take partial aggregates; only reduce steps are sent any."""
        waiting = QueuedBuffer(port, partial, born_us, partial.num_rows, partial.nbytes, tag_us=tag_us)
        if self.queue is None:
            self.work(waiting)
        else:
            self._enqueue(waiting)

    def watermark(self, port: int, watermark_us: int) -> None:
        if self.queue is None:
            self.advance(port, watermark_us)
        else:
            self.queue.put_watermark(port, watermark_us)

    def work(self, waiting: QueuedBuffer) -> None:
        """Process a buffer whose turn has come."""
        if waiting.began is not None:
            waiting.began(now_us())
        if isinstance(waiting.data, Batch):
            self.process(waiting.port, waiting.data)
            return
        visit = self.meter.enter(waiting.rows, waiting.tag_us)
        self.on_partial(waiting.port, waiting.data, waiting.born_us)
        self.meter.leave(visit)

    def process(self, port: int, batch: Batch) -> None:
        """Process records now."""
        if batch.rows:
            visit = self.meter.enter(batch.rows, batch.tag_us)
            self.on_batch(port, batch)
            self.meter.leave(visit)

    def _enqueue(self, waiting: QueuedBuffer) -> None:
        """Let what a step of the same subtask sent wait for its turn."""
        assert self.queue is not None
        arrived_us = now_us()
        self.meter.arrived(arrived_us)
        self.queue.put(replace(waiting, began=lambda at_us: self.meter.dequeued(at_us - arrived_us)))

    def advance(self, port: int, watermark_us: int) -> None:
        """Advance one input; takes effect once all inputs have reached it."""
        self.inputs.hear(port, watermark_us)
        self.catch_up()

    def catch_up(self) -> None:
        """Let what the inputs have said take effect."""
        reached_us = self.inputs.reached_us
        if reached_us > self.watermark_us:
            self.watermark_us = reached_us
            with self.meter.aside():
                self.on_watermark(reached_us)
        self.pass_on_watermark()

    def pass_on_watermark(self) -> None:
        """Tell all who read this step that nothing older than its watermark follows, and whether it is silent."""
        watermark_us = min(self.watermark_us, self.held_us())
        idle = self.inputs.idle and watermark_us == self.watermark_us
        moved = watermark_us > self._passed_on_us
        if moved or (self._passed_idle and not idle):
            self._passed_on_us = max(watermark_us, self._passed_on_us)
            self._tell(self._passed_on_us)
        if idle and (moved or not self._passed_idle):
            self._tell(IDLE_US)
        self._passed_idle = idle

    def _tell(self, watermark_us: int) -> None:
        for target, port in self.outputs:
            target.watermark(port, watermark_us)
        for target, _ in self._late_outputs:
            target.watermark(0, watermark_us)

    def held_us(self) -> int:
        """The earliest result that may still come, whatever the inputs' watermark: no later one may be passed on."""
        return FOREVER_US

    def emit(self, batch: Batch) -> None:
        if batch.rows:
            if batch.tag_us is None:
                batch.tag_us = self.meter.tag_for(batch.born_us)
                batch.born_us = batch.born_us if batch.tag_us is not None else now_us()  # no deadline may be long over
            started_ns = self.meter.wrote(batch.rows)
            for target, port in self.outputs:
                target.receive(port, batch)
            self.meter.inner_ns += time.perf_counter_ns() - started_ns

    def without_late(self, port: int, batch: Batch, late: npt.NDArray[np.bool_]) -> Batch:
        """Count what came too late and hand it to those who want it; returns the rest."""
        if not late.any():
            return batch
        self.meter.late += int(late.sum())
        wanted = [target for target, of in self._late_outputs if of == port]
        if wanted:
            behind, started_ns = batch.where(late), time.perf_counter_ns()
            for target in wanted:
                target.receive(0, behind)
            self.meter.inner_ns += time.perf_counter_ns() - started_ns
        return batch.where(~late)

    def begin(self) -> None:
        """A new attempt: forget watermarks. Edges into the stage tell theirs before anything comes, as of the version that it
        starts from; sources theirs as soon as they know them.
        """
        self.inputs = Progress(self._ports)
        self.watermark_us = self._passed_on_us = NEVER_US
        self._passed_idle = False
        self.meter.begin()

    def on_batch(self, port: int, batch: Batch) -> None:
        raise NotImplementedError

    def on_partial(self, port: int, partial: pa.RecordBatch, born_us: int) -> None:
        raise NotImplementedError

    def on_watermark(self, watermark_us: int) -> None:
        """All input up to ``watermark_us`` has been seen."""

    def on_clock(self, now_us: int) -> None:
        """Called between buffers."""

    def next_clock_us(self) -> int | None:
        """When ``on_clock`` is wanted next."""
        return None

    def on_cut(self, *, end: bool) -> None:
        """All input before a cut has been processed, and state is set aside next. ``end``: no more input follows."""

    def stores(self) -> dict[str, Store]:
        return {}

    def parts(self, slices: int) -> range:
        """The numbers by which its state is divided among subtasks: those of the run's slices."""
        return range(slices)

    def restored(self, slices: list[int]) -> None:
        """The slices assigned to this subtask have been loaded."""

    def give_away(self, slices: frozenset[int]) -> None:
        """Right after a cut that gave slices to another subtask."""
        for store in self.stores().values():
            store.give_away(slices)

    def adopted(self, slices: frozenset[int]) -> None:
        """Slices that a cut gave to this subtask have been loaded, beside those that it had."""

    def close(self) -> None:
        """The subtask will not work again: leave nothing open, and nothing on disk that is not the checkpoint's."""

    @property
    def combined_schema(self) -> pa.Schema | None:
        """The columns of the partial aggregates that it takes, if it takes any."""
        return None

    @property
    def choice(self) -> Choice | None:
        """What it has chosen by what it measured, and why, for reports."""
        return None

    @property
    def shed_rule(self) -> ShedRule | None:
        """None: nothing is abandoned, however late."""
        return None


def timestamps(times_us: Any, rows: int | None = None) -> pa.Array:
    """µs as an Arrow timestamp column in UTC; a single number is repeated ``rows`` times."""
    if rows is not None:
        times_us = np.full(rows, times_us, np.int64)
    return pc.cast(pa.array(times_us, pa.int64()), pa.timestamp("us", "UTC"))
