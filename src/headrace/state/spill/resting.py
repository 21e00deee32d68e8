"""States of keys that are not in memory, on disk in versions: of a row of a table, the last one written counts.

Where ``state.spill.bounded`` merges the parts of a state, here a state is whole and is replaced, so a reducer needs no
combine. What is written is what changed; when more than half of the files is out of date, all that counts is
written anew as the next *edition*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.durable.changes import PANE
from headrace.state.grouping import Rows
from headrace.state.hashing import slices_of
from headrace.state.spill.diskrows import Buckets, DiskRows

_AT, _GONE = "__at", "__gone"
_WORN = 2
"""So many times the size of what counted: time to write a new edition."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where rows are put that do not fit in memory: in which buckets and slices, through what buffer."""

    bucket_of: Callable[[list[pa.Array]], Buckets]
    buckets: int
    slices: int
    directory: Path
    buffer_bytes: int

    def rows(self, schema: pa.Schema, keys_of: Callable[[pa.RecordBatch], list[pa.Array]]) -> DiskRows:
        """An empty store for rows of a schema."""
        return DiskRows(
            schema,
            lambda rows: self.bucket_of(keys_of(rows)),
            lambda rows: slices_of(keys_of(rows), self.slices),
            self.directory,
            self.buffer_bytes,
        )


@dataclass(frozen=True, slots=True)
class RestingVersions:
    """Rows as a table exports them, oldest first; ``gone`` says which of them are no longer."""

    partial: pa.RecordBatch
    gone: npt.NDArray[np.bool_]


class Resting:
    """Rows of a table's ``partial_schema``; a pane of ``disk`` is an edition."""

    def __init__(self, partial_schema: pa.Schema, keys: int, shelf: Shelf) -> None:
        self._partial_schema, self._keys, self._shelf = partial_schema, keys, shelf
        edition, gone = pa.field(PANE, pa.int64()), pa.field(_GONE, pa.bool_())
        at = pa.field(_AT, pa.int64())
        self._schema = pa.schema([edition, at, *list(partial_schema)[1:], gone])
        self.disk = shelf.rows(self._schema, lambda rows: rows.columns[2 : 2 + keys])
        self._edition, self._next, self._fresh_bytes = 0, 0, 0

    def add(self, partial: pa.RecordBatch) -> None:
        """Put rows, in place of what there was of them."""
        self.put(partial.columns, np.zeros(partial.num_rows, bool))

    def forget(self, panes: Rows, keys: list[pa.Array]) -> None:
        """Rows that are no longer."""
        states = [pa.nulls(len(panes), field.type) for field in list(self._partial_schema)[1 + self._keys :]]
        self.put([pa.array(panes), *keys, *states], np.ones(len(panes), bool))

    def put(self, columns: list[pa.Array], gone: npt.NDArray[np.bool_]) -> None:
        """Versions as they were read."""
        edition = pa.array(np.full(len(gone), self._next))
        self.disk.add(pa.RecordBatch.from_arrays([edition, *columns, pa.array(gone)], schema=self._schema))

    def read(self, bucket: int) -> Iterator[RestingVersions]:
        """A bucket's versions, some blocks at a time."""
        for rows in self.disk.read(self._edition, bucket):
            partial = pa.RecordBatch.from_arrays(rows.columns[1:-1], schema=self._partial_schema)
            yield RestingVersions(partial, rows.column(_GONE).to_numpy(zero_copy_only=False))

    def size_of(self, bucket: int) -> int:
        """Bytes of a bucket on disk."""
        return self.disk.size_of(self._edition, bucket)

    @property
    def worn(self) -> bool:
        """Whether so much is out of date that it should be written anew."""
        return self._size() > _WORN * max(self._fresh_bytes, self._shelf.buffer_bytes)

    def renew(self) -> None:
        """Rows put from now on are the next edition; it counts after ``renewed``."""
        self._next = 1 - self._edition

    def renewed(self) -> None:
        self.disk.drop(self._edition)
        self._edition = self._next
        self._fresh_bytes = self._size()

    def resume(self) -> None:
        """Go on with the edition that was loaded; there is one at most."""
        self._edition = self._next = max(self.disk.panes(), default=0)

    def restored(self) -> None:
        """All has been loaded."""
        self.resume()
        self._fresh_bytes = self._size()

    def _size(self) -> int:
        return sum(self.size_of(bucket) for bucket in range(self._shelf.buckets))
