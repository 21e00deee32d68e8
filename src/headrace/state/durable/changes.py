"""What changed in one slice between two cuts, in a form that needs no knowledge of the step behind it.

A slice is a set of rows with 128-bit identities. A change puts rows (new or replaced) and deletes
identities, or whole panes. Its digest is the sum, modulo 2^128 in two lanes of 2^64, of a hash of each live row:
independent of order, updated in O(changed), equal for base-plus-changes and for a compacted base.
(The papers' specification sums blake2b over entries; two vectorised lanes cost no Python per row.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.hashing import U64, hash_columns, row_stamps
from headrace.state.rowhash import last_of_each

PANE = "__pane"
"""The column that says to which pane a row belongs, in stores that have panes."""
ID_COLUMNS = ("__id0", "__id1")
_WHOLE_PANE = np.uint64(2**64 - 1)
"""In place of the first half of an identity: the second half is a pane, all of whose rows are deleted."""
Digest = tuple[int, int]
ZERO_DIGEST: Digest = (0, 0)
_ID_SCHEMA = pa.schema([(name, pa.uint64()) for name in ID_COLUMNS])


@dataclass(frozen=True, slots=True)
class Change:
    """One slice's change: rows put (identity columns last), identities deleted, digests before and afterwards."""

    slice: int
    puts: pa.RecordBatch
    deletes: pa.RecordBatch
    parent: Digest
    digest: Digest

    def kept(self) -> Change:
        """The same in memory of its own."""
        return replace(self, puts=self.puts.take(pa.array(np.arange(self.puts.num_rows))))


ID_BYTES = 16
"""Size of an identity."""


Pending = Callable[[], Iterable[Change]]
"""Changes that are still to be put together, one by one: together they may be as large as the state. The memory of each is
used again when all have been gone through."""


class Store(Protocol):
    """A step's state in one subtask: many slices, whatever the table behind them."""

    def changes(self) -> list[Change]:
        """What changed since the last call (or load), one entry per changed slice."""
        ...

    def swap(self) -> Pending:
        """Like ``changes``, but what can wait is left to the function returned.

        It may be called later and by another thread, once, and has to be gone through before that of the next ``swap``.
        """
        ...

    def copy_ahead(self) -> None:
        """Set aside some of what the next ``swap`` will need, if that makes it quicker. To be called now and then."""

    @property
    def nbytes(self) -> int:
        """About how much memory it holds."""
        ...

    def dirty_bytes(self) -> int:
        """About how much the next ``changes`` would be; 0 only if nothing changed."""
        ...

    def expect(self, rows: int) -> None:
        """About so many rows will be loaded: room for them is better made at once."""

    def load(self, slice: int, image: pa.RecordBatch, digest: Digest) -> None:
        """Take over a slice's rows (identity columns last) as of ``digest``; others may be at work here already."""
        ...

    def give_away(self, slices: frozenset[int]) -> None:
        """Forget slices that are another subtask's from now on: right after ``swap``, and nothing is told of it."""
        ...


def ids_of(columns: list[pa.Array]) -> tuple[U64, U64]:
    """Identities of rows that are told apart by some columns."""
    return hash_columns(columns, 0), hash_columns(columns, 1)


def with_ids(batch: pa.RecordBatch, ids: tuple[U64, U64]) -> pa.RecordBatch:
    """The batch with its rows' identities appended."""
    columns = [*batch.columns, pa.array(ids[0]), pa.array(ids[1])]
    return pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, *ID_COLUMNS])


def id_batch(ids: tuple[U64, U64]) -> pa.RecordBatch:
    """Identities alone, for deletes."""
    return pa.RecordBatch.from_arrays([pa.array(ids[0]), pa.array(ids[1])], schema=_ID_SCHEMA)


def pane_batch(panes: Sequence[int]) -> pa.RecordBatch:
    """Deletes of all rows that were put into some panes before."""
    marks = np.full(len(panes), _WHOLE_PANE)
    return id_batch((marks, np.array(panes, np.int64).view(np.uint64)))


def no_ids() -> pa.RecordBatch:
    empty = np.array([], dtype=np.uint64)
    return id_batch((empty, empty))


def total(stamps: U64) -> Digest:
    """Sum of row stamps, two for each row."""
    one, two = stamps.sum(axis=0, dtype=np.uint64).tolist()
    return one, two


def plus(one: Digest, other: Digest, sign: int = 1) -> Digest:
    """Digest arithmetic modulo 2^64 per lane.

    >>> plus((1, 2), (3, 4), -1) == (2**64 - 2, 2**64 - 2)
    True
    """
    return (one[0] + sign * other[0]) % 2**64, (one[1] + sign * other[1]) % 2**64


def merge_chain(puts: Sequence[pa.RecordBatch], deletes: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The live rows after a base and its changes in order: the last word on an identity counts.

    Within one change deletes come before puts.
    """
    tables = [batch for batch in puts if batch.num_rows]
    if not tables:
        return puts[-1]
    if len(tables) == 1 and not any(gone.num_rows for gone in deletes):
        return tables[0]
    rows = pa.Table.from_batches(tables).combine_chunks()
    ones, twos, row, put_by = [], [], [], []
    ended: dict[int, int] = {}
    base = 0
    for i, (put, gone) in enumerate(zip(puts, deletes, strict=True)):
        for batch, live in ((gone, False), (put, True)):
            if not batch.num_rows:
                continue
            ones.append(batch.column(ID_COLUMNS[0]).to_numpy())
            twos.append(batch.column(ID_COLUMNS[1]).to_numpy())
            row.append(np.arange(base, base + batch.num_rows) if live else np.full(batch.num_rows, -1))
            base += batch.num_rows if live else 0
        put_by.append(np.full(put.num_rows, i))
        panes = gone.column(1).to_numpy()[gone.column(0).to_numpy() == _WHOLE_PANE] if gone.num_rows else ()
        ended.update(dict.fromkeys(np.array(panes, np.uint64).view(np.int64).tolist(), i))
    rows_at = np.concatenate(row)
    last = np.empty(len(rows_at), bool)
    last_of_each(np.concatenate(ones), np.concatenate(twos), last)
    keep = rows_at[last & (rows_at >= 0)]
    if ended:
        keep = keep[~_ended(rows.column(PANE).to_numpy()[keep], np.concatenate(put_by)[keep], ended)]
    taken = rows if len(keep) == rows.num_rows else rows.take(pa.array(keep)).combine_chunks()
    batches = taken.to_batches()
    return batches[0] if batches else puts[-1].slice(0, 0)


def _ended(panes: npt.NDArray[np.int64], put_by: npt.NDArray[np.int64], ended: dict[int, int]) -> npt.NDArray[np.bool_]:
    """Whether each row's pane was deleted by a later change than the one that put the row."""
    names = np.array(sorted(ended), np.int64)
    by = np.array([ended[pane] for pane in names.tolist()], np.int64)
    at = np.minimum(np.searchsorted(names, panes), len(names) - 1)
    gone: npt.NDArray[np.bool_] = (names[at] == panes) & (put_by < by[at])
    return gone


def stamps_of(rows: pa.RecordBatch) -> U64:
    """Stamps of what rows hold; their identities follow from that, or are checked with the block they are in."""
    return row_stamps(rows.drop_columns(list(ID_COLUMNS)))


def digest_of(image: pa.RecordBatch) -> Digest:
    """The digest of a slice's rows."""
    return total(stamps_of(image))


def split_by_slice(slices: npt.NDArray[np.uint16]) -> list[tuple[int, npt.NDArray[np.int64]]]:
    """Row positions of each slice that occurs, slices ascending, positions in order."""
    if not len(slices):
        return []
    order = np.argsort(slices, kind="stable")
    ordered = slices[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    parts = np.split(order, starts[1:])
    return [(int(ordered[start]), part) for start, part in zip(starts, parts, strict=True)]
