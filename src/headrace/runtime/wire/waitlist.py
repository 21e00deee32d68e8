"""Records of slices whose state is still on its way: they wait, in their order, while those of other slices go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa

from headrace.runtime.batch import Batch
from headrace.runtime.operators.queues import QueuedBuffer
from headrace.runtime.wire.inbound import Inbound
from headrace.state.hashing import slices_of

End = TypeVar("End")
Item = TypeVar("Item")
Split = Callable[[End, Item, frozenset[int]], tuple[Item | None, Item | None]]
"""What of an item is of some slices, and what is not."""


class Waitlist(Generic[End, Item]):
    """``slices`` are those that are waited for; none most of the time.

    Pure: items are opaque but for ``split``. The protocol's simulator runs this very class.
    """

    def __init__(self, split: Split[End, Item]) -> None:
        self._split = split
        self.clear()

    def sift(self, end: End, item: Item) -> Item | None:
        """What of an item that arrived at an end need not wait, if any; the rest is kept."""
        later, now = self._split(end, item, self.slices)
        if later is not None:
            self._waiting.append((end, later))
        return now

    def take(self) -> Iterator[tuple[End, Item]]:
        """All are here: what has waited, in order."""
        waiting = self._waiting
        self.clear()
        yield from waiting

    def clear(self) -> None:
        """Nothing is waited for, and nothing waits."""
        self._waiting: list[tuple[End, Item]] = []
        self.slices: frozenset[int] = frozenset()


def split(
    inbound: Inbound, buffer: QueuedBuffer, slices: frozenset[int]
) -> tuple[QueuedBuffer | None, QueuedBuffer | None]:
    """A buffer's rows of some slices, and the others."""
    waits = np.isin(_slices(inbound, buffer), list(slices))
    if not waits.any():
        return None, buffer
    if waits.all():
        return buffer, None
    return replace(_part(buffer, waits), began=None), _part(buffer, ~waits)


def _slices(inbound: Inbound, buffer: QueuedBuffer) -> np.ndarray:
    keys, data = inbound.edge.keys, buffer.data
    if isinstance(data, Batch):
        columns = [data.records.column(key) for key in keys]
    else:
        columns = data.columns[1 : 1 + len(keys)]
    return slices_of(columns, inbound.slices)


def _part(buffer: QueuedBuffer, rows: np.ndarray) -> QueuedBuffer:
    data = buffer.data.where(rows) if isinstance(buffer.data, Batch) else buffer.data.filter(pa.array(rows))
    count = int(rows.sum())
    return replace(buffer, data=data, rows=count, nbytes=buffer.nbytes * count // max(buffer.rows, 1))
