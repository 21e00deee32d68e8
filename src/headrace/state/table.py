"""The table behind reduce steps: one row per (pane, key), accumulators as columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.aggregates import Accumulator
from headrace.state.changes import (
    ID_BYTES,
    ID_COLUMNS,
    ZERO_DIGEST,
    Change,
    Digest,
    id_batch,
    no_ids,
    plus,
    split_by_slice,
    total,
    with_ids,
)
from headrace.state.grouping import Groups, Key, Rows, group, key_arrays
from headrace.state.hashing import U64, hash_columns, row_stamps, slices_of

PANE = "__pane"
_FIRST_CAPACITY = 1024
_COLUMN_BYTES = 12
"""About what a value takes: most are numbers, keys are often longer."""


class Partials:
    """Groups one batch at a time into partials that a ``GroupTable`` can absorb; keeps nothing."""

    def __init__(self, keys: list[pa.Field], accumulators: Sequence[Accumulator]) -> None:
        self._keys, self._accumulators, self._capacity = keys, list(accumulators), _FIRST_CAPACITY
        fields = (field for accumulator in self._accumulators for field in accumulator.fields)
        self._schema = pa.schema([pa.field(PANE, pa.int64()), *keys, *fields])

    def of(self, batch: pa.RecordBatch, key_columns: list[pa.Array], panes: Rows | int, times: Rows) -> pa.RecordBatch:
        """One row per pane and key of the batch."""
        groups = group(key_columns, panes)
        rows = np.arange(len(groups.keys))
        if len(rows) > self._capacity:
            self._capacity = 2 * len(rows)
            for accumulator in self._accumulators:
                accumulator.grow(self._capacity)
        columns = [pa.array(groups.panes), *key_arrays(groups.keys, self._keys)]
        for accumulator in self._accumulators:
            accumulator.reset(rows)
            accumulator.add(groups.of_row, batch, times)
            columns += accumulator.export(rows)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


class GroupTable:
    """Rows addressed by pane and key; absorbs records or partials, finalises, and tells its changes.

    ``extras`` are whole-number columns that the step manages itself (a session's end, a version).
    """

    def __init__(
        self, keys: list[pa.Field], accumulators: Sequence[Accumulator], slices: int, extras: Sequence[str] = ()
    ) -> None:
        self.key_fields, self._accumulators, self._slices = keys, list(accumulators), slices
        self.extras: dict[str, Rows] = {name: np.zeros(0, np.int64) for name in extras}
        self._rows: dict[int, dict[Key, int]] = {}
        self._keys: list[Key] = []
        self._pane = np.zeros(0, np.int64)
        self._slice = np.zeros(0, np.uint16)
        self._dirty = np.zeros(0, bool)
        self._stored = np.zeros(0, bool)
        self._stamps = np.zeros((2, 0), np.uint64)
        self._free: list[int] = []
        self._graves: list[tuple[npt.NDArray[np.uint16], U64, U64, U64, U64]] = []
        self._digests: dict[int, Digest] = {}
        self.partial_schema = pa.schema(
            [pa.field(PANE, pa.int64()), *keys, *(f for a in self._accumulators for f in a.fields)]
            + [pa.field(f"__{name}", pa.int64()) for name in extras]
        )
        self._grow(_FIRST_CAPACITY)

    def __len__(self) -> int:
        return sum(len(rows) for rows in self._rows.values())

    def panes(self) -> list[int]:
        """Panes that hold rows, ascending."""
        return sorted(self._rows)

    def pane(self, pane: int) -> dict[Key, int]:
        """A pane's rows by key."""
        return self._rows.get(pane, {})

    def rows_of(self, pane: int) -> Rows:
        return np.fromiter(self._rows.get(pane, {}).values(), np.int64)

    def pane_of(self, rows: Rows) -> Rows:
        return self._pane[rows]

    def slices_of(self, rows: Rows) -> npt.NDArray[np.uint16]:
        return self._slice[rows]

    @property
    def accumulators(self) -> Sequence[Accumulator]:
        return self._accumulators

    def keys_of(self, rows: Rows) -> list[Key]:
        return [self._keys[row] for row in rows.tolist()]

    def absorb(self, batch: pa.RecordBatch, key_columns: list[pa.Array], panes: Rows | int, times: Rows) -> Rows:
        """Add records to their rows; returns the rows touched, once each."""
        groups = group(key_columns, panes)
        return self.absorb_groups(batch, groups, times)

    def absorb_groups(self, batch: pa.RecordBatch, groups: Groups, times: Rows) -> Rows:
        """The same for records that are grouped already."""
        touched = self.intern(groups.panes, groups.keys)
        rows = touched[groups.of_row]
        for accumulator in self._accumulators:
            accumulator.add(rows, batch, times)
        self._dirty[touched] = True
        return touched

    def add(self, rows: Rows, batch: pa.RecordBatch, times: Rows) -> None:
        """Add records to rows that the step chose itself."""
        for accumulator in self._accumulators:
            accumulator.add(rows, batch, times)
        self._dirty[rows] = True

    def absorb_partial(self, partial: pa.RecordBatch) -> Rows:
        """Merge partials (columns of ``partial_schema``); returns the rows touched, once each."""
        n_keys = len(self.key_fields)
        columns = partial.columns
        groups = group(columns[1 : 1 + n_keys], columns[0].to_numpy(zero_copy_only=False))
        touched = self.intern(groups.panes, groups.keys)
        self._merge(touched[groups.of_row], columns[1 + n_keys :])
        self._dirty[touched] = True
        return touched

    def intern(self, panes: Rows, keys: list[Key]) -> Rows:
        """The rows of these (pane, key) pairs, made where missing."""
        found = np.empty(len(keys), np.int64)
        new: list[int] = []
        pane, rows = None, {}
        for i, (wanted, key) in enumerate(zip(panes.tolist(), keys)):
            if wanted != pane:
                pane, rows = wanted, self._rows.setdefault(wanted, {})
            row = rows.get(key)
            if row is None:
                row = rows[key] = self._take(wanted, key)
                new.append(i)
            found[i] = row
        if new:
            fresh = [keys[i] for i in new]
            self._slice[found[new]] = slices_of(key_arrays(fresh, self.key_fields), self._slices)
        return found

    def mark(self, rows: Rows) -> None:
        """Note that the step changed these rows' extras."""
        self._dirty[rows] = True

    def fold(self, into: int, row: int) -> None:
        """Merge one row's state into another's and drop it (two sessions that became one)."""
        one = np.array([row])
        self._merge(np.array([into]), [column for a in self._accumulators for column in a.export(one)])
        self._dirty[into] = True
        self.drop(one)

    def drop(self, rows: Rows) -> None:
        """Forget rows."""
        if not len(rows):
            return
        stored = rows[self._stored[rows]]
        if len(stored):
            ids = self._ids(stored)
            self._graves.append((self._slice[stored], *ids, self._stamps[0, stored], self._stamps[1, stored]))
        for row, pane in zip(rows.tolist(), self._pane[rows].tolist()):
            of_pane = self._rows[pane]
            del of_pane[self._keys[row]]
            if not of_pane:
                del self._rows[pane]
        for accumulator in self._accumulators:
            accumulator.reset(rows)
        for column in self.extras.values():
            column[rows] = 0
        self._dirty[rows] = self._stored[rows] = False
        self._free.extend(rows.tolist())

    def export(self, rows: Rows) -> pa.RecordBatch:
        """Rows as partials."""
        columns = [pa.array(self._pane[rows]), *key_arrays(self.keys_of(rows), self.key_fields)]
        for accumulator in self._accumulators:
            columns += accumulator.export(rows)
        columns += [pa.array(column[rows]) for column in self.extras.values()]
        return pa.RecordBatch.from_arrays(columns, schema=self.partial_schema)

    def all_rows(self) -> Rows:
        return np.fromiter((row for rows in self._rows.values() for row in rows.values()), np.int64)

    def results(self, rows: Rows) -> list[pa.Array]:
        """The reducers' final columns."""
        return [accumulator.finalize(rows) for accumulator in self._accumulators]

    def key_columns(self, rows: Rows) -> list[pa.Array]:
        return key_arrays(self.keys_of(rows), self.key_fields)

    def changes(self) -> list[Change]:
        """What changed per slice since the last call; see ``state.changes``."""
        rows = np.flatnonzero(self._dirty)
        rows = rows[self._live(rows)]
        puts = with_ids(self.export(rows), self._ids(rows))
        stamps = row_stamps(puts) if len(rows) else (np.zeros(0, np.uint64), np.zeros(0, np.uint64))
        by_slice = dict(split_by_slice(self._slice[rows]))
        graves = [np.concatenate(parts) for parts in zip(*self._graves)] if self._graves else None
        dead = dict(split_by_slice(graves[0])) if graves else {}
        changes = []
        for slice in sorted(by_slice.keys() | dead.keys()):
            digest, deletes, put = self._digests.get(slice, ZERO_DIGEST), no_ids(), puts.slice(0, 0)
            if graves is not None and slice in dead:
                at = dead[slice]
                digest = plus(digest, total((graves[3][at], graves[4][at])), -1)
                deletes = id_batch((graves[1][at], graves[2][at]))
            if slice in by_slice:
                at = by_slice[slice]
                before = rows[at][self._stored[rows[at]]]
                digest = plus(digest, total((self._stamps[0, before], self._stamps[1, before])), -1)
                digest = plus(digest, total((stamps[0][at], stamps[1][at])))
                put = puts.take(pa.array(at))
            self._digests[slice] = digest
            changes.append(Change(slice, put, deletes, digest))
        self._stamps[0, rows], self._stamps[1, rows] = stamps
        self._stored[rows] = True
        self._dirty[:] = False
        self._graves.clear()
        return changes

    def dirty_bytes(self) -> int:
        rows = int(np.count_nonzero(self._dirty))
        graves = sum(len(grave[0]) for grave in self._graves)
        return rows * (_COLUMN_BYTES * len(self.partial_schema) + ID_BYTES) + graves * ID_BYTES

    def load(self, slice: int, image: pa.RecordBatch, digest: Digest) -> None:
        """Take over a slice's rows."""
        self._digests[slice] = digest
        if not image.num_rows:
            return
        stamps = row_stamps(image)
        partial = image.drop_columns(list(ID_COLUMNS))
        n_keys, n_extras = len(self.key_fields), len(self.extras)
        groups = group(partial.columns[1 : 1 + n_keys], partial.column(0).to_numpy(zero_copy_only=False))
        rows = self.intern(groups.panes, groups.keys)[groups.of_row]
        self._merge(rows, partial.columns[1 + n_keys : partial.num_columns - n_extras])
        for name, column in zip(self.extras, partial.columns[partial.num_columns - n_extras :]):
            self.extras[name][rows] = column.to_numpy(zero_copy_only=False)
        self._stamps[0, rows], self._stamps[1, rows] = stamps
        self._stored[rows] = True
        self._dirty[rows] = False

    def _merge(self, rows: Rows, columns: list[pa.Array]) -> None:
        at = 0
        for accumulator in self._accumulators:
            width = len(accumulator.fields)
            accumulator.merge(rows, columns[at : at + width])
            at += width

    def _ids(self, rows: Rows) -> tuple[U64, U64]:
        columns = [pa.array(self._pane[rows]), *self.key_columns(rows)]
        return hash_columns(columns, 0), hash_columns(columns, 1)

    def _live(self, rows: Rows) -> npt.NDArray[np.bool_]:
        free = np.zeros(len(self._pane), bool)
        free[self._free] = True
        return ~free[rows]

    def _take(self, pane: int, key: Key) -> int:
        if not self._free:
            self._grow(2 * len(self._pane))
        row = self._free.pop()
        self._pane[row], self._keys[row] = pane, key
        return row

    def _grow(self, capacity: int) -> None:
        size = len(self._pane)
        more = capacity - size
        self._pane = np.concatenate((self._pane, np.zeros(more, np.int64)))
        self._slice = np.concatenate((self._slice, np.zeros(more, np.uint16)))
        self._dirty = np.concatenate((self._dirty, np.zeros(more, bool)))
        self._stored = np.concatenate((self._stored, np.zeros(more, bool)))
        self._stamps = np.concatenate((self._stamps, np.zeros((2, more), np.uint64)), axis=1)
        self._keys.extend([None] * more)
        for name, column in self.extras.items():
            self.extras[name] = np.concatenate((column, np.zeros(more, np.int64)))
        for accumulator in self._accumulators:
            accumulator.grow(capacity)
        self._free.extend(range(capacity - 1, size - 1, -1))
