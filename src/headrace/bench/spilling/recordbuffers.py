"""Fixed-size buffers of records, one per row of an index: the 2 KB that sessionization keeps per user (SCALLA 3)."""

from __future__ import annotations

import numpy as np

from headrace.state.compiled import I64

RECORD_BYTES = 16
"""A time and a value."""


class RecordBuffers:
    """Row ``i`` has room for ``width`` records of a time and a value, in the order in which they come."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._times = np.zeros((0, width), np.int64)
        self._values = np.zeros((0, width), np.int64)
        self._counts = np.zeros(0, np.int64)

    @property
    def nbytes(self) -> int:
        return self._times.nbytes + self._values.nbytes + self._counts.nbytes

    def grow(self, rows: int) -> None:
        """Room for this many rows at least."""
        more = rows - len(self._counts)
        if more > 0:
            self._times = np.concatenate((self._times, np.zeros((more, self.width), np.int64)))
            self._values = np.concatenate((self._values, np.zeros((more, self.width), np.int64)))
            self._counts = np.concatenate((self._counts, np.zeros(more, np.int64)))

    def crowded(self, rows: I64) -> I64:
        """Of rows that are to get one record each time they are named, those without enough room."""
        named, incoming = np.unique(rows, return_counts=True)
        return named[self._counts[named] + incoming > self.width]

    def append(self, rows: I64, times: I64, values: I64) -> None:
        """Add records, several per row if it is named several times; there must be room."""
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        named, heads, incoming = np.unique(ordered, return_index=True, return_counts=True)
        at = self._counts[ordered] + np.arange(len(order)) - np.repeat(heads, incoming)
        self._times[ordered, at], self._values[ordered, at] = times[order], values[order]
        self._counts[named] += incoming

    def take(self, rows: I64) -> tuple[I64, I64, I64]:
        """Empty some rows' buffers; of each record, the place of its row in ``rows``, its time and its value."""
        owners, at = np.nonzero(np.arange(self.width) < self._counts[rows, None])
        self._counts[rows] = 0
        return owners, self._times[rows[owners], at], self._values[rows[owners], at]
