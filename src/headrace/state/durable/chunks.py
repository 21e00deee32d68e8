"""Changes on their way to storage while the job goes on (ChronoStream, section 6a).

A subtask swaps its dirty entries out at every cut, and in between when they have become many; a thread encodes and
syncs them as a *chunk*. So nobody who works on records ever waits for a disk. Chunks of a cut that is not in the version
log are never named by a manifest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from headrace.state.durable.changes import Pending
from headrace.state.durable.segments import StoredChange, write_segment
from headrace.state.durable.storage import Storage

_LOOK_EVERY_US = 250_000
"""How often at most the amount of dirty state is asked for: that is a pass over a table's flags."""
_SHARE = 0.05
"""Of the time that writing before a cut may take: rows that change all the time would be written again and again."""
Swapped = Sequence[tuple[str, Pending]]
"""By store, what was swapped out of it."""
Result = TypeVar("Result")


class ChunkWriter:
    """Writes the chunks of one subtask in one attempt, in order.

    ``stem`` names the files of the running interval. ``wake`` is called, by any thread, whenever something has been
    written or has failed, ``written`` with each segment that is durable, by the writing thread.
    """

    def __init__(
        self, storage: Storage, stem: str, every_s: float, max_bytes: int, now_us: int, wake: Callable[[], None],
        written: Callable[[list[StoredChange]], None] = lambda stored: None,
    ) -> None:  # fmt: skip
        self._storage, self._stem, self._wake, self._written = storage, stem, wake, written
        self._every_us, self._max_bytes = int(every_s * 1e6), max_bytes
        self._look_every_us = min(_LOOK_EVERY_US, self._every_us // 10)
        self._written_us = self._looked_us = now_us
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="headrace-chunks")
        self._chunks: list[Future[list[StoredChange]]] = []
        self._cost_us = self._worked_us = 0.0

    def look(self, now_us: int) -> bool:
        """Whether it is time to ask how much is dirty."""
        if now_us - self._looked_us < self._look_every_us:
            return False
        self._looked_us = now_us
        return True

    def due(self, now_us: int, dirty_bytes: int) -> bool:
        """Whether a chunk should be written before the next cut. While one is being written the next one waits."""
        if not dirty_bytes or (self._chunks and not self._chunks[-1].done()):
            return False
        since_us = now_us - self._written_us
        return since_us >= self._cost_us / _SHARE and (dirty_bytes >= self._max_bytes or since_us >= self._every_us)

    def write(self, swapped: Swapped, now_us: int) -> None:
        """Hand over changes of the running interval."""
        self._written_us = now_us
        name = f"{self._stem}-{len(self._chunks):02d}.seg"
        chunk = self._pool.submit(self._write, name, swapped)
        self._chunks.append(chunk)
        chunk.add_done_callback(lambda _: self._wake())

    def cut(
        self, swapped: Swapped, now_us: int, then: Callable[[tuple[StoredChange, ...], float], Result], next_stem: str
    ) -> Future[Result]:
        """Hand over the interval's last changes; another one begins.

        When all chunks of the interval are durable ``then`` is called with them, oldest first, and how long a core has
        worked on them in ms, by the writing thread.
        """
        self.write(swapped, now_us)
        chunks, self._chunks, self._stem = self._chunks, [], next_stem

        def complete() -> Result:
            worked_us, self._worked_us = self._worked_us, 0.0
            return then(tuple(change for chunk in chunks for change in chunk.result()), worked_us / 1e3)

        done = self._pool.submit(complete)
        done.add_done_callback(lambda _: self._wake())
        return done

    def check(self) -> None:
        """Raise what a chunk of the running interval could not be written for."""
        for chunk in self._chunks:
            if chunk.done():
                chunk.result()

    def close(self) -> None:
        """Give up what has not been begun."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _write(self, name: str, swapped: Swapped) -> list[StoredChange]:
        began_s = time.thread_time()
        changes = ((store, change) for store, pending in swapped for change in pending())
        stored = write_segment(self._storage, name, changes)
        self._written(stored)
        self._cost_us = (time.thread_time() - began_s) * 1e6
        self._worked_us += self._cost_us
        return stored
