"""A toy subtask: real alignment and orders of sources, around states that are counts.

Its life is that of ``runtime.attempt``: HELLO, PLAN, load, LOADED, GO, work with cut after cut, the end. What a thread or
a loop does in the product is an item in a lane here, so that anything may happen in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.connect.sink import Staged
from headrace.errors import HeadraceError, ProtocolError
from headrace.measure.backlog import Backlog
from headrace.measure.report import Report
from headrace.runtime.cutmaking.copying import NearReader, copier_of
from headrace.runtime.messages import (
    Aligned,
    CutAsked,
    CutOrdered,
    Described,
    Failed,
    Fenced,
    Final,
    Go,
    GoOn,
    Hello,
    Inventory,
    Loaded,
    Logged,
    Planned,
    Prepare,
    Ready,
    Reported,
    ToDriver,
    ToWorker,
)
from headrace.runtime.ownership import Table
from headrace.runtime.plan import Description, Ticket
from headrace.runtime.wire.marks import CutMark
from headrace.state.copies.feeding import Copier
from headrace.state.copies.nearest import NOTHING_LOADED, Loading
from headrace.state.durable.manifest import SliceKey
from headrace.state.durable.segments import StoredChange
from headrace.tokens import Token
from simulated.flow import Row
from simulated.job import KEYS, SLICES, STEPS
from simulated.lanes import Lane, Violation
from simulated.stores import Swapped, ToyStore, read_contents, write_blocks
from simulated.taking import Taking

if TYPE_CHECKING:
    from simulated.driver import Driver
    from simulated.query import Query
    from simulated.world import World

EDGE = 0
_REPEAT_S, _JOIN_S, _REPORT_S = 1.0, 4.0, 1.0
_BACKLOG = Backlog("direct", {}, 0, 0, 0.0, 0, 0.0, {})
Kept = tuple[Token | None, tuple[int, ...], ToyStore]
"""The version, and which slices."""


class Process:
    """A worker process with its control channel: what survives between batches is its memory, and what it was told.

    ``kept`` are one stage's slices of one version; ``early`` is what came while nobody listened.
    """

    def __init__(self, world: World, driver: Driver) -> None:
        self.world, self.name = world, world.new_name()
        self.frozen = self.dead = False
        self.up, self.down = Lane(world, driver), Lane(world, self)
        self.kept: Kept | None = None
        self.node = world.dice.choice(world.nodes) if world.nodes else None
        self.early: list[ToWorker] = []
        self.subtask: Subtask | None = None

    @property
    def is_gone(self) -> bool:
        """Whether its executor is no more."""
        return self.node is not None and self.node.dead

    def forget(self) -> None:
        """As ``ChannelClient.begin``: what has come so far was for a task before; some may still be on its way."""
        self.early.clear()
        for _ in range(int((len(self.down.items) + 1) * self.world.random() ** 0.1)):
            self.down.items.popleft()


class Subtask(Taking):
    """One subtask in one batch of a query."""

    frozen = False

    def __init__(self, query: Query, process: Process, stage: int, index: int) -> None:
        self.query, self.world, self.process = query, query.world, process
        process.forget()
        process.subtask = self
        self.stage, self.index, self.name = stage, index, process.name
        self.state = "joining"
        self.turns, self.writer, self.loading, self.copying = (Lane(self.world, self) for _ in range(4))
        self.copier: Copier | None = None
        self.shape = self.world.shape
        self.last = stage == len(query.subtasks) - 1
        self.described: Description | None = None
        self.ended = self.durable = self.reporting = False
        inventory = Inventory(*process.kept[:2]) if process.kept is not None else None
        node = (process.node.node, process.node.name) if process.node is not None else (None, None)
        self.tell(Hello(stage, index, query.number, query.batch, inventory, "host", 1, 2, *node))
        self._time_out("joining")

    @property
    def dead(self) -> bool:
        return self.state in ("dead", "done")

    @property
    def now_us(self) -> int:
        """Clocks differ, more than cuts are ordered ahead."""
        return int((self.world.now + 0.05 * self.index) * 1e6)

    def tell(self, message: ToDriver) -> None:
        self.process.up.push(self.query.driver.hear, self.process, message)

    def receive(self, message: ToWorker) -> None:
        """What the driver says; what comes while something else is awaited is kept, as in ``ChannelClient.wait``."""
        if self.is_for_another(message):
            return
        match message:
            case Fenced(why=why):
                self.fail("FencedError", why)
            case Planned(ticket=ticket) if self.state == "joining":
                self.state = "loading"
                self.turns.push(self.load, ticket)
            case Go(attempt=attempt) if self.state == "ready" and attempt == self.ticket.attempt:
                self._listen()
            case _ if self.state in ("joining", "loading", "ready", "done"):
                self.process.early.append(message)
            case CutAsked(token=token) if self.state == "running":
                self.turns.push(self.answer, token)
            case CutOrdered() if self.state == "running":
                self.orders.order(message, 0, 0)
                self.turns.push(self.turn)
            case GoOn(token=token) if self.state == "running":
                self.orders.go_on(token)
                self.turns.push(self.turn)
            case Logged(token=token) if self.state in ("running", "settling"):
                self.orders.go_on(token)
                self.turns.push(self.turn)
                if self.described is not None and self.described.token == token:
                    self.described = None
                    self._settle()
            case Prepare() if self.state == "running":
                self.prepare(message)
            case Final() if self.state == "running":
                self.final(message)

    def is_for_another(self, message: ToWorker) -> bool:
        """As in ``ChannelClient``: a task of another query was meant."""
        return isinstance(message, (Planned, Fenced)) and message.query != self.query.number

    def load(self, ticket: Ticket) -> None:
        """Begin an attempt: from memory if it is just the version asked for, else from the log."""
        self.ticket, self.next = ticket, ticket.first
        machine = self.query.driver.machine
        if ticket.attempt == machine.attempt and machine.phase == "loading":  # who has an old one will be told so
            self.world.truth.planned(self, ticket)
        kept, self.process.kept, loading = self.process.kept, None, NOTHING_LOADED
        if kept is not None and self.reusable(kept):
            self.store = kept[2]
        else:
            self.store = ToyStore(STEPS[self.stage])
            try:
                loading = self._load(ticket)
            except (OSError, HeadraceError) as error:
                self.world.truth.not_loaded(self, error)
                return self.fail("Exception", f"cannot load: {error}")
        self.begin(ticket)
        self.state = "ready"
        self.tell(Loaded(self.stage, self.index, ticket.attempt, loading))
        self._begin_copying(ticket)
        if self.stage:
            self._listen()
        else:
            self._time_out("ready")
        return None

    def _listen(self) -> None:
        """Work begins; messages of other attempts may lie in the channel."""
        self.state = "running"
        self.turns.push(self.turn)
        early, self.process.early = self.process.early, []
        for message in early:
            self.receive(message)

    def reusable(self, kept: Kept) -> bool:
        return kept[:2] == (self.ticket.base, self.ticket.mine)

    def _load(self, ticket: Ticket) -> Loading:
        """As ``load_nearest``."""
        reader = NearReader(self.world.disk, ticket, self.process.node, read_contents)  # type: ignore[arg-type]
        if ticket.base is not None:
            manifest = self.world.manifest_at(ticket.entry, ticket.base)
            for (step, slice), version in manifest.slices.items():
                if step == self.store.step and slice in ticket.mine:
                    self.store.load(slice, reader(step, slice, version), version.digest)
        return reader.close()

    def _begin_copying(self, ticket: Ticket) -> None:
        """As ``feeder_of``, in a lane."""
        if self.process.node is not None:
            self.copier = copier_of(self.world.disk, ticket, self.process.node, self.keys)  # type: ignore[arg-type]
            self.copying.push(self.copier.tell)

    @property
    def keys(self) -> list[SliceKey]:
        return [(self.store.step, slice) for slice in self.holdings.mine]

    def hold_also(self) -> None:
        """As ``Feeder.own``."""
        if self.copier is not None:
            self.copier.keys = self.keys
            self.copying.push(self._tell_all, self.copier)

    def _tell_all(self, copier: Copier) -> None:
        copier.tell(again=True)

    # Sources.

    def turn(self) -> None:
        """One turn of a source's loop: make the cut that was ordered, or read."""
        if self.state != "running" or self.stage or self.ended:
            return
        if self.orders.ordered is not None:
            self.make_cut(self.orders.ordered.end, self.orders.ordered.tables)
        elif self.orders.may_poll(self.sent_bytes, 0):
            self.poll()
        else:
            return
        if not self.turns.items:
            self.world.after(0.8 * self.world.random(), self.again)

    def answer(self, token: Token) -> None:
        """Who has something queued or held says READY later."""
        if self.state != "running" or token != self.next:
            return
        if self.queue or self.alignment.held:
            self.world.after(0.4 * self.world.random(), self.turns.push, self.answer, token)
        else:
            self.tell(Ready(self.stage, self.index, token))

    def again(self) -> None:
        if not self.turns.items:
            self.turns.push(self.turn)

    def report(self) -> None:
        """Told again and again, as reports are."""
        if self.reporting or self.dead or self.ended:
            return
        self.reporting = True
        report = Report(f"{self.index}", self.world.now, 0, (), ())
        self.tell(
            Reported(
                self.stage, self.index, self.ticket.attempt, 1, 0, 0.0, 0, True, {}, (), report, _BACKLOG, {}
            )
        )  # fmt: skip
        self.world.after(_REPORT_S, self._report_again)

    def _report_again(self) -> None:
        self.reporting = False
        self.report()

    # What comes in.

    def take(self, sender: int, row: Row) -> None:
        """As ``Intake.take``: serve a row, or hold it."""
        if self.state != "running" or self.ended:
            self.fail("ProtocolError", f"{self.place} got {row} of {sender} while {self.state}")
        elif sender in self.alignment.held:
            self.alignment.hold(sender, (sender, row), 1)
        else:
            self.serve(sender, row)

    def serve(self, sender: int, row: Row) -> None:
        for frame in row:
            if frame[0] == "mark":
                self.marked(sender, frame[1])
            elif (now := self.sift(sender, frame)) is not None:
                self.hand_on(sender, now)

    def marked(self, sender: int, mark: CutMark) -> None:
        try:
            if mark.token != self.next:
                raise ProtocolError(f"{self.place}: {sender} marked {mark.token}; the next cut is {self.next}")
            self.alignment.mark(sender, mark)
        except ProtocolError as error:
            self.fail("ProtocolError", str(error))
            return
        if self.alignment.aligned:
            self.turns.push(self.aligned)

    def aligned(self) -> None:
        mark = self.alignment.agreed
        if mark is not None and self.state == "running" and not self.waits:
            self.make_cut(mark.end, mark.tables)

    def take_held(self) -> None:
        """As ``Subtask._read``: what a cut has held goes first, one row a turn."""
        held = self.alignment.take() if self.state == "running" else None
        if held is not None:
            self.serve(*held)
            if self.alignment.held:
                self.turns.push(self.take_held)

    # Cuts.

    def make_cut(self, end: bool, tables: Mapping[int, Table]) -> None:
        """As ``Cuts.make``: what came before is processed and leaves, the mark behind it, and what changed is set aside."""
        token = self.next
        self.drain()
        self.leave(CutMark(token, end, {}, {EDGE: self.output_watermark()}, dict(tables)))
        self.route(tables)
        self.set_aside(token)
        self.change_hands(token, tables)
        self.tell(Aligned(self.stage, self.index, token))
        if self.stage:
            marks = self.alignment.made()
            if len({marked.end for marked in marks.values()}) > 1:
                self.fail("ProtocolError", f"{self.place}: senders do not agree whether {token} is the end")
            for sender, marked in marks.items():
                self.known[sender] = marked.watermarks[EDGE]
            if self.alignment.held:
                self.turns.push(self.take_held)
        self.orders.made(token, self.sent_bytes)
        if end:
            self.ended, self.state = True, "settling"

    def drain(self) -> None:
        while self.queue:
            self.consume(*self.queue.popleft())

    def leave(self, mark: CutMark) -> None:
        self.punctuate(("mark", mark))

    def route(self, tables: Mapping[int, Table]) -> None:
        """What is put in from now on goes to who owns it after the cut."""
        self.table = tables.get(self.stage + 1, self.table)
        if self.receivers:
            self.world.truth.routes(self.next.by.cut(self.next.cut + 1), self.stage + 1, self.table)

    def set_aside(self, token: Token) -> None:
        swapped = self.store.swap()
        me, rows = self.index, self.rows
        sent = {EDGE + self.stage: {me: self.sent}} if self.receivers else {}
        put = {EDGE + self.stage: {me: self.put}} if self.receivers else {}
        consumed = {EDGE + self.stage - 1: self.consumed} if self.stage else {}
        stood = {EDGE + self.stage - 1: self.stood} if self.stage else {}
        watermarks = {EDGE: self.watermark} if self.stage else {}
        draft = Description(
            self.stage, me, token, (), sent, consumed, put, stood, watermarks, (), {}, self.exhausted, 0.0, 0.0, 0, {}
        )
        self.sent, self.consumed, self.put, self.stood, self.rows = [0] * SLICES, {}, 0, {}, []
        self.next = token.by.cut(token.cut + 1)
        self.described, self.durable = None, False
        self.make_durable(draft, swapped, rows)

    def make_durable(self, draft: Description, swapped: Swapped, rows: list[Any]) -> None:
        """Blocks, staged rows, and only then the description."""
        self.writer.push(self.write, draft.token, swapped)
        if rows:
            self.writer.push(self.stage_rows, draft.token, rows)
        self.writer.push(self.describe, draft, rows)

    def chunk(self) -> None:
        """Between two cuts, when there is much to write."""
        if self.world.random() < self.world.faults.chunk and self.state == "running" and self.store.dirty:
            self.writer.push(self.write, self.next, self.store.swap())

    def write(self, token: Token, swapped: Swapped) -> None:
        if self.world.fails(self.world.faults.write):
            return self.fail("Exception", "OSError: no space left")
        self.serial += 1
        changes = swapped()
        if changes:
            name = f"segments/{token}-s{self.stage:02d}-{self.index:04d}-{self.serial:02d}.seg"
            stored = write_blocks(self.world.disk, name, changes)  # type: ignore[arg-type]
            self.chunks.setdefault(token, []).extend(stored)
            if self.copier is not None:
                self.copying.push(self._copy, self.copier, stored)
        return None

    def _copy(self, copier: Copier, stored: list[StoredChange]) -> None:
        copier.tell()
        copier.copy(stored)

    def stage_rows(self, token: Token, rows: list[Any]) -> None:
        self.world.sinks.stage(token, self.index, rows)

    def describe(self, draft: Description, rows: list[Any]) -> None:
        changes, sinks = tuple(self.chunks.pop(draft.token, ())), self.world.sinks
        staged = [Staged(step, sinks.path(step, draft.token, self.index), len(rows)) for step in sinks.steps if rows]
        self.described = Description(
            draft.stage, draft.index, draft.token, changes, draft.sent, draft.consumed, draft.put, draft.stood,
            draft.watermarks, tuple(staged), {}, draft.exhausted, 0.0, 0.0, 0, {},
        )  # fmt: skip
        self.durable = True
        self.world.truth.describes(self.described)
        self._tell_again(self.described)

    def _tell_again(self, described: Description) -> None:
        if self.described is described and not self.dead:
            self.tell(Described(described))
            self.world.after(_REPEAT_S, self._tell_again, described)

    def _settle(self) -> None:
        """The last cut is in the log: the subtask is over, and its memory is that version."""
        if self.state == "settling" and self.durable:
            self.state = "done"
            made = self.next.by.cut(self.next.cut - 1)
            self.process.kept = (made, self.holdings.mine, self.store)
            self.query.over(self)

    # The end.

    def _time_out(self, state: str) -> None:
        self.world.after(_JOIN_S, self._give_up, state)

    def _give_up(self, state: str) -> None:
        if self.state == state:
            self.fail("ChannelError", "the driver did not answer")

    def fail(self, error: str, text: str) -> None:
        """Its last words, and with it all of the query. Nothing that a world does may break the protocol."""
        if error == "ProtocolError":
            raise Violation(f"protocol: {text}")
        if not self.dead:
            self.tell(Failed(self.query.number, (self.stage, self.index), error, text, None))
            self.query.fail(text)


assert KEYS // 2 <= SLICES
