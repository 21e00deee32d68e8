"""Executors with keepers of copies: the product's keeping, tending, copying and nearest reading, around stores in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.channel.keeping.asks import Answer, Ask, Done, Found, GetRanges, HoldSlices, PutExtents
from headrace.channel.keeping.keeper import Keeping
from headrace.driver.protocol.events import Event, Mended
from headrace.errors import HeadraceError
from headrace.state.copies.nearest import fits
from headrace.state.copies.nodestore import Extent, Origin
from headrace.state.copies.placement import CopyNode
from headrace.state.copies.restoring import repair
from headrace.state.copies.tending import Tending
from headrace.state.durable.manifest import Manifest, SliceKey
from headrace.state.durable.segments import BlockRef
from headrace.tokens import Attempt
from simulated.lanes import Violation

if TYPE_CHECKING:
    from simulated.driver import Driver
    from simulated.world import World

_TEND_S = 1.0


class ToyNodeStore:
    """As ``NodeStore``: by segment, what is kept of it. Sometimes there is no room."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.kept: dict[str, dict[int, bytes]] = {}

    def put(self, file: str, size: int, extents: Sequence[Extent]) -> bool:
        if self._world.fails(self._world.faults.write):
            return False
        self.kept.setdefault(file, {}).update(extents)
        return True

    def find(self, file: str, offset: int, length: int) -> Iterator[tuple[Origin, bytes]]:
        for at, body in self.kept.get(file, {}).items():
            if at <= offset < at + len(body):
                yield "memory", body[offset - at : offset - at + length]
                return

    def files(self) -> frozenset[str]:
        return frozenset(self.kept)

    def drop(self, file: str) -> None:
        self.kept.pop(file, None)

    def damage(self, block: BlockRef) -> None:
        """A bit flips in the copy of a block."""
        for at, body in self.kept.get(block.file, {}).items():
            if at <= block.offset < at + len(body):
                self.kept[block.file][at] = flipped(body, block.offset - at)


class Node:
    """An executor: processes live and die with it, and so does its keeper, with all copies."""

    def __init__(self, world: World, number: int) -> None:
        self._world, self.name, self.dead = world, f"node{number}", False
        self.node = CopyNode(self.name, self.name, "")
        self.store = ToyNodeStore(world)
        self.keeping = Keeping(self.store)  # type: ignore[arg-type]
        self._tending = Tending(self.store, world.disk, lambda: not self.dead)  # type: ignore[arg-type]
        self._tending._log = world.log
        world.after(_TEND_S * world.random(), self._tend)

    def connect(self, node: CopyNode) -> ToyKeeper:
        return ToyKeeper(self._world, node.name)

    def has(self, block: BlockRef, *, right: bool = True) -> bool:
        """Whether it has a copy, one that is right."""
        found = (body for _, body in self.store.find(block.file, block.offset, block.length))
        return any(not right or fits(block, body) for body in found)

    def _tend(self) -> None:
        if self.dead:
            return
        with suppress(OSError, HeadraceError):  # the next turn will do
            self._tending.turn(self.keeping.held)
        self._world.damage.check_spread(self)
        self._world.after(_TEND_S, self._tend)


class ToyKeeper:
    """A connection to a keeper, over which messages are lost."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name

    def get(self, blocks: Sequence[BlockRef]) -> list[bytes | None]:
        answer = self._ask(GetRanges(0, [(block.file, block.offset, block.length) for block in blocks]))
        return answer.bodies if isinstance(answer, Found) else [None] * len(blocks)

    def put(self, file: str, size: int, extents: Sequence[Extent]) -> bool:
        return self._done(PutExtents(0, file, size, list(extents)))

    def hold(self, attempt: Attempt, slices: Sequence[SliceKey]) -> bool:
        return self._done(HoldSlices(0, attempt, list(slices)))

    def close(self) -> None:
        """There is nothing open."""

    def _done(self, ask: Ask) -> bool:
        answer = self._ask(ask)
        return isinstance(answer, Done) and answer.ok

    def _ask(self, ask: Ask) -> Answer | None:
        node = next((node for node in self._world.nodes if node.name == self._name), None)
        if node is None or self._world.fails(self._world.faults.uncopied):
            return None
        return node.keeping.answer(ask)


class ToyCopies:
    """As ``FarCopies``: what the keepers there are have."""

    def __init__(self, world: World) -> None:
        self._world = world

    def bodies(self, block: BlockRef) -> Iterator[bytes]:
        for node in self._world.nodes:
            (body,) = ToyKeeper(self._world, node.name).get([block])
            if body is not None:
                yield body


class Anywhere:
    """Blocks of a version from wherever they are right; for the truth alone."""

    def __init__(self, world: World, blocks: Sequence[BlockRef]) -> None:
        self._world, self.blocks = world, {(block.file, block.offset): block for block in blocks}

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        block = self.blocks[name, offset]
        found = self._world.disk.get_range(name, offset, length)
        if fits(block, found):
            return found
        copies = [body for node in self._world.nodes for _, body in node.store.find(name, offset, length)]
        return next((body for body in copies if fits(block, body)), found)


class Damage:
    """One thing at a time is damaged, and never the last that is right: what more is lost nobody can mend.

    ``block`` is what was damaged last: a copy that is wrong is noticed, and fetched anew, when it is read.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.block: BlockRef | None = None
        self._of_copy = False

    def strike(self, *, copy: bool) -> None:
        """A bit of a block of the newest version flips, in the checkpoint or in a copy."""
        manifests = self._named()
        blocks = [block for made in manifests[-1:] for version in made.slices.values() for block in version.blocks]
        if not blocks or self.stands:
            return
        block = self._world.dice.choice(blocks)
        holders = [node for node in self._world.nodes if node.has(block)]
        if holders and self._right(block):
            self.block, self._of_copy = block, copy
            self._world.say("%s is damaged", block)
            if copy:
                self._world.dice.choice(holders).store.damage(block)
            else:
                segments = self._world.disk.folders["segments"]
                segments[block.file] = flipped(segments[block.file], block.offset)

    @property
    def stands(self) -> bool:
        """Whether something is damaged that a version needs."""
        block = self.block
        if block is None or not any(block.file in manifest.files for manifest in self._named()):
            return False
        copies = [
            body for node in self._world.nodes for _, body in node.store.find(block.file, block.offset, block.length)
        ]
        return not self._right(block) or not all(fits(block, body) for body in copies)

    def spares(self, node: Node) -> bool:
        """Whether a node may be lost: if others, or the checkpoint, have what is damaged elsewhere."""
        block = self.block
        if block is None or not self.stands:
            return True
        return self._right(block) or any(other.has(block) for other in self._world.nodes if other is not node)

    def excuses(self, nodes: Sequence[CopyNode]) -> bool:
        """Whether a slice may not be loaded by who knows these nodes: since none that is right answers for sure."""
        block, known = self.block, {node.name for node in nodes}
        if block is None or not self.stands or self._right(block):
            return False
        lossy = self._world.faults.uncopied and not self._world.calm
        return bool(lossy) or not any(node.has(block) for node in self._world.nodes if node.name in known)

    def mend(self) -> None:
        """As ``headrace state repair`` does."""
        if self.block is not None and self.stands and not self._right(self.block):
            _, lost = repair(self._world.disk, [self.block], [ToyCopies(self._world)])  # type: ignore[arg-type]
            if lost:
                raise Violation(f"repair: {lost} is lost, although a copy is right")

    def check_spread(self, node: Node) -> None:
        """What is damaged in the checkpoint does not become a copy."""
        block = self.block
        if block is not None and not self._of_copy and node.has(block, right=False) and not node.has(block):
            raise Violation(f"repair: {node.name} has taken {block} as it is in the checkpoint, damaged")

    def check_mended(self, broken: Sequence[BlockRef], event: Event | None) -> None:
        """What was to be mended is, where all answer."""
        if self._world.faults.uncopied or not isinstance(event, Mended) or event.trouble is not None:
            return
        named = {
            block for manifest in self._named() for version in manifest.slices.values() for block in version.blocks
        }
        for block in broken:
            if block in named and not self._right(block):
                raise Violation(f"repair: {block} is damaged, and was not mended although a copy is right")

    def _named(self) -> list[Manifest]:
        return [cut.manifest for cut in self._world.truth.line[-2:]]

    def _right(self, block: BlockRef) -> bool:
        try:
            return fits(block, self._world.disk.get_range(block.file, block.offset, block.length))
        except FileNotFoundError:
            return False


def flipped(data: bytes, at: int) -> bytes:
    return data[: at + 5] + bytes([data[at + 5] ^ 1]) + data[at + 6 :]


def check_copies(driver: Driver, manifest: Manifest) -> str | None:
    """What is missing of the copies that there are to be: of each slice its owner's node has all, and so do those that
    stand by; nodes have nothing that no version needs. None if nothing is.
    """
    world, members, steps = driver.world, driver.machine.members, driver.machine.plan.layout.stage_of
    alive = {node.name: node for node in world.nodes}
    for (step, slice), version in manifest.slices.items():
        stage = steps[step]
        home = members._node_of(stage, members.tables[stage][slice])
        standbys = members.backups(stage)[slice]
        if home in standbys or len(set(standbys)) < min(members.copies, len(members._present()) - 1):
            raise Violation(f"copies: slice {slice} of {step}, which {home} has, has copies on {standbys}")
        for name in (home, *standbys):
            if name not in alive:
                return f"{name} is not there"
            if not all(alive[name].has(block, right=block != world.damage.block) for block in version.blocks):
                return f"{name} lacks slice {slice} of {step}"
    return None
