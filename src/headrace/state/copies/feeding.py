"""Copying what has become durable, behind: to the own node, and to the nodes that keep copies of its slices.

Nobody waits for a copy. What cannot be copied now, because too much waits or a node does not answer, is counted; the
node that lacks it fetches it from the checkpoint when a logged version names it (``tending``).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from headrace.state.copies.nodestore import Extent, NodeStore
from headrace.state.durable.manifest import SliceKey
from headrace.state.durable.segments import StoredChange
from headrace.state.durable.storage import Storage
from headrace.tokens import Attempt

_WAITING = 64
"""Segments that may wait: at a cut each second about a minute's."""

_TELL_EVERY_S = 60.0
"""A keeper that hears nothing for long takes its run for over, and one that was started anew knows of no slices."""


class Holder(Protocol):
    """Another node's keeper, or the own one. False: it has not done it, for whatever reason."""

    def put(self, file: str, size: int, extents: Sequence[Extent]) -> bool:
        """Keep some of a segment's bytes."""
        ...

    def hold(self, attempt: Attempt, slices: Sequence[SliceKey]) -> bool:
        """Have, from now on, all blocks of these slices that the version log names."""
        ...

    def close(self) -> None: ...


Standby = tuple[Callable[[], Holder], frozenset[int]]
"""How to reach a node that keeps copies, and of which slices."""


class Copier:
    """Copies the segments of one subtask in one attempt; pure but for its arguments, and for one thread.

    ``keys`` are all its slices. ``own`` is the own node's keeper, which only needs to know them: its store is written
    directly. ``standbys`` are the nodes that keep copies.
    """

    def __init__(
        self, attempt: Attempt, storage: Storage, store: NodeStore, own: Callable[[], Holder],
        standbys: Sequence[Standby], keys: Sequence[SliceKey],
    ) -> None:  # fmt: skip
        self._attempt, self._storage, self._store = attempt, storage, store
        self._nodes = [(own(), None), *((connect(), slices) for connect, slices in standbys)]
        self.keys, self._untold = keys, list(range(len(self._nodes)))

    def tell(self, *, again: bool = False) -> None:
        """Say to who has not heard it, or to all again, which slices are to be held."""
        told = range(len(self._nodes)) if again else self._untold
        self._untold = [at for at in told if not self._told(at)]

    def copy(self, stored: list[StoredChange]) -> int:
        """Copy a segment to where its blocks belong; returns how many of these copies were made."""
        file = stored[0].block.file
        try:
            data = self._storage.get(file)
        except OSError:  # it is garbage by now, or its disk is away
            return 0
        copied = len(stored) if self._store.put(file, len(data), [(0, data)]) else 0
        for holder, slices in self._nodes[1:]:
            blocks = [change.block for change in stored if slices is not None and change.slice in slices]
            extents = [(block.offset, data[block.offset : block.offset + block.length]) for block in blocks]
            if extents and holder.put(file, len(data), extents):
                copied += len(extents)
        return copied

    def wanted(self, stored: list[StoredChange]) -> int:
        """How many copies of blocks a segment is to have."""
        return sum(slices is None or change.slice in slices for _, slices in self._nodes for change in stored)

    def close(self) -> None:
        for holder, _ in self._nodes:
            holder.close()

    def _told(self, at: int) -> bool:
        holder, slices = self._nodes[at]
        return holder.hold(self._attempt, [key for key in self.keys if slices is None or key[1] in slices])


class Feeder:
    """A thread that copies what has become durable. ``copier`` makes what it works with, in that thread.

    ``keys`` are all slices of the subtask.
    """

    def __init__(
        self, copier: Callable[[], Copier], keys: Sequence[SliceKey], tell_every_s: float = _TELL_EVERY_S
    ) -> None:
        self._tell_every_s, self._keys, self._known = tell_every_s, keys, True
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()
        self._queue: queue.Queue[list[StoredChange] | None] = queue.Queue(_WAITING)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(copier,), name="headrace-copies", daemon=True)
        self._thread.start()

    def offer(self, stored: list[StoredChange]) -> None:
        """A segment has become durable."""
        try:
            self._queue.put_nowait(stored)
        except queue.Full:
            self._count("uncopied", len(stored))

    def own(self, keys: Sequence[SliceKey]) -> None:
        """Slices have come or gone: the own node is to have all that are here now; those that stood by go on doing so."""
        self._keys, self._known = keys, False
        with suppress(queue.Full):  # what waits will be followed by the news
            self._queue.put_nowait([])

    def take_counts(self) -> dict[str, int]:
        """Blocks that were copied, and those that were not, since this was last asked."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts

    def close(self) -> None:
        """Give up what has not been begun."""
        self._closing.set()
        with suppress(queue.Full):  # the flag is looked at after each
            self._queue.put_nowait(None)

    def _work(self, make: Callable[[], Copier]) -> None:
        copier = make()
        try:
            copier.tell()
            told_s = time.monotonic()
            while (stored := self._queue.get()) is not None and not self._closing.is_set():
                again = not self._known or time.monotonic() - told_s > self._tell_every_s
                if again:
                    self._known, told_s = True, time.monotonic()
                    copier.keys = self._keys
                copier.tell(again=again)
                if stored:
                    copied, wanted = copier.copy(stored), copier.wanted(stored)
                    self._count("copied", copied)
                    self._count("uncopied", wanted - copied)
        finally:
            copier.close()

    def _count(self, name: str, blocks: int) -> None:
        with self._lock:
            if blocks:
                self._counts[name] = self._counts.get(name, 0) + blocks


def by_node(backups: Mapping[int, Sequence[int]]) -> dict[int, frozenset[int]]:
    """Turn "slice → nodes" around.

    >>> by_node({0: (1,), 1: (2, 1)})
    {1: frozenset({0, 1}), 2: frozenset({1})}
    """
    found: dict[int, set[int]] = {}
    for slice, nodes in backups.items():
        for node in nodes:
            found.setdefault(node, set()).add(slice)
    return {node: frozenset(slices) for node, slices in found.items()}
