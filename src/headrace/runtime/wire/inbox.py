"""The one queue a subtask waits on: rows of frames, then the end of input. A reader thread fills it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from headrace.runtime.clock import now_us
from headrace.runtime.wire.mailbox import Mailbox


@dataclass(frozen=True, slots=True)
class Row:
    """A row of frames, and when it reached this worker."""

    payload: memoryview
    queued_us: int


@dataclass(frozen=True, slots=True)
class End:
    """No more input in this batch, or the input broke."""

    error: Exception | None = None


class Inbox:
    """Bounded by bytes: the reader thread waits while the subtask is behind, and Spark behind it.

    What the subtask has taken out and not processed yet still counts; ``blocked`` while the reader waits.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._queue: Mailbox[Row | End | None] = Mailbox()
        self.limit_bytes, self.held_bytes = limit_bytes, 0
        self.blocked = False
        self._queued_bytes = self._state_bytes = 0
        self._room = threading.Condition()

    def put_end(self, end: End) -> None:
        self._queue.put(end)

    def put_row(self, payload: memoryview) -> None:
        """Queue a row; blocks while too much is queued already."""
        with self._room:
            while self._crowded(len(payload)):
                self.blocked = True
                self._room.wait()
            self.blocked = False
            self.held_bytes += len(payload)
        self._queue.put(Row(payload, now_us()))

    def done(self, row: Row) -> None:
        with self._room:
            self.held_bytes -= len(row.payload)
            self._room.notify()

    def weigh(self, queued_bytes: int, state_bytes: int) -> None:
        """What the subtask holds elsewhere: buffers in its operators' queues, and state if that counts."""
        if (queued_bytes, state_bytes) != (self._queued_bytes, self._state_bytes):
            with self._room:
                self._queued_bytes, self._state_bytes = queued_bytes, state_bytes
                self._room.notify()

    def wake(self) -> None:
        """Whoever waits for an item shall look at other things first; may be called by any thread."""
        self._queue.put(None)

    def get(self, wait_s: float) -> Row | End | None:
        """The next item, or None if none came in time or there is something else to look at."""
        try:
            return self._queue.get(wait_s)
        except IndexError:
            return None

    def _crowded(self, more_bytes: int) -> bool:
        """Never while nothing waits: state alone, or one large row, must not stop reading for ever."""
        waiting_bytes = self.held_bytes + self._queued_bytes
        return waiting_bytes > 0 and waiting_bytes + self._state_bytes + more_bytes > self.limit_bytes


def read_into(inbox: Inbox, batches: Iterable[pa.RecordBatch]) -> threading.Thread:
    """Start the thread that drains Spark's input into the inbox."""

    def drain() -> None:
        error: Exception | None = None
        try:
            for batch in batches:
                index = batch.schema.get_field_index("payload")
                if index < 0:
                    continue  # a tick of the batch's clock
                for payload in batch.column(index):
                    view = memoryview(payload.as_buffer())
                    if len(view):
                        inbox.put_row(view)
        except Exception as caught:
            error = caught
        inbox.put_end(End(error))

    thread = threading.Thread(target=drain, name="headrace-reader", daemon=True)
    thread.start()
    return thread
