"""MR-hash (SCALLA 2.4): for any reduce function, records themselves go to buckets and wait there.

Nothing is aggregated before a pane is complete; then one bucket at a time is read and grouped, in the
order in which its records came. A bucket whose states do not fit is spread over buckets of the next level.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.allocator import give_back_freed
from headrace.state.durable.changes import PANE, Store
from headrace.state.grouping import Rows
from headrace.state.hashing import slices_of
from headrace.state.index.policies import INC
from headrace.state.spill.bounded import Parts
from headrace.state.spill.bounds import TABLE_SHARE, Bound, rows_for
from headrace.state.spill.buckets import bucket_of
from headrace.state.spill.diskrows import Buckets, DiskRows, Slices
from headrace.state.table.panes import Settled
from headrace.state.table.rowtable import GroupTable

TIME = "__time"
_BUFFER_SHARE = 0.12
"""Of the memory; five times as much is needed while the buffer is written, in order of its buckets."""
_GROUPED_SHARE = 0.5
"""Of the memory, for a bucket's records where they are their states' size: user functions that keep them."""

_DEEPEST = 8
"""Levels of recursion; beyond, a bucket is one key's records (or a few keys'), which must be grouped at once."""


class MrHash:
    """Records of ``schema`` by pane and bucket of their ``keys``."""

    def __init__(self, parts: Parts, bound: Bound, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        give_back_freed()
        self._parts, self._bound, self._schema, self._keys = parts, bound, schema, keys
        self.table = parts.table(1, INC)  # stays empty; knows how to hash keys
        self._slots = None if self.table.states_vary else rows_for(self.table, bound.memory_bytes)[0]
        stored = pa.schema([pa.field(PANE, pa.int64()), pa.field(TIME, pa.int64()), *schema])
        self._buffer_bytes = int(bound.memory_bytes * _BUFFER_SHARE)
        self._bucket_count = bound.buckets_behind(self._buffer_bytes)
        self.disk = DiskRows(stored, self._buckets_of, self._slices_of, bound.directory, self._buffer_bytes)
        self._below_bytes = 0

    @property
    def nbytes(self) -> int:
        return self.table.nbytes + self.disk.nbytes

    @property
    def spill_bytes(self) -> int:
        """Written to disk so far, at all levels."""
        return self.disk.written_bytes + self._below_bytes

    def stores(self) -> dict[str, Store]:
        return {"disk": self.disk}

    def told(self, rows: Rows) -> npt.NDArray[np.bool_]:
        return np.zeros(len(rows), bool)  # no key leaves memory for disk: it is on one side or the other

    def absorb(self, batch: pa.RecordBatch, key_columns: list[pa.Array], panes: Rows | int, times: Rows) -> Rows:
        of_row = np.full(batch.num_rows, panes) if isinstance(panes, int) else panes
        rows = pa.RecordBatch.from_arrays([pa.array(of_row), pa.array(times), *batch.columns], schema=self._stored)
        row_bytes, start = max(rows.nbytes / max(rows.num_rows, 1), 1), 0
        while start < rows.num_rows:
            turn = max(1, math.ceil((self._buffer_bytes - self.disk.nbytes) / row_bytes))
            part = rows.slice(start, turn)
            # What does not fill the buffer stays in it: as a copy, as a slice would keep the whole batch in memory.
            self.disk.add(part if part.num_rows == turn else part.take(pa.array(np.arange(part.num_rows))))
            start += turn
        return np.full(batch.num_rows, -1)

    def absorb_partial(self, partial: pa.RecordBatch) -> Rows:
        raise NotImplementedError("records are not combined before they reach MR-hash")

    def panes(self) -> list[int]:
        return self.disk.panes()

    def settled(
        self, panes: Sequence[int], rest: pa.RecordBatch | None = None, *, without: Rows | None = None
    ) -> Settled:
        assert rest is None and without is None, "nothing was aggregated yet"
        for bucket in range(self._bucket_count):
            for pane in panes:
                yield from self._settle(pane, bucket)

    def drop_pane(self, pane: int) -> None:
        self.disk.drop(pane)

    def close(self) -> None:
        self.disk.close()

    @property
    def _stored(self) -> pa.Schema:
        return pa.schema([pa.field(PANE, pa.int64()), pa.field(TIME, pa.int64()), *self._schema])

    def _buckets_of(self, rows: pa.RecordBatch) -> Buckets:
        keys = [rows.column(key) for key in self._keys]
        return bucket_of(self.table.index.key_hashes(keys), self._bound.level, self._bucket_count)

    def _slices_of(self, rows: pa.RecordBatch) -> Slices:
        return slices_of([rows.column(key) for key in self._keys], self._bound.slices)

    def _settle(self, pane: int, bucket: int) -> Settled:
        deepest = self._bound.level >= _DEEPEST
        too_large = self.disk.size_of(pane, bucket) > self._bound.memory_bytes * _GROUPED_SHARE
        table = None
        if deepest or self._slots is not None or not too_large:
            table = self._grouped(pane, bucket, None if deepest else self._slots)
        if table is None:
            yield from self._spread(pane, bucket)
        elif len(table):
            yield table, table.rows_of(0)

    def _grouped(self, pane: int, bucket: int, slots: int | None) -> GroupTable | None:
        """A bucket's groups, or None if there are too many or their keys are too long."""
        table = self._parts.table(slots, INC)
        for batch, times in self._records(pane, bucket):
            rows = table.admit([batch.column(key) for key in self._keys], 0).rows
            if slots is not None and (rows.min() < 0 or table.nbytes > self._bound.memory_bytes * TABLE_SHARE):
                return None
            table.add(rows, batch, times)
        return table

    def _spread(self, pane: int, bucket: int) -> Settled:
        bound = replace(self._bound, level=self._bound.level + 1, bucket_bytes=self.disk.size_of(pane, bucket))
        below = MrHash(self._parts, bound, self._schema, self._keys)
        try:
            for batch, times in self._records(pane, bucket):
                below.absorb(batch, [batch.column(key) for key in self._keys], 0, times)
            yield from below.settled([0])
        finally:
            self._below_bytes += below.spill_bytes
            below.close()

    def _records(self, pane: int, bucket: int) -> Iterator[tuple[pa.RecordBatch, Rows]]:
        for rows in self.disk.read(pane, bucket):
            yield rows.select(self._schema.names), rows.column(TIME).to_numpy()
