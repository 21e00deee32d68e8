"""Whole rows in order of arrival, numbered: appended, taken by number, thinned out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.schemas import empty_batch
from headrace.state.compiled import I64

_MERGED = 4
"""Chunks of one level become one of the next: a row is copied once per level, and few chunks are looked into."""
_MERGED_BYTES = 64_000_000
"""Chunks that are larger stay as they are: copying them takes long, and texts of more than 2 GB are not one array."""


class RowChunks:
    """Rows of one schema; their numbers go from zero to ``len``."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._chunks: list[pa.RecordBatch] = []
        self._levels: list[int] = []
        self._starts = np.zeros(1, np.int64)
        self.nbytes = 0

    def __len__(self) -> int:
        return int(self._starts[-1])

    def append(self, rows: pa.RecordBatch) -> None:
        """Add rows."""
        self._chunks.append(rows)
        self._levels.append(0)
        self.nbytes += rows.nbytes
        while self._levels[-_MERGED:] == [self._levels[-1]] * _MERGED and self._merge():
            pass
        self._number()

    def take(self, numbers: I64) -> pa.RecordBatch:
        """The rows of ascending numbers."""
        if not len(numbers):
            return empty_batch(self._schema)
        bounds = np.searchsorted(numbers, self._starts)
        parts = [
            chunk.take(pa.array(numbers[first:end] - start))
            for chunk, start, first, end in zip(self._chunks, self._starts, bounds, bounds[1:])
            if end > first
        ]
        return pa.concat_batches(parts) if len(parts) > 1 else parts[0]

    def keep(self, kept: npt.NDArray[np.bool_]) -> None:
        """Forget the other rows, and number those that stay anew."""
        thinned = [
            (chunk.filter(pa.array(kept[start : start + chunk.num_rows])), level)
            for chunk, start, level in zip(self._chunks, self._starts, self._levels)
        ]
        self._chunks = [chunk for chunk, _ in thinned if chunk.num_rows]
        self._levels = [level for chunk, level in thinned if chunk.num_rows]
        self.nbytes = sum(chunk.nbytes for chunk in self._chunks)
        self._number()

    def _merge(self) -> bool:
        last = self._chunks[-_MERGED:]
        last_bytes = sum(chunk.nbytes for chunk in last)
        if last_bytes > _MERGED_BYTES:
            return False
        merged = pa.concat_batches(last)
        self.nbytes += merged.nbytes - last_bytes
        self._chunks[-_MERGED:], self._levels[-_MERGED:] = [merged], [self._levels[-1] + 1]
        return True

    def _number(self) -> None:
        self._starts = np.cumsum([0, *(chunk.num_rows for chunk in self._chunks)])
