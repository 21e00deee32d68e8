"""An operator's input queue: decoded buffers that wait for their turn, and watermarks in line with them.

A watermark (a punctuation in C-MR, section 2.2) never overtakes data that was queued before it: it takes effect when
all of that has been processed. Since it is the lowest over all senders at the moment it is queued, every sender's
earlier data has been processed by then, in whatever order operators work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from headrace.graph.windowing import IDLE_US
from headrace.runtime.batch import Batch, concat


@dataclass(frozen=True, slots=True)
class QueuedBuffer:
    """A buffer with records or partials; ``born_us`` is the oldest time in it.

    ``began`` is told when its turn has come (µs); ``tag_us`` is that of partials, records have their own.
    """

    port: int
    data: Batch | pa.RecordBatch
    born_us: int
    rows: int
    nbytes: int
    began: Callable[[int], None] | None = None
    tag_us: int | None = None


def joins(one: QueuedBuffer, other: QueuedBuffer) -> bool:
    """Whether two buffers in a row can be processed as one."""
    alike = isinstance(one.data, Batch) and isinstance(other.data, Batch) and one.port == other.port
    return alike and (one.data.late is None) == (other.data.late is None)


def joined(buffers: list[QueuedBuffer]) -> QueuedBuffer:
    """Buffers of records that join, as one; as old as the oldest of them."""
    if len(buffers) == 1:
        return buffers[0]

    def began(now_us: int) -> None:
        for buffer in buffers:
            if buffer.began is not None:
                buffer.began(now_us)

    data = concat([buffer.data for buffer in buffers if isinstance(buffer.data, Batch)])
    rows, nbytes = sum(buffer.rows for buffer in buffers), sum(buffer.nbytes for buffer in buffers)
    return QueuedBuffer(buffers[0].port, data, min(buffer.born_us for buffer in buffers), rows, nbytes, began)


@dataclass(frozen=True, slots=True)
class QueuedWatermark:
    """An input's watermark on its way to the operator."""

    port: int
    watermark_us: int

    def joined(self, other: QueuedWatermark) -> QueuedWatermark | None:
        """Both as one if nothing lies between them: the higher one says it all, unless one says that the input is idle."""
        if self.port != other.port or IDLE_US in (self.watermark_us, other.watermark_us):
            return None
        return self if self.watermark_us > other.watermark_us else other


class InputQueue(Protocol):
    """What waits for one operator. ``put_bytes`` and ``put_rows`` only grow."""

    put_bytes: int
    put_rows: int

    @property
    def nbytes(self) -> int:
        """Memory of the buffers that wait."""
        ...

    @property
    def buffers(self) -> int: ...

    @property
    def empty(self) -> bool:
        """Whether neither data nor a watermark waits."""
        ...

    @property
    def born_us(self) -> int | None:
        """The oldest time in the buffer whose turn is next; None while there is none."""
        ...

    def put(self, waiting: QueuedBuffer) -> None: ...

    def put_watermark(self, port: int, watermark_us: int) -> None: ...

    def take_watermark(self) -> QueuedWatermark | None:
        """Remove and return the next watermark, if nothing waits before it."""
        ...

    def take(self, now_us: int, rows: int) -> QueuedBuffer | None:
        """Remove and return what is next, one buffer or several small ones joined to about so many rows.

        None when a watermark comes first, or nothing is worth processing.
        """
        ...

    def worked(self, waiting: QueuedBuffer, elapsed_ns: int) -> None:
        """What was taken last has been processed."""
        ...


class Fifo:
    """First in, first out, over all ports and senders."""

    def __init__(self) -> None:
        self._waiting: deque[QueuedBuffer | QueuedWatermark] = deque()
        self.nbytes = self.buffers = self.put_bytes = self.put_rows = 0

    @property
    def empty(self) -> bool:
        return not self._waiting

    @property
    def born_us(self) -> int | None:
        head = self._waiting[0] if self._waiting else None
        return head.born_us if isinstance(head, QueuedBuffer) else None

    def put(self, waiting: QueuedBuffer) -> None:
        self._waiting.append(waiting)
        self.buffers += 1
        self.nbytes += waiting.nbytes
        self.put_bytes += waiting.nbytes
        self.put_rows += waiting.rows

    def put_watermark(self, port: int, watermark_us: int) -> None:
        new, last = QueuedWatermark(port, watermark_us), self._waiting[-1] if self._waiting else None
        if isinstance(last, QueuedWatermark) and (both := last.joined(new)) is not None:
            self._waiting[-1] = both
        else:
            self._waiting.append(new)

    def take_watermark(self) -> QueuedWatermark | None:
        head = self._waiting[0] if self._waiting else None
        if isinstance(head, QueuedWatermark):
            self._waiting.popleft()
            return head
        return None

    def take(self, now_us: int, rows: int) -> QueuedBuffer | None:
        taken: list[QueuedBuffer] = []
        while self._waiting and isinstance(head := self._waiting[0], QueuedBuffer) and rows > 0:
            if taken and not joins(taken[-1], head):
                break
            taken.append(head)
            self._waiting.popleft()
            rows -= head.rows
        self.buffers -= len(taken)
        self.nbytes -= sum(buffer.nbytes for buffer in taken)
        return joined(taken) if taken else None

    def worked(self, waiting: QueuedBuffer, elapsed_ns: int) -> None:
        """Nothing to learn from it."""
