"""The subtask: one actor loop over {input, control, flush timer, cuts}, for one attempt at a time.

It owns the operators of its stage, the receiving ends of the edges that come in and the sending
ends of those that leave. It never blocks in the input, which a reader thread puts into the inbox, nor on a disk, which
is the chunk writer's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import pyarrow as pa

from headrace.errors import FencedError, ProtocolError
from headrace.runtime.build import build_stage
from headrace.runtime.clock import now_us
from headrace.runtime.controlend import Control
from headrace.runtime.cutmaking.copying import Near, feeder_of, load_nearest
from headrace.runtime.cutmaking.cuts import Cuts
from headrace.runtime.cutmaking.readiness import Readiness
from headrace.runtime.cutmaking.sourceorders import SourceOrders
from headrace.runtime.messages import (
    CutAsked,
    CutOrdered,
    Fenced,
    Final,
    GoOn,
    Logged,
    Ordered,
    Prepare,
    Ready,
    ToWorker,
)
from headrace.runtime.operators.sinks import DeadLetters
from headrace.runtime.ownership import Table
from headrace.runtime.plan import JobPlan, Ticket
from headrace.runtime.reporting import Reporter
from headrace.runtime.scheduling.scheduler import Scheduler
from headrace.runtime.wire.channelmeter import Stamp
from headrace.runtime.wire.inbox import End, Inbox, Row
from headrace.state.copies.nearest import NOTHING_LOADED, Loading
from headrace.state.durable.changes import Store
from headrace.state.durable.loading import read_manifest
from headrace.state.durable.storage import LocalStorage, Storage
from headrace.tokens import Token

_BUSY_ROWS_PER_TURN = 1_000_000
_IDLE_WAIT_US = 50_000
_LISTEN_EVERY_US = 20_000
_HANDOVER_WAIT_US = 2_000
"""While records wait for slices that are on their way."""


class Subtask:
    """One subtask's operators and state.

    It stays in its worker's memory between batches. ``version`` is the cut and the slices whose state it holds since the
    cut that ended its last batch; only a ticket with just that base and those slices may reuse it.
    """

    def __init__(self, plan: JobPlan, stage: int) -> None:
        self.plan, self.stage = plan, stage
        self.version: tuple[Token | None, tuple[int, ...]] | None = None
        letters, self._stamp = DeadLetters(plan.graph), Stamp()
        built = build_stage(plan, stage, letters.take if plan.graph.letters else None, self._stamp)
        self._operators, self._sources = built.operators, built.sources
        self._intake, self._outlet = built.intake, built.outlet
        self._scheduler = Scheduler(plan, stage, self._operators)
        self._reporter = Reporter(
            plan, stage, self._operators, built.guards, self._intake, self._outlet, self._scheduler, self._stamp
        )
        self._stores: dict[str, tuple[str, Store]] = {
            f"{name}#{part}" if part else name: (name, store)
            for name, operator in self._operators.items()
            for part, store in operator.stores().items()
        }
        stores = {id: store for id, (_, store) in self._stores.items()}
        self._cuts = Cuts(plan, stage, built, letters, self._scheduler, self._reporter, stores)
        self._inbox: Inbox | None = None
        self._listened_us = 0

    def begin(self, index: int, ticket: Ticket, control: Control, near: Near | None = None) -> Loading:
        """Take part in an attempt: load the slices of its base, unless they are in memory already."""
        self._index, self._ticket, self._control = index, ticket, control
        self._orders, self._readiness = SourceOrders(ticket.first), Readiness()
        self._told_end = self._input_over = self._ended = False
        self._polling, self._turn_rows = self.has_sources, 0
        self._stamp.offset_us = control.offset_us()
        self._reporter.begin(index, ticket.attempt, control)
        storage = LocalStorage(self.plan.checkpoint / "headrace")
        held = self._held(ticket)
        loading = self._load(ticket, storage, near, held)
        for operator in self._operators.values():
            operator.begin()
        self._outlet.begin(index, ticket)
        self._intake.begin(index, ticket.first)
        feeder = feeder_of(storage, ticket, near, {id: held[step] for id, (step, _) in self._stores.items()})
        self._cuts.begin(index, ticket, control, storage, self._wake, feeder, near)
        return loading

    def run(self, inbox: Inbox) -> Iterator[pa.RecordBatch]:
        """Work until the cut that ends the batch has been made; yields rows for the next stage. Then call ``settle``."""
        scheduler, busy, self._inbox = self._scheduler, self._polling, inbox
        scheduler.begin(inbox, self._outlet.orders)
        with scheduler.directly():
            self._intake.resume()
        while not self._ended:
            self._read(inbox, 0.0 if busy or scheduler.waiting else self._wait_s())
            busy = self._may_poll and self._poll()  # before the flush: what is due leaves with the buffer that is
            scheduler.turn()
            if not scheduler.waiting and (cut := self._due_cut()) is not None:
                yield from self._cut(*cut)
            else:
                self._tick()
                yield from self._outlet.flush()

    def settle(self, inbox: Inbox) -> None:
        """Wait until the last cut is durable and described and, in real-time mode, in the version log."""
        handover = self._cuts.handover
        while not (handover.settled if self.plan.eager else handover.durable):
            self._expect_end(inbox, _LISTEN_EVERY_US / 1e6)
            self._listen()
            handover.look(now_us())
        self._cuts.close()

    def await_end(self, inbox: Inbox, timeout_s: float) -> None:
        """Wait until Spark has closed the input; nothing new may come any more."""
        deadline = time.monotonic() + timeout_s
        while not self._input_over:
            self._expect_end(inbox, 0.5)
            if not self._input_over and time.monotonic() > deadline:
                raise ProtocolError(f"stage {self.stage}: the input did not end although its senders had")

    @property
    def has_sources(self) -> bool:
        return bool(self._sources)

    @property
    def exhausted(self) -> bool:
        return self._sources.exhausted

    def close(self) -> None:
        """The subtask will not work again."""
        for operator in self._operators.values():
            operator.close()
        self._intake.give_up()
        self._cuts.close()

    def _held(self, ticket: Ticket) -> dict[str, list[int]]:
        """The slices, or partitions, that each step has here."""
        return {
            name: [number for number in ticket.mine if number in operator.parts(self.plan.slices)]
            for name, operator in self._operators.items()
        }

    def _load(self, ticket: Ticket, storage: Storage, near: Near | None, held: Mapping[str, list[int]]) -> Loading:
        fresh, self.version = self.version is None, None  # not a version again before the cut that ends the batch
        if not fresh:
            return NOTHING_LOADED
        stores = {id: (store, held[step]) for id, (step, store) in self._stores.items()}
        loading = load_nearest(storage, ticket, near, stores)
        if ticket.base is not None:
            self._intake.restore(read_manifest(storage, ticket.entry, ticket.base).watermarks)
        for name, operator in self._operators.items():
            operator.restored(held[name])
        return loading

    def _read(self, inbox: Inbox, wait_s: float) -> None:
        """Take what has come; all of it where operators have queues. What a cut has held goes first."""
        while self._intake.alignment.held and self._intake.take_held():
            if not self._scheduler.queued:
                return
        item = inbox.get(wait_s)
        self._readiness.took(item.queued_us if isinstance(item, Row) else None, now_us())
        while isinstance(item, Row):
            self._intake.take(item)
            inbox.done(item)  # also of one that is held: the mark that is missing may be behind it
            item = inbox.get(0.0) if self._scheduler.queued else None
        if isinstance(item, End):
            self._take_end(item)
            if self.stage and self.plan.eager:
                missing = self._intake.alignment.missing
                raise ProtocolError(f"stage {self.stage}: the input ended before senders {missing} did")

    def _expect_end(self, inbox: Inbox, wait_s: float) -> None:
        item = inbox.get(wait_s)
        if isinstance(item, Row):
            inbox.done(item)
            self._intake.refuse(item)
        elif isinstance(item, End):
            self._take_end(item)

    def _take_end(self, end: End) -> None:
        if end.error is not None:
            raise ProtocolError(f"the input broke off: {end.error}") from end.error
        self._input_over = True  # sources read on although Spark has no rows for them: the driver says when it is over

    @property
    def _may_poll(self) -> bool:
        return self._polling and self._orders.may_poll(self._outlet.sent_bytes, now_us())

    def _poll(self) -> bool:
        """Read from the sources; whether there is more at once."""
        eager, wanted = self.plan.eager, self.plan.settings.poll_rows
        rows = self._scheduler.poll_rows(min(wanted, self._sources.size.rows) if eager else wanted)
        if not rows:
            return False
        read = self._sources.poll(rows)
        self._turn_rows += rows if read else 0
        if not eager and self._turn_over(read > 0):
            self._polling = False
        return read >= rows or (read > 0 and not (eager and self._sources.paced))

    def _turn_over(self, busy: bool) -> bool:
        """Whether a source has read enough for one micro-batch, or all of a batch."""
        if self.plan.settings.mode == "batch":
            return not busy and self.exhausted
        return not busy or self._turn_rows >= _BUSY_ROWS_PER_TURN

    def _due_cut(self) -> tuple[bool, int, Mapping[int, Table], Mapping[str, str]] | None:
        """Whether the cut that can be made now ends the batch, since when it is known, and who owns what, and looks it up
        where, after it; None if there is none.
        """
        if not self.plan.eager:
            over = not self._polling or self._orders.due(now_us()) is not None
            return (True, now_us(), {}, {}) if self._input_over and over else None
        if self._cuts.waits:
            return None
        if self.stage:
            mark = self._intake.alignment.agreed
            return (mark.end, self._intake.marked_us, mark.tables, mark.editions) if mark is not None else None
        order = self._orders.due(now_us())
        return (order.end, self._orders.at_us, order.tables, order.editions) if order is not None else None

    def _cut(
        self, end: bool, began_us: int, tables: Mapping[int, Table], editions: Mapping[str, str]
    ) -> Iterator[pa.RecordBatch]:
        token = self._cuts.next
        yield from self._cuts.make(end=end, began_us=began_us, tables=tables, editions=editions)
        self._orders.made(token, self._outlet.sent_bytes)
        if end:
            self._ended, self.version = True, (token, self._cuts.holdings.mine)
            self._reporter.send(now_us(), exhausted=self.has_sources and self.exhausted)

    def _wait_s(self) -> float:
        now = now_us()
        due = [self._outlet.due_us(), *(operator.next_clock_us() for operator in self._operators.values())]
        idle_us = _IDLE_WAIT_US if self.stage else _LISTEN_EVERY_US  # orders come to sources
        idle_us = _HANDOVER_WAIT_US if self._cuts.waits else idle_us
        waits = [idle_us, *(at_us - now for at_us in due if at_us is not None)]
        if self._orders.ordered is not None:
            waits.append(self._orders.at_us - now)
        if self._may_poll and (poll_us := self._sources.wait_us(now, self._outlet.patience_us)) is not None:
            waits.append(poll_us)
        return max(min(waits), 0) / 1e6

    def _tick(self) -> None:
        now = now_us()
        for operator in self._operators.values():
            operator.on_clock(now)
        self._outlet.look(now, from_source=self.has_sources)
        self._cuts.look(now)
        if self._cuts.waits or now - self._listened_us > _LISTEN_EVERY_US:
            self._listened_us = now
            self._listen()
        waiting, held = self._scheduler.waiting, bool(self._intake.alignment.held)
        unready = held or not self._cuts.turning.ready
        if (token := self._readiness.answer(now, waiting=waiting, held=unready)) is not None:
            self._control.tell(Ready(self.stage, self._index, token))
        ended = self.has_sources and self.exhausted and not self._told_end
        if ended or self._reporter.due(now):
            self._told_end = self._told_end or ended
            self._reporter.send(now, exhausted=self.has_sources and self.exhausted)

    def _listen(self) -> None:
        for message in self._control.poll():
            self._obey(message)

    def _obey(self, message: ToWorker) -> None:
        """What the driver says. Messages of another attempt may still lie in the channel; they are for nobody."""
        match message:
            case Ordered(attempt=attempt, orders=orders) if attempt == self._ticket.attempt:
                self._outlet.obey(orders)
                self._scheduler.obey(orders)
            case CutAsked(token=token, editions=editions):
                self._readiness.ask(token)
                self._cuts.turning.prepare(editions)
            case CutOrdered():
                self._orders.order(message, now_us(), self._stamp.offset_us)
            case GoOn(token=token):
                self._orders.go_on(token)
            case Logged(token=token):
                self._orders.go_on(token)
                self._cuts.handover.logged(token)
            case Prepare(attempt=attempt) if attempt == self._ticket.attempt:
                self._cuts.arrivals.prepare(message)
            case Final(token=token) if token.by == self._ticket.attempt:
                self._cuts.final(message)
            case Fenced(why=why):
                raise FencedError(why)

    def _wake(self) -> None:
        if self._inbox is not None:
            self._inbox.wake()
