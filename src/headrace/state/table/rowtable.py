"""The table behind reduce steps: one row per (pane, key), accumulators as columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.durable.changes import ID_BYTES, ID_COLUMNS, PANE, Change, Digest, Pending
from headrace.state.grouping import Rows
from headrace.state.hashing import row_stamps, slices_of
from headrace.state.index.keyindex import Admission, KeyIndex
from headrace.state.index.policies import INC, ResidencyPolicy
from headrace.state.table.aggregates import Accumulator, Numeric
from headrace.state.table.tracking import Tracking

_FIRST_CAPACITY = 1024
_LARGE_ROWS = 200_000
"""From so many rows on they are not in any cache, and copying them takes ten times as long."""
_COLUMN_BYTES = 12
"""About what a value takes: most are numbers, keys are often longer."""


def nowhere(partial: pa.RecordBatch) -> None:
    """The overflow of a table that has room for all."""


def unnoticed(rows: Rows) -> None:
    """Whom a table tells of rows that are about to be dropped: nobody."""


class Partials:
    """Groups one batch at a time into partials that a ``GroupTable`` can absorb; keeps nothing."""

    def __init__(self, keys: list[pa.Field], accumulators: Sequence[Accumulator]) -> None:
        self._index, self._accumulators, self._capacity = KeyIndex(keys), list(accumulators), 0
        fields = (field for accumulator in self._accumulators for field in accumulator.fields)
        self.schema = pa.schema([pa.field(PANE, pa.int64()), *keys, *fields])

    def of(self, batch: pa.RecordBatch, key_columns: list[pa.Array], panes: Rows | int, times: Rows) -> pa.RecordBatch:
        """One row per pane and key of the batch."""
        admission = self._index.admit(key_columns, panes)
        rows = admission.fresh
        columns = [pa.array(self._index.pane_of(rows)), *self._index.key_columns(rows)]
        columns += self._states(admission.rows, rows, self._index.capacity, batch, times)
        self._index.drop(rows)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def of_each(
        self, batch: pa.RecordBatch, key_columns: list[pa.Array], panes: Rows | int, times: Rows
    ) -> pa.RecordBatch:
        """One row per record: the thesis's ``init`` without ``cb``."""
        rows = np.arange(batch.num_rows)
        columns = [pa.array(np.full(len(rows), panes) if isinstance(panes, int) else panes), *key_columns]
        columns += self._states(rows, rows, len(rows), batch, times)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _states(self, of: Rows, rows: Rows, capacity: int, batch: pa.RecordBatch, times: Rows) -> list[pa.Array]:
        """Columns of the states of ``rows``, to which records ``of`` them are added; forgotten at once."""
        if capacity > self._capacity:
            self._capacity = max(_FIRST_CAPACITY, 2 * capacity)
            for accumulator in self._accumulators:
                accumulator.grow(self._capacity)
        columns = []
        for accumulator in self._accumulators:
            accumulator.add(of, batch, times)
            columns += accumulator.export(rows)
            accumulator.reset(rows)
        return columns


class GroupTable:
    """Rows addressed by pane and key; absorbs records or partials, finalises, and tells its changes.

    ``extras`` are whole-number columns that the step manages itself (a session's end, a version).
    With ``slots`` at most so many keys have rows, chosen by ``policy``; what is refused or pushed out
    is for the caller to keep (``state.spill.bounded``).
    """

    def __init__(
        self,
        keys: list[pa.Field],
        accumulators: Sequence[Accumulator],
        slices: int,
        extras: Sequence[str] = (),
        *,
        slots: int | None = None,
        policy: ResidencyPolicy = INC,
    ) -> None:
        self.key_fields, self._accumulators, self._slices = keys, list(accumulators), slices
        self.extras: dict[str, Rows] = {name: np.zeros(0, np.int64) for name in extras}
        self.index = KeyIndex(keys, slots=slots, policy=policy)
        self._capacity, self._max = 0, slots or 2**62
        self.overflow: Callable[[pa.RecordBatch], None] = nowhere
        self.dropping: Callable[[Rows], None] = unnoticed
        self.combined_schema = pa.schema(
            [pa.field(PANE, pa.int64()), *keys, *(f for a in self._accumulators for f in a.fields)]
        )
        """Partials as ``Partials`` makes them before the shuffle: without extras."""
        self.partial_schema = pa.schema(
            [*self.combined_schema, *(pa.field(f"__{name}", pa.int64()) for name in extras)]
        )
        self._tracking = Tracking(slices, self.partial_schema)
        self._grow(_FIRST_CAPACITY if slots is None else min(slots, _FIRST_CAPACITY))

    def __len__(self) -> int:
        return len(self.index)

    def panes(self) -> list[int]:
        """Panes that hold rows, ascending."""
        return self.index.panes()

    def rows_of(self, pane: int) -> Rows:
        return self.index.rows_of(pane)

    def all_rows(self) -> Rows:
        return self.index.all_rows()

    def pane_of(self, rows: Rows) -> Rows:
        return self.index.pane_of(rows)

    @property
    def accumulators(self) -> Sequence[Accumulator]:
        return self._accumulators

    @property
    def nbytes(self) -> int:
        """All memory that the table holds."""
        columns = sum(column.nbytes for column in self.extras.values())
        return self.index.nbytes + self._tracking.nbytes + columns + sum(a.nbytes for a in self._accumulators)

    @property
    def row_bytes(self) -> int:
        """Memory that one more key takes at most, without what varies in size."""
        columns = 8 * len(self.extras) + sum(accumulator.row_bytes for accumulator in self._accumulators)
        return self.index.row_bytes + self._tracking.row_bytes + columns

    @property
    def varies(self) -> bool:
        """Whether keys or states vary in size."""
        return self.index.varies or self.states_vary

    @property
    def states_vary(self) -> bool:
        return any(accumulator.varies for accumulator in self._accumulators)

    def key_columns(self, rows: Rows) -> list[pa.Array]:
        return self.index.key_columns(rows)

    def absorb(self, batch: pa.RecordBatch, key_columns: list[pa.Array], panes: Rows | int, times: Rows) -> Rows:
        """Add records to their rows; returns each record's row (-1 if it was refused)."""
        admission = self.admit(key_columns, panes)
        self.add(admission.rows, batch, times)
        return admission.rows

    def absorb_partial(self, partial: pa.RecordBatch) -> Rows:
        """Merge partials (columns of ``partial_schema``, extras aside); returns each partial's row."""
        n_keys, columns = len(self.key_fields), partial.columns
        admission = self.admit(columns[1 : 1 + n_keys], columns[0].to_numpy(zero_copy_only=False))
        self.merge(admission.rows, columns[1 + n_keys :])
        return admission.rows

    def admit(self, key_columns: list[pa.Array], panes: Rows | int) -> Admission:
        """Find or make the rows of records; the caller then adds to them, and releases what was evicted."""
        admission = self.index.admit(key_columns, panes)
        if self.index.capacity > self._capacity:
            self._grow(max(self.index.capacity, min(2 * self._capacity, self._max)))
        return admission

    def add(self, rows: Rows, batch: pa.RecordBatch, times: Rows) -> None:
        """Add records to rows that were chosen before."""
        for accumulator in self._accumulators:
            accumulator.add(rows, batch, times)
        self._tracking.touch(rows)

    def merge(self, rows: Rows, columns: list[pa.Array]) -> None:
        """Merge partials' columns, keys aside, into rows; of extras, if there are any, the larger counts."""
        self._merge(rows, columns)
        width = sum(len(accumulator.fields) for accumulator in self._accumulators)
        for extra, column in zip(self.extras.values(), columns[width:]):
            np.maximum.at(extra, rows, column.to_numpy(zero_copy_only=False))
        self._tracking.touch(rows)

    def replace(self, partial: pa.RecordBatch, gone: npt.NDArray[np.bool_]) -> tuple[Rows, Rows]:
        """Put rows as they were exported, in place of what there was of them; of several versions the last counts.

        Returns the rows that are new, and those that are ``gone``: they are for the caller to drop.
        """
        n_keys = len(self.key_fields)
        admission = self.admit(partial.columns[1 : 1 + n_keys], partial.column(0).to_numpy(zero_copy_only=False))
        rows, behind = np.unique(admission.rows[::-1], return_index=True)
        last = partial.num_rows - 1 - behind
        live = ~gone[last]
        put, states = rows[live], partial.take(pa.array(last[live])).columns[1 + n_keys :]
        for accumulator in self._accumulators:
            accumulator.reset(put)
        self._merge(put, states)
        for extra, column in zip(self.extras.values(), states[len(states) - len(self.extras) :]):
            extra[put] = column.to_numpy(zero_copy_only=False)
        self._tracking.touch(put)
        return np.intersect1d(admission.fresh, put), rows[~live]

    def changed(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which rows have changed since they were stored, or since ``forget_changes``."""
        return self._tracking.dirty[rows]

    def forget_changes(self) -> None:
        """Take all rows as unchanged: someone else has stored them."""
        self._tracking.dirty[:] = False

    def mark(self, rows: Rows) -> None:
        """Note that the step changed these rows' extras."""
        self._tracking.touch(rows)

    def fold(self, into: int, row: int) -> None:
        """Merge one row's state into another's and drop it (two sessions that became one)."""
        one = np.array([row])
        self.merge(np.array([into]), [column for a in self._accumulators for column in a.export(one)])
        self.drop(one)

    def drop(self, rows: Rows) -> None:
        """Forget rows."""
        if len(rows):
            self.dropping(rows)
            self._wipe(rows)
            self.index.drop(rows)

    def release(self, evicted: Rows) -> None:
        """Forget rows that the policy pushed out."""
        if len(evicted):
            self._wipe(evicted)
            self.index.release(evicted)

    def widen(self, slots: int) -> None:
        """Have room for at least so many rows from now on."""
        self._max = max(self._max, slots)
        self.index.widen(slots)

    def export(self, rows: Rows) -> pa.RecordBatch:
        """Rows as partials."""
        columns = self._identity(rows)
        for accumulator in self._accumulators:
            columns += accumulator.export(rows)
        columns += [pa.array(column[rows]) for column in self.extras.values()]
        return pa.RecordBatch.from_arrays(columns, schema=self.partial_schema)

    def results(self, rows: Rows) -> list[pa.Array]:
        """The reducers' final columns."""
        return [accumulator.finalize(rows) for accumulator in self._accumulators]

    def changes(self) -> list[Change]:
        """What changed per slice since the last call; see ``state.durable.changes``."""
        return [change.kept() for change in self.swap()()]

    def swap(self) -> Pending:
        n_id = 1 + len(self.key_fields)
        return self._tracking.swap(self.export, lambda rows: slices_of(self.key_columns(rows), self._slices), n_id)

    def copy_ahead(self) -> None:
        """Where the table is large and all its columns are plain numbers: set aside early what the next cut will need."""
        if len(self) >= _LARGE_ROWS and not self.extras and all(isinstance(a, Numeric) for a in self._accumulators):
            self._tracking.copy_ahead(self.export)

    def dirty_bytes(self) -> int:
        row_bytes = _COLUMN_BYTES * len(self.partial_schema) + ID_BYTES
        return self._tracking.dirty_rows * row_bytes + self._tracking.grave_bytes

    def expect(self, rows: int) -> None:
        rows = min(len(self) + rows, self._max)
        self.index.reserve(rows)
        if rows > self._capacity:
            self._grow(rows)

    def load(self, slice: int, image: pa.RecordBatch, digest: Digest) -> None:
        """Take over a slice's rows; with fewer slots than rows, what has no room is handed to ``overflow``."""
        partial = image.drop_columns(list(ID_COLUMNS))
        columns = partial.columns
        n_keys = len(self.key_fields)
        admission = self.admit(columns[1 : 1 + n_keys], columns[0].to_numpy(zero_copy_only=False))
        ids, stamps = (
            (image.column(ID_COLUMNS[0]).to_numpy(), image.column(ID_COLUMNS[1]).to_numpy()),
            row_stamps(partial),
        )
        kept = admission.rows >= 0
        rows, taken = admission.rows[kept], partial if kept.all() else partial.filter(pa.array(kept))
        first_extra = taken.num_columns - len(self.extras)
        self._merge(rows, taken.columns[1 + n_keys : first_extra])
        for extra, column in zip(self.extras.values(), taken.columns[first_extra:]):
            extra[rows] = column.to_numpy(zero_copy_only=False)
        self._tracking.loaded(slice, digest, rows, stamps[kept])
        if not kept.all():
            gone = ~kept
            self._tracking.refuse(slice, (ids[0][gone], ids[1][gone]), stamps[gone])
            self.overflow(partial.filter(pa.array(gone)))
        if len(admission.evicted):
            self.overflow(self.export(admission.evicted))
            self.release(admission.evicted)

    def rows_of_slices(self, slices: frozenset[int]) -> Rows:
        """The rows of some slices, right after they were stored or loaded."""
        return self._tracking.rows_of(slices)

    def give_away(self, slices: frozenset[int]) -> None:
        rows = self.rows_of_slices(slices)
        self._tracking.forget(rows)
        self._reset(rows)
        self.index.drop(rows)

    def _wipe(self, rows: Rows) -> None:
        self._tracking.bury(rows, self._identity)
        self._reset(rows)

    def _reset(self, rows: Rows) -> None:
        for accumulator in self._accumulators:
            accumulator.reset(rows)
        for column in self.extras.values():
            column[rows] = 0

    def _merge(self, rows: Rows, columns: list[pa.Array]) -> None:
        at = 0
        for accumulator in self._accumulators:
            width = len(accumulator.fields)
            accumulator.merge(rows, columns[at : at + width])
            at += width

    def _identity(self, rows: Rows) -> list[pa.Array]:
        return [pa.array(self.pane_of(rows)), *self.key_columns(rows)]

    def _grow(self, capacity: int) -> None:
        self._capacity = capacity
        self._tracking.grow(capacity)
        for accumulator in self._accumulators:
            accumulator.grow(capacity)
        for name, column in self.extras.items():
            self.extras[name] = np.concatenate((column, np.zeros(capacity - len(column), np.int64)))
