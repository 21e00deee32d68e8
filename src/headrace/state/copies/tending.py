"""Keeping a node's copies to what the version log names: older ones go, those that are missing are fetched.

What subtasks hand over reaches a node directly; this is for the rest: files that compaction wrote, what was lost on the
way, and slices that the node is to keep from now on. Looked at every few seconds, behind everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from headrace.state.copies.nearest import fits
from headrace.state.copies.nodestore import NodeStore
from headrace.state.durable.manifest import Manifest, SliceKey
from headrace.state.durable.segments import BlockRef, segment_token
from headrace.state.durable.storage import Storage
from headrace.state.durable.versionlog import VersionLog

_FETCHED_BYTES = 256_000_000
"""At most so much in one turn, so that what has become garbage meanwhile is not fetched."""


@dataclass(frozen=True, slots=True)
class Tended:
    """What a turn did: segments dropped, blocks fetched from the checkpoint, and blocks that could not be. If all are there,
    ``cut`` is the number of the version that they are of.
    """

    dropped: int = 0
    fetched: int = 0
    failed: int = 0
    cut: int | None = None


class Tending:
    """Looks after the copies of one node. ``going_on`` says whether a turn may go on."""

    def __init__(self, store: NodeStore, storage: Storage, going_on: Callable[[], bool]) -> None:
        self._store, self._storage, self._going_on = store, storage, going_on
        self._log, self._seen = VersionLog(storage), 0
        self._kept: list[Manifest] = []

    def turn(self, held: Collection[SliceKey]) -> Tended:
        """Drop what neither of the last two versions names, and fetch what the last one has of the slices ``held``."""
        newest = self._log.newest()
        if newest != self._seen:
            self._kept = [cut.manifest for _, cut in self._log.last_cuts(2)]
            self._seen = newest
        if not self._kept:
            return Tended()
        dropped = self._drop_garbage()
        wanted = [block for key in held if (v := self._kept[-1].slices.get(key)) is not None for block in v.blocks]
        fetched, failed, left = self._fetch(wanted)
        return Tended(dropped, fetched, failed, self._kept[-1].token.cut if not failed and not left else None)

    def _drop_garbage(self) -> int:
        """What belongs to a later cut stays: it may be logged next. If it is not, another cut of that number is."""
        named = frozenset[str]().union(*(manifest.files for manifest in self._kept))
        logged, dropped = self._kept[-1].token.cut, 0
        for file in self._store.files() - named:
            token = segment_token(file)
            if token is not None and token.cut <= logged:
                self._store.drop(file)
                dropped += 1
        return dropped

    def _fetch(self, wanted: Collection[BlockRef]) -> tuple[int, int, bool]:
        """How many were fetched and could not be; and whether some are left for the next turn."""
        fetched = failed = size = 0
        for block in wanted:
            if any(True for _ in self._store.find(block.file, block.offset, 4)):
                continue
            if size > _FETCHED_BYTES or not self._going_on():
                return fetched, failed, True
            if self._fetch_one(block):
                fetched, size = fetched + 1, size + block.length
            else:
                failed += 1
        return fetched, failed, False

    def _fetch_one(self, block: BlockRef) -> bool:
        try:
            body = self._storage.get_range(block.file, block.offset, block.length)
        except OSError:
            return False
        end = block.offset + block.length
        return fits(block, body) and self._store.put(block.file, end, [(block.offset, body)])
