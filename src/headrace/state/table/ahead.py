"""Copies of changed rows made before the cut that needs them, a few at a time.

A row of a large table is spread over as many places of memory as it has columns, and none of them is in a cache: copying
thousands of rows at the very moment of a cut would hold records up for tens of milliseconds. A copy counts if its row is
not touched again before the cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.state.compiled import U64
from headrace.state.grouping import Rows
from headrace.state.hashing import row_stamps

Export = Callable[[Rows], pa.RecordBatch]
_MAX_PIECES = 250
_MANY_ROWS = 16_384
"""Where more are touched between two calls, most will be touched again before the cut, and copying is all that gets done."""
_WORTHWHILE = 0.5
"""Of the copies that were made ahead, as many must have counted at a cut; else none are made for a while."""
_REST_CUTS = 16


@dataclass(frozen=True, slots=True)
class RowCopies:
    """Rows as they were when they were copied, and their stamps."""

    rows: Rows
    puts: pa.RecordBatch
    stamps: U64

    def where(self, counts: np.ndarray) -> RowCopies:
        if counts.all():
            return self
        return RowCopies(self.rows[counts], self.puts.filter(pa.array(counts)), self.stamps[counts])


def copied(rows: Rows, export: Export) -> RowCopies:
    puts = export(rows)
    return RowCopies(rows, puts, row_stamps(puts))


class CopiedAhead:
    """The copies since the last swap. ``dirty`` says which rows changed since then, by their tracking."""

    def __init__(self) -> None:
        self._piece_of = np.zeros(0, np.uint8)
        self._pieces: list[RowCopies] = []
        self._touched: list[Rows] | None = None
        self._touched_rows = 0
        self._rest = 0

    def grow(self, capacity: int) -> None:
        self._piece_of = np.concatenate((self._piece_of, np.zeros(capacity - len(self._piece_of), np.uint8)))

    @property
    def nbytes(self) -> int:
        return self._piece_of.nbytes + int(sum(piece.puts.nbytes + piece.stamps.nbytes for piece in self._pieces))

    def touch(self, rows: Rows) -> None:
        """Rows are about to change, or have: copies of them are void."""
        if self._touched is None:
            return
        self._touched.append(rows)
        self._touched_rows += len(rows)
        if self._touched_rows > _MANY_ROWS:
            self._give_up()
        elif self._pieces:
            self._piece_of[rows] = 0

    def copy(self, dirty: np.ndarray, export: Export) -> None:
        """Copy what was touched since the last time."""
        if self._touched is None:
            return
        rows = self._uncopied(dirty)
        if len(rows) and len(self._pieces) < _MAX_PIECES:
            self._pieces.append(copied(rows, export))
            self._piece_of[rows] = len(self._pieces)

    def take(self, dirty: np.ndarray) -> tuple[list[RowCopies], Rows]:
        """Copies that count, and dirty rows that none of them has; and begin anew."""
        rest = np.flatnonzero(dirty) if self._touched is None else self._uncopied(dirty)
        pieces = [
            piece.where((self._piece_of[piece.rows] == at + 1) & dirty[piece.rows])
            for at, piece in enumerate(self._pieces)
        ]
        self._judge(sum(len(piece.rows) for piece in pieces))
        self._void()
        return [piece for piece in pieces if len(piece.rows)], rest

    def forget(self, rows: Rows) -> None:
        """Rows are dropped."""
        if self._pieces:
            self._piece_of[rows] = 0

    def begin(self) -> None:
        """Nothing is dirty: from here on it is known what is touched."""
        self._touched = [] if self._rest == 0 else None
        self._touched_rows = 0

    def _give_up(self) -> None:
        """Until the next cut."""
        self._void()
        self._touched = None

    def _void(self) -> None:
        for piece in self._pieces:
            self._piece_of[piece.rows] = 0
        self._pieces = []

    def _uncopied(self, dirty: np.ndarray) -> Rows:
        assert self._touched is not None
        rows = np.unique(np.concatenate(self._touched)) if self._touched else np.zeros(0, np.int64)
        self._touched, self._touched_rows = [], 0
        uncopied: Rows = rows[dirty[rows] & (self._piece_of[rows] == 0)]
        return uncopied

    def _judge(self, counted: int) -> None:
        made = sum(len(piece.rows) for piece in self._pieces)
        self._rest = _REST_CUTS if counted < _WORTHWHILE * made else max(self._rest - 1, 0)
