"""Reading blocks from the nearest valid copy: the own node's memory, its disk, a peer, the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from headrace.errors import CorruptionError
from headrace.state.copies.nodestore import ORIGINS, NodeStore, Origin
from headrace.state.durable.loading import read_slice
from headrace.state.durable.manifest import SliceVersion
from headrace.state.durable.segments import BlockRef, checksum
from headrace.state.durable.storage import Data, Storage


class Peer(Protocol):
    """Another node's keeper. Whatever goes wrong there is no error here: the answer is that it has nothing."""

    def get(self, blocks: Sequence[BlockRef]) -> list[bytes | None]:
        """For each block what is kept in its place, or None."""
        ...


class Loading(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a subtask's state came from: slices by the farthest origin of their blocks, and blocks by origin.

    ``damaged`` copies did not have their checksum, and were passed over. ``broken`` are blocks that the checkpoint has
    not as they were written, but some copy has.
    """

    slices: dict[str, int]
    blocks: dict[str, int]
    damaged: int
    broken: tuple[BlockRef, ...]


NOTHING_LOADED = Loading({}, {}, 0, ())


Sought = dict[BlockRef, Origin | None]
Decode = Callable[["NearestStorage", str, int, SliceVersion], Any]
"""Makes rows of a slice's blocks; CorruptionError if one of them, or what they make, is not what was written."""
Accepts = Callable[[BlockRef, bytes], bool]


class NearestStorage:
    """The checkpoint's storage, with blocks from copies: those of the slice that is being read, each given out once."""

    def __init__(self, storage: Storage, own: NodeStore | None, decode: Decode = read_slice) -> None:
        self._storage, self._own, self._decode = storage, own, decode
        self._found: dict[tuple[str, int, int], bytes] = {}
        self._slices: dict[str, int] = {}
        self._blocks: dict[str, int] = {}
        self._damaged = 0
        self._broken: list[BlockRef] = []

    @property
    def loading(self) -> Loading:
        """What was read so far."""
        return Loading(dict(self._slices), dict(self._blocks), self._damaged, tuple(self._broken))

    def read(
        self, step: str, slice: int, version: SliceVersion, peers: Sequence[Peer], others: Callable[[], Sequence[Peer]]
    ) -> Any:
        """A slice's rows: ``peers`` should have its blocks, ``others`` are asked for what the checkpoint has not.

        Checksums are looked at once, by who decodes the blocks; only if something is wrong, here too, to find out with
        which copy. CorruptionError, naming the block, if nobody has it.
        """
        origins = self._find(version, peers, has_length)
        try:
            image = self._decode(self, step, slice, version)
        except CorruptionError:
            origins = self._find_valid(version, peers, others)
            image = self._decode(self, step, slice, version)
        self._count(origins.values())
        return image

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        found = self._found.pop((name, offset, length), None)
        return found if found is not None else self._storage.get_range(name, offset, length)

    def get(self, name: str) -> bytes:
        return self._storage.get(name)

    def put(self, name: str, data: Data) -> None:
        self._storage.put(name, data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self._storage.put_if_absent(name, data)

    def names(self, prefix: str) -> list[str]:
        return self._storage.names(prefix)

    def delete(self, name: str) -> None:
        self._storage.delete(name)

    def _find(self, version: SliceVersion, peers: Sequence[Peer], is_it: Accepts) -> Sought:
        self._found.clear()
        origins: Sought = {block: self._from_own(block, is_it) for block in version.blocks}
        self._ask(origins, peers, is_it)
        return origins

    def _find_valid(self, version: SliceVersion, peers: Sequence[Peer], others: Callable[[], Sequence[Peer]]) -> Sought:
        """What nobody has is left to whoever reads it from the checkpoint, and finds out what is wrong."""
        origins = self._find(version, peers, self._fits)
        sought: Sought = {block: None for block, at in origins.items() if at is None and not self._in_checkpoint(block)}
        if sought:
            self._ask(sought, others(), self._fits)
            self._broken += [block for block, origin in sought.items() if origin is not None]
        return origins | sought

    def _from_own(self, block: BlockRef, is_it: Accepts) -> Origin | None:
        if self._own is None:
            return None
        for origin, body in self._own.find(block.file, block.offset, block.length):
            if is_it(block, body):
                self._found[block.file, block.offset, block.length] = body
                return origin
            self._own.drop(block.file)  # it will be fetched anew
        return None

    def _ask(self, origins: Sought, peers: Sequence[Peer], is_it: Accepts) -> None:
        for peer in peers:
            missing = [block for block, origin in origins.items() if origin is None]
            bodies = peer.get(missing) if missing else []
            for block, body in zip(missing, bodies):
                if body is not None and is_it(block, body):
                    self._found[block.file, block.offset, block.length] = body
                    origins[block] = "peer"

    def _fits(self, block: BlockRef, body: bytes) -> bool:
        right = fits(block, body)
        self._damaged += not right
        return right

    def _in_checkpoint(self, block: BlockRef) -> bool:
        try:
            return fits(block, self._storage.get_range(block.file, block.offset, block.length))
        except FileNotFoundError:
            return False

    def _count(self, origins: Iterable[Origin | None]) -> None:
        names: list[Origin] = [origin or "checkpoint" for origin in origins]
        for name in names:
            self._blocks[name] = self._blocks.get(name, 0) + 1
        farthest = max(names, key=ORIGINS.index, default=None)
        if farthest is not None:
            self._slices[farthest] = self._slices.get(farthest, 0) + 1


def fits(block: BlockRef, body: bytes) -> bool:
    """Whether bytes are the block that a manifest names."""
    return len(body) == block.length and checksum(body) == block.checksum


def has_length(block: BlockRef, body: bytes) -> bool:
    """Whether bytes may be a block: enough to try."""
    return len(body) == block.length
