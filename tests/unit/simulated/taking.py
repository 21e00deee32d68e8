"""A toy subtask's part in moves: the product's own holdings, arrivals and waitlist, around a toy's rows and slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.errors import HeadraceError
from headrace.runtime.cutmaking.arrivals import Arrivals, Image
from headrace.runtime.cutmaking.copying import NearSlices
from headrace.runtime.messages import Adopted, Final, Prepare, Prepared, ToDriver
from headrace.runtime.ownership import Table, owned
from headrace.runtime.plan import Ticket
from headrace.runtime.wire.waitlist import Waitlist
from headrace.state.copies.placement import CopyNode
from headrace.state.durable.manifest import Manifest, SliceVersion
from headrace.tokens import Token
from simulated.flow import Flow, Frame
from simulated.lanes import Lane
from simulated.stores import read_contents

if TYPE_CHECKING:
    from simulated.subtask import Process
    from simulated.world import World

Done = TypeVar("Done")
Contents = dict[Any, Any]


def split(sender: int, frame: Frame, slices: frozenset[int]) -> tuple[Frame | None, Frame | None]:
    """A buffer's rows of some slices, and the others."""
    kind, rows = frame
    later, now = [row for row in rows if row[0] in slices], [row for row in rows if row[0] not in slices]
    return (kind, later) if later else None, (kind, now) if now else None


def brought_up(
    storage: Any, step: str, slice: int, known: SliceVersion, rows: Contents, version: SliceVersion
) -> Contents:
    """As ``read_slice_from``."""
    return read_contents(storage, step, slice, version, Image(known, rows))


class ToyReader(NearSlices):
    """Reads blocks of the simulated disk, which sometimes does not answer."""

    def __init__(self, world: World, near: Any, nodes: Sequence[CopyNode]) -> None:
        super().__init__(world.disk, near, nodes, read_contents, brought_up)  # type: ignore[arg-type]
        self._world = world

    def manifest(self, entry: int, version: Token) -> Manifest:
        return self._world.manifest_at(entry, version)

    def slice(self, step: str, slice: int, version: SliceVersion, known: Image[Contents] | None) -> Contents:
        if self._world.fails(self._world.faults.read):
            raise OSError("the disk does not answer")
        contents: Contents = super().slice(step, slice, version, known)
        return contents


class ToyLoader:
    """What a thread does in the product: in a lane of its own, sometimes late."""

    def __init__(self, world: World, lane: Lane, wake: Callable[[], None]) -> None:
        self._world, self._lane, self._wake = world, lane, wake

    def submit(self, work: Callable[[], Done]) -> Future[Done]:
        future: Future[Done] = Future()
        if self._world.fails(0.1):
            self._world.after(3 * self._world.random(), self._lane.push, self._work, future, work)
        else:
            self._lane.push(self._work, future, work)
        return future

    def _work(self, future: Future[Done], work: Callable[[], Done]) -> None:
        try:
            future.set_result(work())
        except (OSError, HeadraceError) as error:
            future.set_exception(error)
        self._wake()

    def close(self) -> None:
        """A lane ends with its owner."""


class Taking(Flow):
    """Slices that are given away, and those that arrive; ``loading`` is what a thread does."""

    process: Process
    loading: Lane
    frozen: bool

    def begin(self, ticket: Ticket) -> None:
        super().begin(ticket)
        self.waitlist: Waitlist[int, Frame] = Waitlist(split)
        loader = ToyLoader(self.world, self.loading, self.wake)
        reader = ToyReader(self.world, self.process.node, ticket.nodes)
        self.arrivals: Arrivals[Contents] = Arrivals(reader, {self.store.step: self.store}, loader)
        self.adopted: Adopted | None = None
        self.asked_s = 0.0

    def tell(self, message: ToDriver) -> None:
        raise NotImplementedError

    def fail(self, error: str, text: str) -> None:
        raise NotImplementedError

    @property
    def waits(self) -> bool:
        """As ``Cuts.waits``."""
        return self.holdings.given is not None

    def is_excused(self, since_s: float) -> bool:
        """Whether it may not have loaded yet what it was asked for, all messages having come since some time."""
        waits = (self.process.up, self.turns, self.loading, *((self.process.down,) if self.asked_s < since_s else ()))
        return self.frozen or self.ended or any(lane.items for lane in waits)

    def wake(self) -> None:
        self.turns.push(self.look)

    def prepare(self, wanted: Prepare) -> None:
        if wanted.attempt == self.ticket.attempt:
            self.asked_s = self.world.now
            self.arrivals.prepare(wanted)
            self.wake()

    def final(self, final: Final) -> None:
        """As ``Cuts.final``."""
        if final.token.by != self.ticket.attempt:
            return
        if self.adopted is not None and self.adopted.token == final.token:
            self.tell(self.adopted)
        else:
            self.arrivals.final(final)

    def look(self) -> None:
        """As ``Cuts.look``: one slice a turn."""
        if self.state != "running":
            return
        if (prepared := self.arrivals.prepared()) is not None:
            self.tell(Prepared(self.stage, self.index, prepared.attempt, prepared.version))
        if (given := self.holdings.given) is not None:
            self._take_one(given)

    def _take_one(self, given: Token) -> None:
        try:
            complete = self.arrivals.adopt_one(given)
        except (OSError, HeadraceError) as error:
            if type(error) is not OSError:  # but for a disk that does not answer, nothing may be missing
                self.world.truth.not_loaded(self, error)  # type: ignore[arg-type]
            self.fail("Exception", f"cannot take what it was given: {error}")
            return
        if complete:
            self.adopt(given)
        elif self.arrivals.here(given):
            self.wake()

    def sift(self, sender: int, frame: Frame) -> Frame | None:
        """As in ``Intake.serve``: what need not wait for slices; time waits with them."""
        if not self.waitlist.slices:
            return frame
        if frame[0] == "time":
            self.known[sender] = max(self.known[sender], frame[1])
            return None
        return self.waitlist.sift(sender, frame)

    def change_hands(self, token: Token, tables: Mapping[int, Table]) -> None:
        """As ``Cuts._change_hands``: what is another's is forgotten, what is ours is waited for."""
        table = tables.get(self.stage)
        if table is not None:
            self.store.give_away(self.holdings.change(token, owned(table, self.index)))
            self.waitlist.slices = self.holdings.awaited
            self.wake()
        self.world.truth.owns(self.next, self.stage, self.index, self.holdings.mine)

    def adopt(self, token: Token) -> None:
        """As ``Cuts._adopted``: what has waited follows, and then time."""
        self.world.truth.moves += len(self.holdings.adopt())
        for sender, frame in self.waitlist.take():
            self.hand_on(sender, frame)
        self.hand_on(-1, ("now", None))
        self.hold_also()
        self.adopted = Adopted(self.stage, self.index, token, 0.0)
        self.tell(self.adopted)
        if self.alignment.aligned:
            self.turns.push(self.aligned)

    def hold_also(self) -> None:
        """Other slices are here."""
        raise NotImplementedError

    def aligned(self) -> None:
        """Make the cut that all senders have marked."""
        raise NotImplementedError
