"""Which rows of a table have changed since they were stored, and the digests of what is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.durable.changes import (
    ID_BYTES,
    ZERO_DIGEST,
    Change,
    Digest,
    Pending,
    id_batch,
    ids_of,
    no_ids,
    plus,
    split_by_slice,
    total,
    with_ids,
)
from headrace.state.grouping import Rows
from headrace.state.hashing import U64
from headrace.state.rowhash import places_by_slice, restamp, rows_of_slices, rows_where
from headrace.state.table.ahead import CopiedAhead, RowCopies, copied
from headrace.state.table.aside import Rooms, handfuls, slices_together

Slices = npt.NDArray[np.uint16]
Stamps = U64
"""Two for each row."""

Grave = tuple[Slices, U64, U64, Stamps]
"""Slice, identity and stamps of rows that were stored and are gone."""
_GRAVE_BYTES = 34


class Tracking:
    """Per row: its slice, whether it is dirty, whether a version of it is stored, and that version's stamps.

    A row's slice is asked for when it is first stored: many rows are dropped before. A row that is stored and
    then dropped leaves a grave: its identity has to be deleted. ``schema`` is that of rows as they are stored.
    """

    def __init__(self, slices: int, schema: pa.Schema) -> None:
        self._slices = slices
        self._slice = np.zeros(0, np.uint16)
        self.dirty = np.zeros(0, bool)
        self._stored = np.zeros(0, bool)
        self._stamps = np.zeros((0, 2), np.uint64)
        self._ahead: CopiedAhead | None = None
        self._rooms = Rooms(schema)
        self._graves: list[Grave] = []
        self._digests: dict[int, Digest] = {}

    def grow(self, capacity: int) -> None:
        more = capacity - len(self._slice)
        self._slice = np.concatenate((self._slice, np.zeros(more, np.uint16)))
        self.dirty = np.concatenate((self.dirty, np.zeros(more, bool)))
        self._stored = np.concatenate((self._stored, np.zeros(more, bool)))
        self._stamps = np.concatenate((self._stamps, np.zeros((more, 2), np.uint64)))
        if self._ahead is not None:
            self._ahead.grow(capacity)

    def touch(self, rows: Rows) -> None:
        """Rows have changed."""
        self.dirty[rows] = True
        if self._ahead is not None:
            self._ahead.touch(rows)

    def copy_ahead(self, export: Callable[[Rows], pa.RecordBatch]) -> None:
        """Copy rows that have changed, so that the next ``swap`` has less to do."""
        if self._ahead is None:
            self._ahead = CopiedAhead()
            self._ahead.grow(len(self.dirty))
        else:
            self._ahead.copy(self.dirty, export)

    @property
    def nbytes(self) -> int:
        graves = sum(array.nbytes for grave in self._graves for array in grave)
        ahead = self._ahead.nbytes if self._ahead is not None else 0
        aside = graves + ahead + self._rooms.nbytes
        return self._slice.nbytes + self.dirty.nbytes + self._stored.nbytes + self._stamps.nbytes + aside

    @property
    def row_bytes(self) -> int:
        """Per row, its grave included."""
        return 20 + _GRAVE_BYTES

    @property
    def dirty_rows(self) -> int:
        return int(np.count_nonzero(self.dirty))

    @property
    def grave_bytes(self) -> int:
        return ID_BYTES * sum(len(grave[0]) for grave in self._graves)

    def bury(self, rows: Rows, identity: Callable[[Rows], list[pa.Array]]) -> None:
        """Rows are about to be dropped; ``identity`` gives the columns that they are known by."""
        stored = rows[self._stored[rows]]
        if len(stored):
            self._graves.append((self._slice[stored], *ids_of(identity(stored)), self._stamps[stored]))
        self.forget(rows)

    def refuse(self, slice: int, ids: tuple[U64, U64], stamps: Stamps) -> None:
        """Stored rows of a slice that find no room here: they are deleted with the next change."""
        self._graves.append((np.full(len(ids[0]), slice, np.uint16), *ids, stamps))

    def swap(self, export: Callable[[Rows], pa.RecordBatch], slices_of: Callable[[Rows], Slices], n_id: int) -> Pending:
        """Set aside what changed since the last call: ``export`` copies rows, of which the first ``n_id`` columns are what
        they are known by.

        Only what must be of this moment is done at once. What it means for each slice is worked out when the changes are
        asked for.
        """
        ahead: list[RowCopies] = []
        room = self._rooms.take(len(self.dirty))
        if self._ahead is None:
            rows = room.rows[: rows_where(self.dirty, room.rows)]
            rest = rows
        else:
            ahead, rest = self._ahead.take(self.dirty)
            rows = np.concatenate((*(copy.rows for copy in ahead), rest))
        for some in handfuls(rows):
            fresh = some[~self._stored[some]]
            self._slice[fresh] = slices_of(fresh)
        starts, places = np.empty(self._slices + 1, np.int64), room.places[: len(rows)]
        places_by_slice(rows, self._slice, starts, places)
        sums, at = np.zeros((self._slices, 2), np.uint64), 0
        for copy in chain(ahead, (copied(some, export) for some in handfuls(rest))):
            end = at + len(copy.rows)
            room.put(copy.puts, places[at:end])
            restamp(copy.rows, self._slice, copy.stamps, self._stamps, sums)
            at = end
        self._stored[rows] = True
        self.dirty[rows] = False
        graves = _joined(self._graves)
        self._graves.clear()
        if self._ahead is not None:
            self._ahead.begin()

        def changes() -> Iterator[Change]:
            together = list(slices_together(sorted({*np.flatnonzero(np.diff(starts)).tolist(), *graves}), starts))
            borders = [(int(starts[some[0]]), int(starts[some[-1] + 1])) for some in together]
            for some, puts in zip(together, room.parts(borders)):
                identified = with_ids(puts, ids_of(puts.columns[:n_id]))
                yield from self._changes(some, starts - starts[some[0]], identified, sums, graves)
            self._rooms.give_back(room)

        return changes

    def _changes(
        self, slices: list[int], starts: Rows, puts: pa.RecordBatch, sums: Stamps, graves: dict[int, Grave]
    ) -> Iterator[Change]:
        """Of some slices: rows as they are, by what the sums of their stamps have changed, and rows that are gone."""
        for slice in slices:
            start, end = int(starts[slice]), int(starts[slice + 1])
            parent = self._digests.get(slice, ZERO_DIGEST)
            digest, deletes = plus(parent, total(sums[slice : slice + 1])), no_ids()
            if slice in graves:
                _, *ids, stored = graves[slice]
                digest = plus(digest, total(stored), -1)
                deletes = id_batch((ids[0], ids[1]))
            self._digests[slice] = digest
            yield Change(slice, puts.slice(start, end - start), deletes, parent, digest)

    def rows_of(self, slices: frozenset[int]) -> Rows:
        """The stored rows of some slices, ascending."""
        wanted = np.zeros(self._slices, bool)
        wanted[list(slices)] = True
        rows = np.empty(len(self._slice), np.int64)  # memory that nobody writes to costs nothing
        return rows[: rows_of_slices(self._slice, self._stored, wanted, rows)].copy()

    def forget(self, rows: Rows) -> None:
        """Rows are about to be dropped, and are another's to tell of."""
        self.dirty[rows] = self._stored[rows] = False
        self._stamps[rows] = 0
        if self._ahead is not None:
            self._ahead.forget(rows)

    def loaded(self, slice: int, digest: Digest, rows: Rows, stamps: Stamps) -> None:
        """Rows of a slice are just what is stored."""
        self._digests[slice], self._slice[rows] = digest, slice
        self._stamps[rows] = stamps
        self._stored[rows] = True
        self.dirty[rows] = False


def _joined(graves: list[Grave]) -> dict[int, Grave]:
    """By slice."""
    if not graves:
        return {}
    slices, one, two, stamps = (np.concatenate(parts) for parts in zip(*graves))
    return {slice: (slices[at], one[at], two[at], stamps[at]) for slice, at in split_by_slice(slices)}
