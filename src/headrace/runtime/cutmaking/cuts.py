"""How one subtask makes a cut: all that came before it leaves, behind it the mark, and what changed is set aside.

Nothing is taken in between, so what is set aside is just what was sent, shown and marked before. Nothing waits for a disk
either: what was set aside becomes durable while the next interval goes on (``runtime.cutmaking.handover``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from headrace.runtime.build import BuiltStage
from headrace.runtime.clock import now_us
from headrace.runtime.controlend import Control
from headrace.runtime.cutmaking.arrivals import Arrivals, Loader
from headrace.runtime.cutmaking.copying import Near, NearSlices
from headrace.runtime.cutmaking.handover import Handover
from headrace.runtime.cutmaking.turning import Turning
from headrace.runtime.messages import Adopted, Aligned, Final, Prepared, RowsShown
from headrace.runtime.operators.sinks import DeadLetters
from headrace.runtime.ownership import Holdings, Table, owned
from headrace.runtime.plan import Description, JobPlan, Ticket
from headrace.runtime.reporting import Reporter
from headrace.runtime.scheduling.scheduler import Scheduler
from headrace.state.copies.feeding import Feeder
from headrace.state.durable.changes import Pending, Store
from headrace.state.durable.chunks import ChunkWriter
from headrace.state.durable.storage import Storage
from headrace.tokens import Token

_AHEAD_EVERY_US = 100_000
"""How often some of what a cut will need is set aside before it."""
_ADOPT_US = 4_000
"""For how long slices are put into stores before records of others get their turn."""


class Cuts:
    """Makes the cuts of one subtask. ``next`` is the one that follows: what is written and shown until then is named by
    it. ``stores`` are all its state, by the names they have in manifests.
    """

    def __init__(
        self, plan: JobPlan, stage: int, built: BuiltStage, letters: DeadLetters, scheduler: Scheduler,
        reporter: Reporter, stores: Mapping[str, Store],
    ) -> None:  # fmt: skip
        self._plan, self._stage = plan, stage
        self._operators, self._sources = built.operators, built.sources
        self._intake, self._outlet = built.intake, built.outlet
        self._letters, self._sinks = letters, (*built.sinks, *letters.sinks)
        self._scheduler, self._reporter, self._stores = scheduler, reporter, stores
        self.turning = Turning(built.operators.values())
        self._handover: Handover | None = None
        self._ahead_us = 0
        self._feeder: Feeder | None = None
        self._arrivals: Arrivals[pa.RecordBatch] | None = None
        self.holdings = Holdings(())
        self._given_us = 0
        self._told: Adopted | None = None

    def begin(
        self, index: int, ticket: Ticket, control: Control, storage: Storage, wake: Callable[[], None],
        feeder: Feeder | None = None, near: Near | None = None,
    ) -> None:  # fmt: skip
        """A new attempt. ``wake`` is called by another thread when something has become durable, or could not.

        ``feeder`` copies what is durable to other nodes; ``near`` is the own one.
        """
        self.close()
        self._index, self._control, self.next = index, control, ticket.first
        settings, self._feeder = self._plan.settings, feeder
        written = feeder.offer if feeder is not None else lambda stored: None
        chunks = ChunkWriter(storage, self._stem(), settings.chunk_s, settings.chunk_bytes, now_us(), wake, written)
        self._handover = Handover(control, chunks)
        self._arrivals = Arrivals(NearSlices(storage, near, ticket.nodes), self._stores, Loader(wake))
        self.holdings, self._told = Holdings(ticket.mine), None
        self.turning.begin(storage, ticket.editions)
        self._open_sinks()

    @property
    def handover(self) -> Handover:
        assert self._handover is not None, "an attempt has begun"
        return self._handover

    @property
    def arrivals(self) -> Arrivals[pa.RecordBatch]:
        assert self._arrivals is not None, "an attempt has begun"
        return self._arrivals

    @property
    def waits(self) -> bool:
        """Whether slices that the last cut gave to this subtask are still on their way: until then none is made."""
        return self.holdings.given is not None

    def make(
        self, *, end: bool, began_us: int, tables: Mapping[int, Table], editions: Mapping[str, str]
    ) -> Iterator[pa.RecordBatch]:
        """Make the next cut; yields the rows that leave. ``began_us``: since when this subtask has known of it. ``tables``
        and ``editions`` hold from then on.
        """
        now, token = now_us(), self.next
        for operator in self._operators.values():
            operator.on_clock(now)  # how far the sources' time has come, before the last buffers leave
        self._scheduler.drain()
        if not self._plan.eager:
            self._intake.close()
        with self._scheduler.directly():
            for operator in self._operators.values():
                self._intake.advance(operator)
                operator.on_cut(end=end)
        yield from self._outlet.cut(token, end=end, tables=tables, editions=editions)
        self._letters.write(now)  # last: combining before the shuffle can skip records too
        hand_over = self._set_aside(began_us)
        if (table := tables.get(self._stage)) is not None:
            self._change_hands(token, table)
        self.turning.turn_to(editions)
        self._control.tell(Aligned(self._stage, self._index, token))
        self._intake.made(token)
        hand_over()  # last: who writes would take the interpreter from who has to tell others

    def final(self, final: Final) -> None:
        """What slices are that a cut gave to this subtask. If they were adopted before, nobody has heard of it."""
        if self._told is not None and self._told.token == final.token:
            self._control.tell(self._told)
        else:
            self.arrivals.final(final)

    def look(self, now: int) -> None:
        """Between two cuts: describe the last one when it is durable, and write what has become too much to wait."""
        handover = self.handover
        handover.look(now)
        if now - self._ahead_us >= _AHEAD_EVERY_US and self._plan.eager:
            self._ahead_us = now
            for store in self._stores.values():
                store.copy_ahead()
        if handover.chunks.look(now) and handover.chunks.due(now, self._dirty_bytes()):
            handover.chunks.write(self._swapped(), now)
        if (prepared := self.arrivals.prepared()) is not None:
            self._control.tell(Prepared(self._stage, self._index, prepared.attempt, prepared.version))
        if (given := self.holdings.given) is not None and self._adopt_some(given):
            self._adopted(given, now_us())

    def _adopt_some(self, given: Token) -> bool:
        """Put slices that have come into their stores, for as long as other records may wait; whether all are in."""
        until_us = now_us() + _ADOPT_US
        while self.arrivals.here(given):
            if self.arrivals.adopt_one(given):
                return True
            if now_us() > until_us:
                break
        return False

    def close(self) -> None:
        """Stop writing."""
        if self._handover is not None:
            self._handover.chunks.close()
        if self._feeder is not None:
            self._feeder.close()
        if self._arrivals is not None:
            self._arrivals.close()
        self.turning.close()

    def _set_aside(self, began_us: int) -> Callable[[], None]:
        """What was sent, taken in and changed since the last cut; hands it over when called."""
        sent, consumed = self._outlet.take_counts(), self._intake.take_counts()
        swapped, now = self._swapped(), now_us()
        closing = [close for sink in self._sinks if (close := sink.hand_over()) is not None]
        copied = self._feeder.take_counts() if self._feeder is not None else {}
        draft = Description(
            self._stage,
            self._index,
            self.next,
            changes=(),
            sent=sent.items,
            consumed=consumed.items,
            put=sent.records,
            stood=consumed.records,
            watermarks=self._intake.watermarks(),
            staged=(),
            counters=self._reporter.take_counts() | copied,
            exhausted=self._sources.exhausted,
            aligned_ms=(now - began_us) / 1e3,
            worked_ms=0.0,
            written_bytes=0,
            reached=self._intake.reached(),
        )
        self.next = self.next.by.cut(self.next.cut + 1)
        self._open_sinks()
        return lambda: self.handover.cut(draft, swapped, closing, now, self._stem())

    def _change_hands(self, token: Token, table: Table) -> None:
        """What is another's from this cut on is forgotten; what is ours is waited for."""
        if lost := self.holdings.change(token, owned(table, self._index)):
            for operator in self._operators.values():
                operator.give_away(lost)
        self._given_us = now_us()
        self._intake.waitlist.slices = self.holdings.awaited

    def _adopted(self, token: Token, now: int) -> None:
        slices = self.holdings.adopt()
        for operator in self._operators.values():
            operator.adopted(slices)
        self._intake.go_on()
        if self._feeder is not None:
            self._feeder.own([(id, slice) for id in self._stores for slice in self.holdings.mine])
        self._told = Adopted(self._stage, self._index, token, (now - self._given_us) / 1e3)
        self._control.tell(self._told)

    def _open_sinks(self) -> None:
        for sink in self._sinks:
            sink.open(self._plan.checkpoint, self.next, self._index, self._tell_rows)

    def _stem(self) -> str:
        return f"segments/{self.next}-s{self._stage:02d}-{self._index:04d}"

    def _swapped(self) -> list[tuple[str, Pending]]:
        return [(id, store.swap()) for id, store in self._stores.items()]

    def _dirty_bytes(self) -> int:
        return sum(store.dirty_bytes() for store in self._stores.values())

    def _tell_rows(self, step: str, rows: list[dict[str, object]]) -> None:
        self._control.tell(RowsShown(step, rows))
