"""Which rows of a table have changed since they were stored, and the digests of what is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    no_ids,
    plus,
    split_by_slice,
    total,
)
from headrace.state.grouping import Rows
from headrace.state.hashing import U64, row_stamps

Slices = npt.NDArray[np.uint16]


_GRAVE_BYTES = 34
"""Slice, identity and stamps of a row that was stored and is gone."""


class Tracking:
    """Per row: its slice, whether it is dirty, whether a version of it is stored, and that version's stamps.

    A row's slice is asked for when it is first stored: many rows are dropped before. A row that is stored and
    then dropped leaves a grave: its identity has to be deleted.
    """

    def __init__(self) -> None:
        self._slice = np.zeros(0, np.uint16)
        self.dirty = np.zeros(0, bool)
        self._stored = np.zeros(0, bool)
        self._stamps = np.zeros((2, 0), np.uint64)
        self._graves: list[tuple[Slices, U64, U64, U64, U64]] = []
        self._digests: dict[int, Digest] = {}

    def grow(self, capacity: int) -> None:
        more = capacity - len(self._slice)
        self._slice = np.concatenate((self._slice, np.zeros(more, np.uint16)))
        self.dirty = np.concatenate((self.dirty, np.zeros(more, bool)))
        self._stored = np.concatenate((self._stored, np.zeros(more, bool)))
        self._stamps = np.concatenate((self._stamps, np.zeros((2, more), np.uint64)), axis=1)

    @property
    def nbytes(self) -> int:
        graves = sum(array.nbytes for grave in self._graves for array in grave)
        return self._slice.nbytes + self.dirty.nbytes + self._stored.nbytes + self._stamps.nbytes + graves

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

    def bury(self, rows: Rows, ids_of: Callable[[Rows], tuple[U64, U64]]) -> None:
        """Rows are about to be dropped."""
        stored = rows[self._stored[rows]]
        if len(stored):
            stamps = self._stamps[0, stored], self._stamps[1, stored]
            self._graves.append((self._slice[stored], *ids_of(stored), *stamps))
        self.dirty[rows] = self._stored[rows] = False

    def refuse(self, slice: int, ids: tuple[U64, U64], stamps: tuple[U64, U64]) -> None:
        """Stored rows of a slice that find no room here: they are deleted with the next change."""
        self._graves.append((np.full(len(ids[0]), slice, np.uint16), *ids, *stamps))

    def swap(self, puts_of: Callable[[Rows], pa.RecordBatch], slices_of: Callable[[Rows], Slices]) -> Pending:
        """Set aside what changed since the last call; ``puts_of`` exports rows with their identities.

        What it means for each slice is worked out when the changes are asked for.
        """
        rows = np.flatnonzero(self.dirty)
        fresh = ~self._stored[rows]
        self._slice[rows[fresh]] = slices_of(rows[fresh])
        puts = puts_of(rows)
        stamps = row_stamps(puts) if len(rows) else (np.zeros(0, np.uint64), np.zeros(0, np.uint64))
        before = self._stamps[:, rows]
        before[:, fresh] = 0
        graves = [np.concatenate(parts) for parts in zip(*self._graves)] if self._graves else None
        slices = self._slice[rows]
        self._stamps[0, rows], self._stamps[1, rows] = stamps
        self._stored[rows] = True
        self.dirty[rows] = False
        self._graves.clear()
        return lambda: self._changes(slices, puts, (before[0], before[1]), stamps, graves)

    def _changes(
        self, slices: Slices, puts: pa.RecordBatch, before: tuple[U64, U64], stamps: tuple[U64, U64],
        graves: list[npt.NDArray[Any]] | None,
    ) -> list[Change]:  # fmt: skip
        """Rows as they are, their stamps before and after, and rows that are gone, by slice."""
        by_slice = dict(split_by_slice(slices))
        dead = dict(split_by_slice(graves[0])) if graves is not None else {}
        changes = []
        for slice in sorted(by_slice.keys() | dead.keys()):
            digest = parent = self._digests.get(slice, ZERO_DIGEST)
            deletes, put = no_ids(), puts.slice(0, 0)
            if graves is not None and slice in dead:
                at = dead[slice]
                digest = plus(digest, total((graves[3][at], graves[4][at])), -1)
                deletes = id_batch((graves[1][at], graves[2][at]))
            if slice in by_slice:
                at = by_slice[slice]
                digest = plus(digest, total((before[0][at], before[1][at])), -1)
                digest = plus(digest, total((stamps[0][at], stamps[1][at])))
                put = puts.take(pa.array(at))
            self._digests[slice] = digest
            changes.append(Change(slice, put, deletes, parent, digest))
        return changes

    def loaded(self, slice: int, digest: Digest, rows: Rows, stamps: tuple[U64, U64]) -> None:
        """Rows of a slice are just what is stored."""
        self._digests[slice], self._slice[rows] = digest, slice
        self._stamps[0, rows], self._stamps[1, rows] = stamps
        self._stored[rows] = True
        self.dirty[rows] = False
