"""Changes on their way to storage while the job runs on (ChronoStream, section 6a).

At a cut, and every few seconds or when they have become many in between, a subtask swaps its dirty entries out; a thread
encodes and syncs them as a *chunk*. So a cut stops nobody: what is left to be written then is small, and it is written
behind. Chunks of a cut that is never logged are named by no manifest.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from headrace.connect.sink import Staged
from headrace.state.durable.changes import Pending
from headrace.state.durable.segments import SEGMENTS, StoredChange, write_segment
from headrace.state.durable.storage import Storage
from headrace.tokens import Token

_LOOK_EVERY_US = 250_000
"""How often at most the amount of dirty state is asked for: that is a pass over a table's flags."""

Swapped = Sequence[tuple[str, Pending]]
"""What each store, by its name, has swapped out."""
CloseSinks = Callable[[], Sequence[Staged]]
"""Makes what sinks wrote durable, and says what is to be published."""


@dataclass(frozen=True, slots=True)
class WrittenCut:
    """A subtask's part of a cut, all of it durable: changes oldest first, and how long that took after the cut."""

    token: Token
    changes: tuple[StoredChange, ...]
    staged: tuple[Staged, ...]
    written_ms: float
    written_bytes: int


class ChunkWriter:
    """Writes the chunks of one subtask in one attempt, in order.

    ``subtask`` is in their names. ``wake`` is called, by the writing thread, each time when there is something to be
    asked for with ``written``.
    """

    def __init__(
        self, storage: Storage, subtask: str, every_s: float, max_bytes: int, now_us: int, wake: Callable[[], None]
    ) -> None:
        self._storage, self._subtask, self._wake = storage, subtask, wake
        self._every_us, self._max_bytes = int(every_s * 1e6), max_bytes
        self._look_every_us = min(_LOOK_EVERY_US, self._every_us // 10)
        self._written_us = self._looked_us = now_us
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="headrace-chunks")
        self._jobs: deque[Future[WrittenCut | None]] = deque()
        self._interval: list[StoredChange] = []  # the writing thread's own
        self._chunk = 0

    def look(self, now_us: int) -> bool:
        """Whether it is time to ask how much is dirty."""
        if now_us - self._looked_us < self._look_every_us:
            return False
        self._looked_us = now_us
        return True

    def due(self, now_us: int, dirty_bytes: int) -> bool:
        """Whether a chunk should be written now. While one is being written the next one waits."""
        if not dirty_bytes or (self._jobs and not self._jobs[-1].done()):
            return False
        return dirty_bytes >= self._max_bytes or now_us - self._written_us >= self._every_us

    def write(self, token: Token, swapped: Swapped, now_us: int) -> None:
        """Hand over changes in the middle of the interval that ends with cut ``token``."""
        self._written_us = now_us
        name = self._next_name(token)
        self._submit(lambda: self._write(name, swapped))

    def cut(self, token: Token, swapped: Swapped, close: CloseSinks, now_us: int) -> None:
        """Hand over the interval's last changes, and its sinks' writers to be closed."""
        self._written_us = now_us
        name, handed_s = self._next_name(token), time.perf_counter()
        self._chunk = 0
        self._submit(lambda: self._end(token, name, swapped, close, handed_s))

    def written(self) -> list[WrittenCut]:
        """The cuts that have become durable since the last call. Raises what a write failed with, at once."""
        done = []
        while self._jobs and self._jobs[0].done():
            cut = self._jobs[0].result()  # what failed stays first: nothing after it is ever reported
            self._jobs.popleft()
            if cut is not None:
                done.append(cut)
        return done

    def finish(self) -> list[WrittenCut]:
        """Wait until all that was handed over is durable; the cuts among it."""
        if self._jobs:
            self._jobs[-1].exception()
        return self.written()

    def close(self) -> None:
        """Give up what has not been begun."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _next_name(self, token: Token) -> str:
        self._chunk += 1
        return f"{SEGMENTS}/{token}-{self._subtask}-{self._chunk:02d}.seg"

    def _submit(self, job: Callable[[], WrittenCut | None]) -> None:
        future = self._pool.submit(job)
        self._jobs.append(future)
        future.add_done_callback(lambda _: self._wake())

    def _write(self, name: str, swapped: Swapped) -> None:
        changes = [(store, change) for store, pending in swapped for change in pending()]
        if changes:
            self._interval += write_segment(self._storage, name, changes)

    def _end(self, token: Token, name: str, swapped: Swapped, close: CloseSinks, handed_s: float) -> WrittenCut:
        self._write(name, swapped)
        staged = tuple(close())
        changes, self._interval = tuple(self._interval), []
        written_ms = (time.perf_counter() - handed_s) * 1e3
        return WrittenCut(token, changes, staged, written_ms, sum(change.block.length for change in changes))
