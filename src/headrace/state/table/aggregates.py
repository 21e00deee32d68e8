"""Reducers as columns: every table row has one accumulator per reducer.

Three families share one interface. ``Numeric`` keeps fixed-width numpy columns updated by scatter.
``Entries`` keeps several values per row (top_k, count_distinct, quantile, collect_list, first, last) as Arrow
columns that are appended to and compacted as a whole. ``UserState`` keeps a user's Python objects
(``state.table.userstates``). The first two never loop over records in Python. A partial (what ``export`` gives) can be merged
anywhere states meet: in an output buffer, a pane, another slice (SCALLA's ``init / cb / fn``).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError
from headrace.graph.reduction import Aggregate, Reducer, UserReducer
from headrace.state.compiled import read_only
from headrace.state.rowhash import gather_words
from headrace.state.table.entries import ENTRY_KINDS, Entries
from headrace.state.table.userstates import Guard, UserState

Rows = npt.NDArray[np.int64]


class Accumulator(Protocol):
    """One reducer's state for all rows of a table."""

    fields: list[pa.Field]
    result: pa.DataType
    varies: bool
    """Whether states vary in size."""

    @property
    def row_bytes(self) -> int:
        """Memory per row, without what varies in size."""
        ...

    @property
    def nbytes(self) -> int:
        """Memory held."""
        ...

    def grow(self, capacity: int) -> None: ...

    def reset(self, rows: Rows) -> None:
        """Set rows back to 'nothing seen'."""
        ...

    def add(self, rows: Rows, batch: pa.RecordBatch, times: Rows) -> None:
        """Absorb records; ``rows[i]`` is the table row of record ``i``, rows may repeat."""
        ...

    def merge(self, rows: Rows, partial: list[pa.Array]) -> None:
        """Absorb partials with the columns of ``fields``."""
        ...

    def export(self, rows: Rows) -> list[pa.Array]:
        """The rows' partials."""
        ...

    def finalize(self, rows: Rows) -> pa.Array:
        """The rows' results."""
        ...


def accumulator(
    name: str, reducer: Reducer, schema: pa.Schema, guard: Guard, result: pa.DataType | None, *, packed: bool = False
) -> Accumulator:
    """The accumulator of one reducer over records of ``schema``; ``packed`` user states have a known size."""
    if isinstance(reducer, UserReducer):
        return UserState(name, reducer, guard, result, packed=packed)
    if reducer.kind == "count":
        return Numeric(name, reducer, None)
    column = schema.field(reducer.column).type
    if reducer.kind in ("sum", "mean") and not is_number(column):
        raise SchemaError(f"{reducer.describe()} needs a numeric column, but {reducer.column!r} is {column}")
    ranked = schema.field(reducer.by).type if reducer.by is not None else column
    if pa.types.is_nested(ranked) and reducer.kind in ("min", "max", "top_k", "count_distinct"):
        raise SchemaError(f"{reducer.describe()} needs a column of values that can be ranked, not {ranked}")
    if reducer.kind in ENTRY_KINDS or (reducer.kind in ("min", "max") and not is_fixed_width(column)):
        return Entries(name, reducer, schema)
    return Numeric(name, reducer, column)


def is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
    )


def is_fixed_width(kind: pa.DataType) -> bool:
    return bool(is_number(kind) and not pa.types.is_decimal(kind)) or bool(pa.types.is_temporal(kind))


def _taken(array: npt.NDArray[Any], rows: Rows) -> npt.NDArray[Any]:
    """Values of eight bytes of some rows."""
    taken = np.empty(len(rows), np.uint64)
    gather_words(read_only(array.view(np.uint64)), read_only(rows), taken)
    return taken.view(array.dtype)


class Numeric:
    """count, sum, mean, and min/max of fixed-width columns."""

    varies = False

    def __init__(self, name: str, reducer: Aggregate, column: pa.DataType | None) -> None:
        self._kind, self._column = reducer.kind, reducer.column
        whole = column is not None and not pa.types.is_floating(column) and not pa.types.is_decimal(column)
        wide = np.uint64 if column == pa.uint64() else np.int64
        dtype = np.dtype(wide if whole and self._kind != "mean" else np.float64)
        self._parts: list[tuple[np.ufunc, Any]] = []
        self.fields: list[pa.Field] = []
        if column is not None:
            ufunc = {"sum": np.add, "mean": np.add, "min": np.minimum, "max": np.maximum}[self._kind]
            self._parts.append((ufunc, self._identity(ufunc, dtype)))
            self.fields.append(pa.field(f"{name}.value", pa.from_numpy_dtype(dtype)))
        self._parts.append((np.add, np.int64(0)))
        self.fields.append(pa.field(f"{name}.n", pa.int64()))
        self.result: pa.DataType = {
            "count": pa.int64(),
            "sum": pa.from_numpy_dtype(dtype),
            "mean": pa.float64(),
        }.get(self._kind, column)
        self._source = column
        self._arrays = [np.full(0, identity) for _, identity in self._parts]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays)

    @property
    def row_bytes(self) -> int:
        return sum(array.itemsize for array in self._arrays)

    @staticmethod
    def _identity(ufunc: np.ufunc, dtype: np.dtype[Any]) -> Any:
        if ufunc is np.add:
            return dtype.type(0)
        low, high = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        return dtype.type(high if ufunc is np.minimum else low)

    def grow(self, capacity: int) -> None:
        for i, (_, identity) in enumerate(self._parts):
            grown = np.full(capacity, identity)
            grown[: len(self._arrays[i])] = self._arrays[i]
            self._arrays[i] = grown

    def reset(self, rows: Rows) -> None:
        for array, (_, identity) in zip(self._arrays, self._parts):
            array[rows] = identity

    def add(self, rows: Rows, batch: pa.RecordBatch, times: Rows) -> None:
        if self._column is not None:
            column = batch.column(self._column)
            if column.null_count:
                rows = rows[pc.is_valid(column).to_numpy(zero_copy_only=False)]
                column = column.drop_null()
            with np.errstate(invalid="ignore", over="ignore"):  # NaN and infinity are values like others
                self._parts[0][0].at(self._arrays[0], rows, self._numbers(column))
        np.add.at(self._arrays[-1], rows, 1)

    def _numbers(self, column: pa.Array) -> npt.NDArray[Any]:
        dtype = self._arrays[0].dtype
        kind = column.type
        if pa.types.is_temporal(kind):
            column = column.cast(pa.int32() if pa.types.is_date32(kind) or pa.types.is_time32(kind) else pa.int64())
        elif pa.types.is_decimal(kind):
            column = column.cast(pa.float64())
        elif pa.types.is_boolean(kind):
            column = column.cast(pa.int8())
        numbers: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
        return numbers

    def merge(self, rows: Rows, partial: list[pa.Array]) -> None:
        with np.errstate(invalid="ignore", over="ignore"):
            for array, (ufunc, _), column in zip(self._arrays, self._parts, partial):
                ufunc.at(array, rows, column.to_numpy(zero_copy_only=False))

    def export(self, rows: Rows) -> list[pa.Array]:
        return [pa.array(_taken(array, rows)) for array in self._arrays]

    def finalize(self, rows: Rows) -> pa.Array:
        n = self._arrays[-1][rows]
        if self._kind == "count":
            return pa.array(n)
        values = self._arrays[0][rows]
        if self._kind == "mean":
            with np.errstate(invalid="ignore", divide="ignore"):
                return pa.array(values / n, mask=n == 0)
        column = pa.array(values, mask=n == 0)
        if column.type == self.result:
            return column
        if pa.types.is_temporal(self.result) and self.result.bit_width == 32:
            column = column.cast(pa.int32())
        return column.cast(self.result)
