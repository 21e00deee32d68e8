"""Records of slices whose state is still on its way: they wait, in their order, while those of other slices go on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from headrace.runtime.batch import Batch
from headrace.runtime.operators.queues import QueuedBuffer
from headrace.runtime.wire.inbound import Inbound
from headrace.state.hashing import slices_of

Waiting = tuple[Inbound, QueuedBuffer]


class Waitlist:
    """``slices`` are those that are waited for; none most of the time."""

    def __init__(self) -> None:
        self.slices: frozenset[int] = frozenset()
        self._waiting: list[Waiting] = []

    def concerns(self, inbound: Inbound) -> bool:
        """Whether what arrives there may have to wait: watermarks too, which would close windows of what is not here."""
        return bool(self.slices) and inbound.edge.keyed

    def sift(self, inbound: Inbound, buffer: QueuedBuffer) -> QueuedBuffer | None:
        """What of a buffer need not wait, if any; the rest is kept."""
        waits = np.isin(_slices(inbound, buffer), list(self.slices))
        if not waits.any():
            return buffer
        if waits.all():
            self._waiting.append((inbound, buffer))
            return None
        later = _part(buffer, waits)
        self._waiting.append((inbound, replace(later, began=None)))
        return _part(buffer, ~waits)

    def take(self) -> Iterator[Waiting]:
        """All are here: what has waited, in order."""
        waiting, self._waiting, self.slices = self._waiting, [], frozenset()
        yield from waiting

    def clear(self) -> None:
        self._waiting, self.slices = [], frozenset()


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
