"""Copying what has become durable, behind: to the own node, and to the nodes that keep copies of its slices.

Nobody waits for a copy. What cannot be copied now, because too much waits or a node does not answer, is counted; the
node that lacks it fetches it from the checkpoint when a logged version names it (``tending``).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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


class Feeder:
    """Copies the segments of one subtask in one attempt, by a thread of its own.

    ``keys`` are all its slices. ``own`` is the own node's keeper, which only needs to know them: its store is written
    directly. ``standbys`` are the nodes that keep copies.
    """

    def __init__(
        self, attempt: Attempt, storage: Storage, store: NodeStore, own: Callable[[], Holder],
        standbys: Sequence[Standby], keys: Sequence[SliceKey], tell_every_s: float = _TELL_EVERY_S,
    ) -> None:  # fmt: skip
        self._tell_every_s = tell_every_s
        self._attempt, self._storage, self._store, self._keys = attempt, storage, store, keys
        self._nodes = [(own, None), *standbys]
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()
        self._queue: queue.Queue[list[StoredChange] | None] = queue.Queue(_WAITING)
        self._closing, self._known = threading.Event(), False
        self._thread = threading.Thread(target=self._work, name="headrace-copies", daemon=True)
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

    def _work(self) -> None:
        holders = [connect() for connect, _ in self._nodes]
        try:
            untold, told_s = list[int](), time.monotonic()
            while True:
                if not self._known or time.monotonic() - told_s > self._tell_every_s:
                    self._known, untold, told_s = True, list(range(len(holders))), time.monotonic()
                untold = self._hold(holders, untold)
                if (stored := self._queue.get()) is None or self._closing.is_set():
                    break
                if stored:
                    self._copy(stored, holders)
        finally:
            for holder in holders:
                holder.close()

    def _hold(self, holders: Sequence[Holder], untold: Iterable[int]) -> list[int]:
        """Say which slices are to be held; returns the holders that have not heard it, to be told again."""
        left = []
        for at in untold:
            slices = self._nodes[at][1]
            mine = [key for key in self._keys if slices is None or key[1] in slices]
            if not holders[at].hold(self._attempt, mine):
                left.append(at)
        return left

    def _copy(self, stored: list[StoredChange], holders: Sequence[Holder]) -> None:
        file = stored[0].block.file
        try:
            data = self._storage.get(file)
        except OSError:  # it is garbage by now, or its disk is away
            return self._count("uncopied", len(stored))
        self._tell(len(stored), self._store.put(file, len(data), [(0, data)]))
        for holder, (_, slices) in zip(holders[1:], self._nodes[1:]):
            blocks = [change.block for change in stored if slices is not None and change.slice in slices]
            extents = [(block.offset, data[block.offset : block.offset + block.length]) for block in blocks]
            if extents:
                self._tell(len(extents), holder.put(file, len(data), extents))
        return None

    def _tell(self, blocks: int, copied: bool) -> None:
        self._count("copied" if copied else "uncopied", blocks)

    def _count(self, name: str, blocks: int) -> None:
        with self._lock:
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
