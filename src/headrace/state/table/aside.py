"""Rows as they were at a cut, in the order of their slices, in memory that is used again.

What a cut sets aside may be as large as the state, and memory that a process has never touched costs several times what
copying into it does. Rows come in handfuls that fit a cache and are spread over the places of their slices at once, so
that nobody has to bring them into order later.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.state.compiled import read_only
from headrace.state.grouping import Rows
from headrace.state.hashing import WORD_TYPES, raw_words
from headrace.state.rowhash import scatter_words

_HANDFUL_ROWS = 131_072
"""Rows that are copied, stamped, identified and encoded together: few enough for a cache, and for memory that malloc
gives again and again."""
_LITTLE = 4
"""If less than this part of what was ever used is used ..."""
_PATIENCE = 60
"""... for as many cuts, the memory is given back."""


class _AsideColumn(Protocol):
    """A column of what is set aside: ``put`` by places, and taken in the order of places."""

    width: int
    """Bytes that are kept of each row."""

    def put(self, column: pa.Array, places: Rows) -> None: ...

    def part(self, begin: int, end: int, order: Rows) -> pa.Array: ...

    def clear(self) -> None: ...


class _WordColumn:
    """Values of four or eight bytes, which are at their places from the beginning."""

    def __init__(self, kind: pa.DataType, capacity: int) -> None:
        self._kind = kind
        self._words: npt.NDArray[Any] = np.empty(
            capacity, WORD_TYPES[kind.bit_width]
        )  # costs nothing before it is used
        self._null: npt.NDArray[np.bool_] | None = None
        self.width = self._words.itemsize

    def put(self, column: pa.Array, places: Rows) -> None:
        scatter_words(read_only(raw_words(column)), places, self._words)
        if column.null_count:
            if self._null is None:
                self._null = np.zeros(len(self._words), bool)
            self._null[places] = pc.is_null(column).to_numpy(zero_copy_only=False)

    def part(self, begin: int, end: int, order: Rows) -> pa.Array:
        null = self._null[begin:end] if self._null is not None else None
        return pa.array(self._words[begin:end], mask=null).view(self._kind)

    def clear(self) -> None:
        self._null = None


class _ValueColumn:
    """Values of any type, in the order in which they came until they are asked for."""

    width = 0

    def __init__(self) -> None:
        self._pieces: list[pa.Array] = []

    def put(self, column: pa.Array, places: Rows) -> None:
        self._pieces.append(column)

    def part(self, begin: int, end: int, order: Rows) -> pa.Array:
        if len(self._pieces) > 1:
            self._pieces = [pa.concat_arrays(self._pieces)]
        return self._pieces[0].take(pa.array(order[begin:end]))

    def clear(self) -> None:
        self._pieces = []


def _is_words(kind: pa.DataType) -> bool:
    return pa.types.is_primitive(kind) and not pa.types.is_null(kind) and kind.bit_width in WORD_TYPES


class Room:
    """For up to ``capacity`` rows of a schema."""

    def __init__(self, schema: pa.Schema, capacity: int) -> None:
        self._schema, self.capacity = schema, capacity
        self._columns: list[_AsideColumn] = [
            _WordColumn(field.type, capacity) if _is_words(field.type) else _ValueColumn() for field in schema
        ]
        self.rows, self.places = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
        self._size = self._most = self._unused = 0

    @property
    def nbytes(self) -> int:
        """Of memory that was ever used: the rest is not there."""
        return self._most * (16 + sum(column.width for column in self._columns))

    def put(self, rows: pa.RecordBatch, places: Rows) -> None:
        for column, values in zip(self._columns, rows.columns):
            column.put(values, places)
        self._size += len(places)

    def parts(self, borders: list[tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        """The rows between pairs of places."""
        order = np.zeros(0, np.int64)
        if any(isinstance(column, _ValueColumn) for column in self._columns):
            order = np.empty(self._size, np.int64)
            order[self.places[: self._size]] = np.arange(self._size)
        for begin, end in borders:
            columns = [column.part(begin, end, order) for column in self._columns]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def clear(self) -> bool:
        """Nobody needs what is in it any more; whether it is worth keeping."""
        self._most = max(self._most, self._size)
        self._unused = self._unused + 1 if self._size * _LITTLE < self._most else 0
        for column in self._columns:
            column.clear()
        self._size = 0
        return self._unused < _PATIENCE


class Rooms:
    """Rooms of one table. Mostly one is enough; a second is used while what is in the first is still being written."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._free: list[Room] = []

    @property
    def nbytes(self) -> int:
        return sum(room.nbytes for room in self._free)

    def take(self, capacity: int) -> Room:
        """An empty room; it is the caller's until it is given back, by any thread."""
        room = self._free.pop() if self._free else None
        return room if room is not None and room.capacity >= capacity else Room(self._schema, capacity)

    def give_back(self, room: Room) -> None:
        if room.clear() and not self._free:
            self._free.append(room)


def handfuls(rows: Rows) -> Iterator[Rows]:
    """Rows in pieces, at least one."""
    for start in range(0, max(len(rows), 1), _HANDFUL_ROWS):
        yield rows[start : start + _HANDFUL_ROWS]


def slices_together(slices: list[int], starts: Rows) -> Iterator[list[int]]:
    """Slices that are worked on together: not many rows, or one slice."""
    together: list[int] = []
    for slice in slices:
        if together and starts[slice + 1] - starts[together[0]] > _HANDFUL_ROWS:
            yield together
            together = []
        together.append(slice)
    if together:
        yield together
