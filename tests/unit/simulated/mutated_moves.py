"""Rules of moves, taken away: what is held, what is taken, what is told, and until when.

Worlds do not go wrong without some things that are there for speed: READY being waited for, FINAL before LOGGED, an early
FINAL being kept, PREPARE of this attempt only, chains being compared (if the digest does not fit, all is read). Nor without
some that follow from others: tables that the driver takes for its own when the cut is logged and not when it is ordered
(nothing looks at them in between, and an attempt that fails gets new ones); a mark that says "no watermark" while slices are awaited (13: only keyed slices move, and all subtasks of their
stage have come to the same time at a cut).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.driver.protocol.cutting import CutPace
from headrace.driver.protocol.machine import Machine
from headrace.driver.protocol.moving import Moving
from headrace.runtime.cutmaking.arrivals import Arrivals
from headrace.runtime.messages import CutOrdered
from headrace.runtime.wire.waitlist import Waitlist
from headrace.state.durable.manifest import SliceVersion
from simulated import stores
from simulated.mutations import CALM, Patch, mutation
from simulated.stores import ToyStore
from simulated.subtask import Subtask

MOVES = replace(CALM, moves=0.06)
"""Little goes wrong, but slices change hands all the time."""
REWRITTEN = replace(MOVES, chunk=0.3)
"""The same with so many blocks that they are merged again and again."""
LOSSES = replace(MOVES, lose=0.02)
"""The same with messages that do not come."""
COMING_AGAIN = replace(MOVES, repeat=0.5)
"""The same with messages that come again, long afterwards."""
FAILING = replace(MOVES, chaos=0.02, only=("kill workers",), repeat=0.5, survive=1.0)
"""The same with attempts that end, in processes that go on."""
OVER_AND_OVER = replace(FAILING, moves=0.3, repeat=0.9)
"""The same, more of it."""
ENDING = replace(MOVES, chaos=0.02, only=("end the batch",))
"""The same with batches that end."""


@mutation("4.3: tables are in the mark", faults=MOVES)
def tables_over_the_control_channel(patch: Patch) -> None:
    """Who owns what is told when the cut is logged."""
    make, receive = Subtask.make_cut, Subtask.receive

    def without(self: Any, end: bool, tables: Any) -> None:
        self.pending = (self.next, tables)
        make(self, end, {} if self.stage else tables)

    def late(self: Any, message: Any) -> None:
        token, tables = getattr(self, "pending", (None, {}))
        if tables and self.stage and getattr(message, "token", None) == token and self.state == "running":
            self.pending = (None, {})
            self.route(tables)
            self.change_hands(token, tables)
        receive(self, message)

    patch.setattr(Subtask, "make_cut", without)
    patch.setattr(Subtask, "receive", late)


@mutation("12: who gets a slice holds its rows", faults=MOVES)
def rows_not_held(patch: Patch) -> None:
    patch.setattr(Waitlist, "sift", lambda self, end, item: item)


@mutation("12: in sequence", faults=MOVES, seeds=100)
def held_rows_in_any_order(patch: Patch) -> None:
    take = Waitlist.take
    patch.setattr(Waitlist, "take", lambda self: reversed(list(take(self))))


@mutation("12: who gets a slice holds its watermarks", faults=MOVES)
def watermarks_not_held(patch: Patch) -> None:
    def only_rows(self: Any, sender: int, frame: Any) -> Any:
        return self.waitlist.sift(sender, frame) if frame[0] == "rows" else frame

    patch.setattr(Subtask, "sift", only_rows)


@mutation("12: no cut is ordered before what the last one gave is adopted", faults=MOVES)
def ordered_before_adoption(patch: Patch) -> None:
    patch.setattr(Moving, "open", False)


@mutation("12: no cut is made before what the last one gave is adopted", faults=MOVES, seeds=100)
def made_before_adoption(patch: Patch) -> None:
    """By a driver that orders it before, but without tables; else nobody is ever told to make one."""
    tables = Moving.take_tables

    def at_once(self: Any) -> None:
        mark = self.alignment.agreed
        if mark is not None and self.state == "running":
            self.make_cut(mark.end, mark.tables)

    patch.setattr(Moving, "open", False)
    patch.setattr(Moving, "take_tables", lambda self, token: {} if self.token is not None else tables(self, token))
    patch.setattr(Subtask, "aligned", at_once)


@mutation("12: FINAL of this cut", faults=MOVES, seeds=100)
def final_of_any_cut(patch: Patch) -> None:
    patch.setattr(Arrivals, "here", lambda self, token: self._final is not None and self._final[1].done())


@mutation("12: FINAL that comes again changes nothing", faults=COMING_AGAIN, seeds=400)
def finals_taken_again(patch: Patch) -> None:
    final = Arrivals.final

    def anew(self: Any, message: Any) -> None:
        self._final = None
        final(self, message)

    patch.setattr(Arrivals, "final", anew)


@mutation(
    "messages: FINAL of another attempt", faults=replace(OVER_AND_OVER, chunk=0.3), first=500, seeds=500, steps=800
)
def final_of_any_attempt(patch: Patch) -> None:
    """Of a cut with the same number, at least. First cuts come late, so that there is something to move."""
    begin = CutPace.begin

    def late(self: Any, now_s: float) -> None:
        begin(self, now_s)
        self.due_s += 2.0

    def final(self: Any, message: Any) -> None:
        if self.adopted is not None and self.adopted.token == message.token:
            self.tell(self.adopted)
        else:
            self.arrivals.final(message)

    def here(self: Any, token: Any) -> bool:
        return self._final is not None and self._final[0].cut == token.cut and self._final[1].done()

    patch.setattr(CutPace, "begin", late)
    patch.setattr(Subtask, "final", final)
    patch.setattr(Arrivals, "here", here)


@mutation("12: what was loaded ahead is where the chain begins, or else the digest tells", faults=REWRITTEN, seeds=600)
def neither_chain_nor_digest_checked(patch: Patch) -> None:
    patch.setattr(SliceVersion, "since", lambda self, known: self.blocks[len(known.blocks) :])
    read = stores.read_contents

    def trusting(storage: Any, step: str, slice: int, version: Any, known: Any = None) -> Any:
        try:
            return read(storage, step, slice, version, known)
        except Exception:
            return dict(known.rows)

    patch.setattr("simulated.taking.read_contents", trusting)


@mutation("11: FINAL is what the giver describes", faults=MOVES)
def final_without_the_last_changes(patch: Patch) -> None:
    final = Moving._final_slices
    patch.setattr(Moving, "_final_slices", lambda self, moves, base, *, logged: final(self, moves, base, logged=True))


@mutation("9: PREPARE is told until it is answered", faults=replace(LOSSES, lose=0.06), seeds=600)
def prepare_told_once(patch: Patch) -> None:
    prepares = Moving.prepares

    def once(self: Any, now_s: float) -> Any:
        return [] if self._unready.keys() <= self._told_s.keys() else prepares(self, now_s)

    patch.setattr(Moving, "prepares", once)


@mutation("9: READY is told whenever PREPARE is", faults=replace(LOSSES, lose=0.06), seeds=600)
def ready_told_once(patch: Patch) -> None:
    prepare = Arrivals.prepare
    patch.setattr(Arrivals, "prepare", lambda self, wanted: prepare(self, wanted) if wanted != self._ready else None)


@mutation("12: FINAL is told until it is answered", faults=LOSSES, seeds=400)
def final_told_once(patch: Patch) -> None:
    finals = Moving.finals

    def once(self: Any, base: Any, now_s: float) -> Any:
        told = [(place, final) for place, final in finals(self, base, now_s) if (place, final.token) not in _told(self)]
        _told(self).update((place, final.token) for place, final in told)
        return told

    def _told(self: Any) -> set[Any]:
        return known.setdefault(id(self), set())

    known: dict[int, set[Any]] = {}
    patch.setattr(Moving, "finals", once)


@mutation("12: ADOPTED is told whenever FINAL is", faults=LOSSES, seeds=400)
def adopted_told_once(patch: Patch) -> None:
    patch.setattr(Subtask, "final", lambda self, final: self.arrivals.final(final))


@mutation("10: who gave a slice away describes it no more", faults=MOVES)
def giver_keeps_the_slice(patch: Patch) -> None:
    patch.setattr(ToyStore, "give_away", lambda self, slices: None)


@mutation("8: the last cut of a batch changes no table", faults=ENDING, seeds=300)
def end_changes_tables(patch: Patch) -> None:
    order = Machine._order_cut

    def with_tables(self: Any, now_s: float) -> Any:
        out = order(self, now_s)
        if self.cut is not None and self.cut.end and not self.cut.tables:
            self.cut.tables = tables = self.moving.take_tables(self.cut.token)
            for send in out:
                if isinstance(getattr(send, "message", None), CutOrdered):
                    send.message.tables.update(tables)
        return out

    patch.setattr(Machine, "_order_cut", with_tables)


@mutation("25: moves end with their attempt", faults=replace(FAILING, repeat=0.0), seeds=100)
def moves_outlive_attempts(patch: Patch) -> None:
    patch.setattr(Moving, "forget", lambda self: None)


@mutation("26: memory is that of the slices owned at the end", faults=ENDING, seeds=200)
def memory_of_slices_given_away(patch: Patch) -> None:
    settle = Subtask._settle

    def as_planned(self: Any) -> None:
        settle(self)
        if self.process.kept is not None and self.state == "done":
            self.process.kept = (self.process.kept[0], self.ticket.mine, self.store)

    patch.setattr(Subtask, "_settle", as_planned)
