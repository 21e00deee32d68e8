"""Changes on their way to storage while the epoch still runs (ChronoStream, section 6a).

A subtask swaps its dirty entries out every few seconds, or earlier when they have become many; a
thread encodes and syncs them as a *chunk*. So what remains to be written when the epoch ends is
small, whatever the epoch's length. Chunks of an attempt that fails are never named by a manifest.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from headrace.state.durable.changes import Pending
from headrace.state.durable.segments import StoredChange, write_segment

_LOOK_EVERY_US = 250_000
"""How often at most the amount of dirty state is asked for: that is a pass over a table's flags."""


class ChunkWriter:
    """Writes the chunks of one subtask in one attempt, in order. ``stem`` names their files."""

    def __init__(self, root: Path, stem: str, every_s: float, max_bytes: int, now_us: int) -> None:
        self._root, self._stem = root, stem
        self._every_us, self._max_bytes = int(every_s * 1e6), max_bytes
        self._look_every_us = min(_LOOK_EVERY_US, self._every_us // 10)
        self._written_us = self._looked_us = now_us
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="headrace-chunks")
        self._chunks: list[Future[list[StoredChange]]] = []

    def look(self, now_us: int) -> bool:
        """Whether it is time to ask how much is dirty."""
        if now_us - self._looked_us < self._look_every_us:
            return False
        self._looked_us = now_us
        return True

    def due(self, now_us: int, dirty_bytes: int) -> bool:
        """Whether a chunk should be written now. While one is being written the next one waits."""
        if not dirty_bytes or (self._chunks and not self._chunks[-1].done()):
            return False
        return dirty_bytes >= self._max_bytes or now_us - self._written_us >= self._every_us

    def write(self, swapped: Sequence[tuple[str, Pending]], now_us: int) -> None:
        """Hand changes over; they are durable when ``finish`` has returned."""
        self._written_us = now_us
        name = f"{self._stem}-{len(self._chunks):02d}.seg"
        self._chunks.append(self._pool.submit(self._write, name, swapped))

    def _write(self, name: str, swapped: Sequence[tuple[str, Pending]]) -> list[StoredChange]:
        changes = [(store, change) for store, pending in swapped for change in pending()]
        return write_segment(self._root, name, changes) if changes else []

    def finish(self) -> tuple[StoredChange, ...]:
        """Wait until all is durable; what was written, oldest first. Raises what a write failed with."""
        try:
            return tuple(change for chunk in self._chunks for change in chunk.result())
        finally:
            self.close()

    def close(self) -> None:
        """Give up what has not been begun."""
        self._pool.shutdown(wait=True, cancel_futures=True)
