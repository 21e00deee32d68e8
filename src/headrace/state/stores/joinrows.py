"""The store behind joins: whole rows kept by pane and side, appended and dropped, never updated."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.state.durable.changes import (
    ID_BYTES,
    ID_COLUMNS,
    PANE,
    ZERO_DIGEST,
    Change,
    Digest,
    Pending,
    id_batch,
    no_ids,
    plus,
    split_by_slice,
    stamps_of,
    total,
    with_ids,
)
from headrace.state.hashing import U64

SLICE = "__slice"


class RowStore:
    """Rows of one side of a join, by pane. A row's identity is its slice and a counter."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._stored_schema = pa.schema([*schema, (PANE, pa.int64()), (SLICE, pa.uint16())])
        self._batches: dict[int, list[pa.RecordBatch]] = {}
        self._new: list[pa.RecordBatch] = []
        self._graves: list[pa.RecordBatch] = []
        self._digests: dict[int, Digest] = {}
        self._next = 1

    def panes(self) -> list[int]:
        return sorted(self._batches)

    def add(self, batch: pa.RecordBatch, pane: int, slices: npt.NDArray[np.uint16]) -> None:
        """Keep rows of one pane."""
        n = batch.num_rows
        columns = [*batch.columns, pa.array(np.full(n, pane)), pa.array(slices)]
        rows = pa.RecordBatch.from_arrays(columns, schema=self._stored_schema)
        counter = np.arange(self._next, self._next + n, dtype=np.uint64)
        self._next += n
        rows = with_ids(rows, (slices.astype(np.uint64), counter))
        self._batches.setdefault(pane, []).append(rows)
        self._new.append(rows)

    def rows_of(self, panes: list[int]) -> pa.Table:
        """The rows of some panes, without their bookkeeping."""
        batches = [batch for pane in panes for batch in self._batches.get(pane, ())]
        if not batches:
            return self.schema.empty_table()
        return pa.Table.from_batches(batches).select(self.schema.names)

    def drop(self, pane: int) -> None:
        """Forget a pane."""
        self._graves += self._batches.pop(pane, [])

    def changes(self) -> list[Change]:
        new_ids = {id(batch) for batch in self._new}
        dropped = {id(batch) for batch in self._graves}
        puts = _concat([c for c in self._new if id(c) not in dropped], self._stored_schema)
        graves = _concat([c for c in self._graves if id(c) not in new_ids], self._stored_schema)
        put_at = dict(split_by_slice(_slices(puts)))
        grave_at = dict(split_by_slice(_slices(graves)))
        changes = []
        for slice in sorted(put_at.keys() | grave_at.keys()):
            digest = parent = self._digests.get(slice, ZERO_DIGEST)
            deletes, put = no_ids(), puts.slice(0, 0)
            if slice in grave_at:
                gone = graves.take(pa.array(grave_at[slice]))
                digest = plus(digest, total(stamps_of(gone)), -1)
                deletes = id_batch(_ids(gone))
            if slice in put_at:
                put = puts.take(pa.array(put_at[slice]))
                digest = plus(digest, total(stamps_of(put)))
            self._digests[slice] = digest
            changes.append(Change(slice, put, deletes, parent, digest))
        self._new.clear()
        self._graves.clear()
        return changes

    def copy_ahead(self) -> None:
        """A swap is quick."""

    def swap(self) -> Pending:
        changes = self.changes()
        return lambda: changes

    @property
    def nbytes(self) -> int:
        return int(sum(batch.nbytes for batches in self._batches.values() for batch in batches))

    def dirty_bytes(self) -> int:
        new_bytes = int(sum(batch.nbytes for batch in self._new))
        return new_bytes + ID_BYTES * int(sum(batch.num_rows for batch in self._graves))

    def give_away(self, slices: frozenset[int]) -> None:
        gone = pa.array(sorted(slices), pa.uint16())
        for pane, batches in list(self._batches.items()):
            kept = [batch.filter(pc.invert(pc.is_in(batch.column(SLICE), gone))) for batch in batches]
            self._batches[pane] = [batch for batch in kept if batch.num_rows]
            if not self._batches[pane]:
                del self._batches[pane]

    def expect(self, rows: int) -> None:
        """Room is made as rows come."""

    def load(self, slice: int, image: pa.RecordBatch, digest: Digest) -> None:
        self._digests[slice] = digest
        if not image.num_rows:
            return
        panes = image.column(PANE).to_numpy()
        for pane in np.unique(panes).tolist():
            self._batches.setdefault(pane, []).append(image.filter(pa.array(panes == pane)))
        self._next = max(self._next, int(_ids(image)[1].max()) + 1)


def _concat(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if not batches:
        empty = np.zeros(0, np.uint64)
        return with_ids(
            pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema), (empty, empty)
        )
    return pa.concat_batches(batches)


def _slices(rows: pa.RecordBatch) -> npt.NDArray[np.uint16]:
    slices: npt.NDArray[np.uint16] = rows.column(SLICE).to_numpy()
    return slices


def _ids(rows: pa.RecordBatch) -> tuple[U64, U64]:
    return rows.column(ID_COLUMNS[0]).to_numpy(), rows.column(ID_COLUMNS[1]).to_numpy()
