"""The subtask: one actor loop over {input, control, flush timer} for one epoch at a time.

It owns the operators of its stage, the receiving ends of the edges that come in and the sending
ends of those that leave. It never blocks in the input: a reader thread fills the inbox.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa

from headrace.connect.sink import Staged
from headrace.errors import FencedError, ProtocolError
from headrace.runtime.build import build_stage
from headrace.runtime.clock import now_us
from headrace.runtime.messages import Fenced, Ordered, RowsShown, ToDriver, ToWorker
from headrace.runtime.operators.sinks import DeadLetters
from headrace.runtime.plan import Description, JobPlan, Ticket
from headrace.runtime.reporting import Reporter
from headrace.runtime.scheduling.scheduler import Scheduler
from headrace.runtime.wire.channelmeter import Stamp
from headrace.runtime.wire.inbox import End, Inbox, Row
from headrace.state.durable.changes import Pending, Store
from headrace.state.durable.chunks import ChunkWriter
from headrace.state.durable.loading import load_slices
from headrace.tokens import Token

_BUSY_ROWS_PER_TURN = 1_000_000
_IDLE_WAIT_US = 50_000
_LISTEN_EVERY_US = 20_000


class Control(Protocol):
    """The subtask's side of the control channel. Losing it never stops the data."""

    def tell(self, message: ToDriver) -> None: ...

    def poll(self) -> list[ToWorker]:
        """Messages that have come since; never blocks."""
        ...

    def offset_us(self) -> int:
        """How far this host's clock is behind the driver's."""
        ...


class Subtask:
    """One subtask's operators and state.

    It stays in its worker's memory between epochs. ``version`` is the attempt and group whose state
    it holds after ``finish``; only a ticket with just that base and group may reuse it.
    """

    def __init__(self, plan: JobPlan, stage: int) -> None:
        self.plan, self.stage = plan, stage
        self.version: tuple[Token | None, int | None, int] | None = None
        self._letters, self._stamp = DeadLetters(plan.graph), Stamp()
        built = build_stage(plan, stage, self._letters.take if plan.graph.letters else None, self._stamp)
        self._operators, self._sources = built.operators, built.sources
        self._sinks = (*built.sinks, *self._letters.sinks)
        self._intake, self._outlet = built.intake, built.outlet
        self._scheduler = Scheduler(plan, stage, self._operators)
        self._reporter = Reporter(
            plan, stage, self._operators, built.guards, self._intake, self._outlet, self._scheduler, self._stamp
        )
        self._index = 0
        self._ticket: Ticket | None = None
        self._listened_us = 0
        self._told_end = self._input_over = False
        self._chunks: ChunkWriter | None = None
        self._stores: dict[str, tuple[str, Store]] = {
            f"{name}#{part}" if part else name: (name, store)
            for name, operator in self._operators.items()
            for part, store in operator.stores().items()
        }

    def begin(self, index: int, ticket: Ticket, control: Control) -> None:
        """Take part in an attempt: load the slices of its base, unless they are in memory already."""
        plan = self.plan
        self._index, self._ticket, self._control = index, ticket, control
        self._stamp.offset_us = control.offset_us()
        self._reporter.begin(index, ticket.token, control)
        self._told_end = False
        fresh = self.version is None
        held = {
            name: [number for number in operator.parts(plan.settings.slices) if ticket.owns(number)]
            for name, operator in self._operators.items()
        }
        if fresh:
            stores = {id: (store, held[step]) for id, (step, store) in self._stores.items()}
            load_slices(plan.checkpoint, ticket.base, stores)
        self.version = None  # not a version again before finish()
        for name, operator in self._operators.items():
            if fresh:
                operator.restored(held[name])
            operator.begin_epoch()
        for sink in self._sinks:
            sink.open(plan.checkpoint, ticket.token, index, self._tell_rows)
        self._outlet.begin(index, ticket)
        self._intake.begin(index)
        stem = f"segments/{ticket.token}-s{self.stage:02d}-{index:04d}"
        settings = plan.settings
        self._chunks = ChunkWriter(plan.checkpoint / "headrace", stem, settings.chunk_s, settings.chunk_bytes, now_us())

    def run(self, inbox: Inbox) -> Iterator[pa.RecordBatch]:
        """Work until the input ends; yields rows for the next stage. Then call ``finish``."""
        polling, busy, turn_rows = bool(self._sources), bool(self._sources), 0
        self._input_over = False
        eager, scheduler = self.plan.eager, self._scheduler
        scheduler.begin(inbox, self._outlet.orders)
        while not (over := self._over(polling)) or scheduler.waiting:
            item = inbox.get(0.0 if busy or scheduler.waiting else self._wait_s(polling))
            while isinstance(item, Row):
                self._intake.take(item)
                inbox.done(item)
                item = inbox.get(0.0) if scheduler.queued else None
            if isinstance(item, End):
                if item.error is not None:
                    raise ProtocolError(f"the input broke off: {item.error}") from item.error
                self._input_over = True  # stage by stage, a source may read on although Spark has no rows for it
            busy = False
            if polling and not over and (rows := scheduler.poll_rows(self.plan.settings.poll_rows)):
                read = self._sources.poll(rows)  # before the flush: what is due by now leaves with the buffer that is
                busy = read >= rows or (read > 0 and not (eager and self._sources.paced))
                turn_rows += rows if read else 0
                if not eager and self._turn_over(read > 0, turn_rows):
                    polling = False
            scheduler.turn()
            self._tick()
            yield from self._outlet.flush()
        self._tick()  # how far the sources' time has come, before the last buffers leave
        scheduler.finish()
        for operator in self._operators.values():
            self._intake.close(operator)
            operator.on_epoch_end()
        yield from self._outlet.flush(last=True)
        self._letters.write(now_us())  # last: combining before the shuffle can skip records too

    def await_end(self, inbox: Inbox, timeout_s: float) -> None:
        """Wait until Spark has closed the input; nothing new may come any more."""
        deadline = time.monotonic() + timeout_s
        while not self._input_over:
            item = inbox.get(0.5)
            if isinstance(item, Row):
                inbox.done(item)
                self._intake.refuse(item)
            elif isinstance(item, End):
                if item.error is not None:
                    raise ProtocolError(f"the input broke off: {item.error}") from item.error
                self._input_over = True
            elif time.monotonic() > deadline:
                raise ProtocolError(f"stage {self.stage}: the input did not end although its senders had")

    def finish(self) -> Description:
        """Write what changed and describe it."""
        ticket, chunks = self._ticket, self._chunks
        assert ticket is not None and chunks is not None
        chunks.write(self._swapped(), now_us())
        stored = chunks.finish()
        staged: list[Staged] = [staged for sink in self._sinks for staged in sink.finish()]
        self._reporter.send(now_us(), exhausted=self.has_sources and self.exhausted)
        self.version = (ticket.token, ticket.group, ticket.groups)
        return Description(
            self.stage,
            self._index,
            ticket.token,
            stored,
            self._outlet.sent(),
            self._intake.consumed(),
            tuple(staged),
            dict(self._reporter.counts),
            self.exhausted,
        )

    @property
    def has_sources(self) -> bool:
        return bool(self._sources)

    @property
    def exhausted(self) -> bool:
        return self._sources.exhausted

    def close(self) -> None:
        for operator in self._operators.values():
            operator.close()
        if self._chunks is not None:
            self._chunks.close()

    def _swapped(self) -> list[tuple[str, Pending]]:
        return [(id, store.swap()) for id, (_, store) in self._stores.items()]

    def _dirty_bytes(self) -> int:
        return sum(store.dirty_bytes() for _, store in self._stores.values())

    def _over(self, polling: bool) -> bool:
        """Whether nothing more is to be read in this epoch."""
        eager = self.plan.eager
        return (self._input_over and (eager or not polling)) or (eager and self._intake.ended)

    def _turn_over(self, busy: bool, rows: int) -> bool:
        """Whether a source has read enough for one micro-batch, or all of a batch."""
        if self.plan.settings.mode == "batch":
            return not busy and self.exhausted
        return not busy or rows >= _BUSY_ROWS_PER_TURN

    def _wait_s(self, polling: bool) -> float:
        now = now_us()
        due = [self._outlet.due_us(), *(operator.next_clock_us() for operator in self._operators.values())]
        waits = [_IDLE_WAIT_US, *(at_us - now for at_us in due if at_us is not None)]
        if polling and (poll_us := self._sources.wait_us(now, self._outlet.patience_us)) is not None:
            waits.append(poll_us)
        return max(min(waits), 0) / 1e6

    def _tick(self) -> None:
        now = now_us()
        for operator in self._operators.values():
            operator.on_clock(now)
        self._outlet.look(now, from_source=self.has_sources)
        chunks = self._chunks
        if chunks is not None and chunks.look(now) and chunks.due(now, self._dirty_bytes()):
            chunks.write(self._swapped(), now)
        if now - self._listened_us > _LISTEN_EVERY_US:
            self._listened_us = now
            for message in self._control.poll():
                self._obey(message)
        ended = self.has_sources and self.exhausted and not self._told_end
        if ended or self._reporter.due(now):
            self._told_end = self._told_end or ended
            self._reporter.send(now, exhausted=self.has_sources and self.exhausted)

    def _obey(self, message: ToWorker) -> None:
        """Settings from the driver.

        What was ordered in an attempt before may still lie in the channel; it was for another layout, perhaps.
        """
        if isinstance(message, Ordered):
            if self._ticket is not None and message.token == self._ticket.token:
                self._outlet.obey(message.orders)
                self._scheduler.obey(message.orders)
        elif isinstance(message, Fenced):
            raise FencedError(message.why)

    def _tell_rows(self, step: str, rows: list[dict[str, Any]]) -> None:
        self._control.tell(RowsShown(step, rows))
