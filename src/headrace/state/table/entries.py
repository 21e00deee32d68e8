"""Accumulators with several values per row, kept as Arrow columns and compacted as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError
from headrace.graph.reduction import Aggregate

ENTRY_KINDS = ("top_k", "count_distinct", "quantile", "first", "last", "collect_list")
Rows = npt.NDArray[np.int64]

_ACCURACY = 0.01
"""Relative error of a quantile; gives buckets of ratio (1 + a) / (1 - a)."""
_LOG_RATIO = float(np.log((1 + _ACCURACY) / (1 - _ACCURACY)))
_ZERO_BUCKET = 0
_BUCKET_SHIFT = 1 << 20
_LOG_LARGEST = float(np.log(np.finfo(np.float64).max))
_COMPACT_AT = 65_536


class Entries:
    """top_k, count_distinct, quantile, collect_list, first, last, and min/max of text.

    An entry is a row number and up to two columns: ``order`` (what it is ranked by) and ``value``.
    """

    def __init__(self, name: str, reducer: Aggregate, schema: pa.Schema) -> None:
        assert reducer.column is not None
        self._kind, self._column, self._by, self._k = reducer.kind, reducer.column, reducer.by, reducer.k or 1
        self._q = reducer.q
        column = schema.field(reducer.column).type
        self._value, self._order = column, None
        if self._kind == "quantile":
            if not (pa.types.is_integer(column) or pa.types.is_floating(column)):
                raise SchemaError(f"{reducer.describe()} needs a numeric column, but {reducer.column!r} is {column}")
            self._value, self._order = pa.int64(), pa.int64()
        elif self._kind == "top_k" and reducer.by is not None:
            self._order = schema.field(reducer.by).type
        elif self._kind in ("first", "last", "collect_list"):
            self._order = pa.int64()
        struct = [pa.field("value", self._value)]
        if self._order is not None:
            struct.append(pa.field("order", self._order))
        self.fields = [pa.field(f"{name}.entries", pa.list_(pa.struct(struct)))]
        self.result = {
            "count_distinct": pa.int64(),
            "quantile": pa.float64(),
            "top_k": pa.list_(column),
            "collect_list": pa.list_(column),
        }.get(self._kind, column)
        self._parts: list[pa.Table] = []
        self._loose = 0

    varies = True
    row_bytes = 0

    @property
    def nbytes(self) -> int:
        return int(sum(part.nbytes for part in self._parts))

    def grow(self, capacity: int) -> None:
        """Entries are not preallocated."""

    def reset(self, rows: Rows) -> None:
        table = self._compact()
        if len(rows) and table.num_rows:
            gone = np.zeros(max(int(rows.max()), int(np.max(table["row"].to_numpy()))) + 1, dtype=bool)
            gone[rows] = True
            self._parts = [table.filter(pa.array(~gone[table["row"].to_numpy()]))]

    def add(self, rows: Rows, batch: pa.RecordBatch, times: Rows) -> None:
        value = batch.column(self._column)
        order: Any = None
        if self._kind == "quantile":
            order = pa.array(np.ones(len(rows), np.int64))
        elif self._order is not None:
            order = batch.column(self._by) if self._by is not None else pa.array(times)
        keep = pc.is_valid(value)
        if order is not None and order.null_count:
            keep = pc.and_(keep, pc.is_valid(order))
        if value.null_count or (order is not None and order.null_count):
            rows = rows[keep.to_numpy(zero_copy_only=False)]
            value = value.filter(keep)
            order = order.filter(keep) if order is not None else None
        if self._kind == "quantile":
            numbers = value.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            real = ~np.isnan(numbers)  # a NaN has no rank
            rows, value, order = rows[real], pa.array(_bucket(numbers[real])), order.filter(pa.array(real))
        self._append(rows, value, order)

    def merge(self, rows: Rows, partial: list[pa.Array]) -> None:
        lists = partial[0]
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
        flat = lists.flatten()
        order = flat.field("order") if self._order is not None else None
        self._append(np.repeat(rows, lengths), flat.field("value"), order)

    def export(self, rows: Rows) -> list[pa.Array]:
        table, offsets = self._grouped(rows)
        columns, names = [table["value"].combine_chunks()], ["value"]
        if self._order is not None:
            columns.append(table["order"].combine_chunks())
            names.append("order")
        entries = pa.StructArray.from_arrays([_flat(c) for c in columns], fields=list(self.fields[0].type.value_type))
        return [pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), entries)]

    def finalize(self, rows: Rows) -> pa.Array:
        table, offsets = self._grouped(rows)
        values = _flat(table["value"].combine_chunks())
        lengths = np.diff(offsets)
        if self._kind == "count_distinct":
            return pa.array(lengths)
        if self._kind == "quantile":
            counts = table["order"].to_numpy() if table.num_rows else np.array([], np.int64)
            return _quantiles(values.to_numpy(zero_copy_only=False), counts, offsets, float(self._q or 0.0))
        if self._kind in ("top_k", "collect_list"):
            return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
        taken = pa.array(np.where(lengths > 0, offsets[:-1], 0), mask=lengths == 0)
        return values.take(taken) if len(values) else pa.nulls(len(rows), self.result)

    def _append(self, rows: Rows, value: pa.Array, order: pa.Array | None) -> None:
        if not len(rows):
            return
        columns = {"row": pa.array(rows), "value": value}
        if order is not None:
            columns["order"] = order
        self._parts.append(pa.table(columns))
        self._loose += len(rows)
        if self._loose > max(_COMPACT_AT, self._parts[0].num_rows):
            self._compact()

    def _compact(self) -> pa.Table:
        """All entries, sorted by row and rank, without those that can no longer matter."""
        if not self._parts:
            columns = {"row": pa.array([], pa.int64()), "value": pa.array([], self._value)}
            if self._order is not None:
                columns["order"] = pa.array([], self._order)
            return pa.table(columns)
        if len(self._parts) == 1 and not self._loose:
            return self._parts[0]
        table = pa.concat_tables(self._parts).combine_chunks()
        table = self._ranked(table)
        rows = table["row"].to_numpy()
        if self._kind in ("first", "last", "min", "max", "top_k"):
            table = table.filter(pa.array(_rank(rows) < self._k))
        elif self._kind == "count_distinct":
            table = table.filter(pa.array(_first_of_pair(table)))
        elif self._kind == "quantile" and table.num_rows:
            heads = np.flatnonzero(_first_of_pair(table))
            counts = np.add.reduceat(table["order"].to_numpy(), heads)
            table = pa.table({"row": rows[heads], "value": table["value"].to_numpy()[heads], "order": counts})
        self._parts, self._loose = [table], 0
        return table

    def _ranked(self, table: pa.Table) -> pa.Table:
        best_last = self._kind in ("top_k", "last", "max")
        direction = "descending" if best_last else "ascending"
        keys = [("row", "ascending")]
        if self._order is not None and self._kind != "quantile":
            keys.append(("order", direction))
        if not pa.types.is_nested(self._value):
            keys.append(("value", direction))
        return table.take(pc.sort_indices(table, sort_keys=keys))

    def _grouped(self, rows: Rows) -> tuple[pa.Table, npt.NDArray[np.int64]]:
        """The entries of ``rows`` in the order of ``rows``, and the offsets of each row's run."""
        table = self._compact()
        owner = table["row"].to_numpy()
        starts = np.searchsorted(owner, rows, side="left")
        lengths = np.searchsorted(owner, rows, side="right") - starts
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        positions = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        return table.take(pa.array(positions)), offsets


def _flat(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _rank(rows: Rows) -> Rows:
    """Position of each entry within its row; rows are sorted."""
    if not len(rows):
        return rows
    heads = np.flatnonzero(np.concatenate(([True], rows[1:] != rows[:-1])))
    lengths = np.diff(np.concatenate((heads, [len(rows)])))
    ranks: Rows = np.arange(len(rows)) - np.repeat(heads, lengths)
    return ranks


def _first_of_pair(table: pa.Table) -> npt.NDArray[np.bool_]:
    """True where (row, value) differs from the entry before; entries are sorted by both."""
    n = table.num_rows
    if n == 0:
        return np.zeros(0, dtype=bool)
    rows, value = table["row"].to_numpy(), _flat(table["value"].combine_chunks())
    same = pc.fill_null(pc.equal(value.slice(1), value.slice(0, n - 1)), False).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(value.type):
        nan = pc.is_nan(value).to_numpy(zero_copy_only=False)
        same = same | (nan[1:] & nan[:-1])
    return np.concatenate(([True], (rows[1:] != rows[:-1]) | ~same))


def _bucket(values: npt.NDArray[np.float64]) -> Rows:
    """Signed logarithmic bucket numbers, monotone in the value."""
    magnitude = np.abs(values)
    usable = np.isfinite(magnitude) & (magnitude > 0)
    exponent = np.ceil(np.log(np.where(usable, magnitude, 1.0)) / _LOG_RATIO).astype(np.int64) + _BUCKET_SHIFT
    exponent = np.where(np.isinf(magnitude), 2 * _BUCKET_SHIFT, exponent)
    signed = np.where(values < 0, -exponent, exponent)
    result: Rows = np.where(usable | np.isinf(magnitude), signed, _ZERO_BUCKET)
    return result


def _quantiles(buckets: Rows, counts: Rows, offsets: Rows, q: float) -> pa.Array:
    """Per row, the middle of the bucket that holds the q-quantile."""
    lengths = np.diff(offsets)
    running = np.concatenate(([0], np.cumsum(counts)))
    totals = running[offsets[1:]] - running[offsets[:-1]]
    wanted = running[offsets[:-1]] + np.floor(q * np.maximum(totals - 1, 0)).astype(np.int64)
    at = np.minimum(np.searchsorted(running[1:], wanted, side="right"), max(len(buckets) - 1, 0))
    if not len(buckets):
        return pa.nulls(len(lengths), pa.float64())
    bucket = buckets[at]
    power = (np.abs(bucket) - _BUCKET_SHIFT) * _LOG_RATIO + np.log1p(-_ACCURACY)
    middle = np.where(np.abs(bucket) == 2 * _BUCKET_SHIFT, np.inf, np.exp(np.minimum(power, _LOG_LARGEST)))
    values = np.where(bucket == _ZERO_BUCKET, 0.0, np.sign(bucket) * middle)
    return pa.array(values, mask=lengths == 0)
