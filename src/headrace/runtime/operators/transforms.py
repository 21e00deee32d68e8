"""Steps without state: map, flat_map, filter and map_batch, union, and edges that pass through a stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import DataError, SchemaError
from headrace.graph.nodes import TransformNode
from headrace.runtime.batch import Batch
from headrace.runtime.operators.eventtimes import event_times
from headrace.runtime.operators.operator import Operator
from headrace.runtime.operators.usercode import Guard
from headrace.schemas import conform, empty_batch, to_batch

_MISFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What Arrow raises for a value that does not fit a column; SchemaError is a TypeError."""


class Forward(Operator):
    """union, and edges that pass through a stage."""

    def __init__(self, name: str, ports: int, schema: pa.Schema) -> None:
        super().__init__(name, ports)
        self._schema = schema

    def on_batch(self, port: int, batch: Batch) -> None:
        self.emit(batch.with_records(conform(batch.records, self._schema, self.name)))


class Transform(Operator):
    """map, flat_map, filter and map_batch."""

    def __init__(
        self, node: TransformNode, schema: pa.Schema, guard: Guard, time_column: tuple[str, str | None] | None
    ) -> None:
        super().__init__(node.name)
        self._fn, self._schema, self._guard, self._time = node.fn, schema, guard, time_column
        self._declared = node.options.returns is not None
        self.on_batch = {  # type: ignore[method-assign]
            "map": self._map,
            "flat_map": self._flat_map,
            "filter": self._filter,
            "map_batch": self._map_batch,
        }[node.kind]

    def _map(self, port: int, batch: Batch) -> None:
        self._emit_rows(batch, lambda record: (self._fn(record),))

    def _flat_map(self, port: int, batch: Batch) -> None:
        self._emit_rows(batch, lambda record: self._fn(record) or ())

    def _emit_rows(self, batch: Batch, call: Any) -> None:
        rows: list[Any] = []
        origin: list[int] = []
        for i, record in enumerate(batch.records.to_pylist()):
            try:
                made = list(call(record))
            except Exception as error:
                self._guard(record, error)
                continue
            rows += made
            origin += [i] * len(made)
        records, kept = to_records(rows, self._schema, self._guard, declared=self._declared)
        self.emit(batch.take(np.array([origin[k] for k in kept], np.int64)).with_records(records))

    def _filter(self, port: int, batch: Batch) -> None:
        keep = np.zeros(batch.rows, bool)
        for i, record in enumerate(batch.records.to_pylist()):
            try:
                keep[i] = bool(self._fn(record))
            except Exception as error:
                self._guard(record, error)
        self.emit(batch if keep.all() else batch.where(keep))

    def _map_batch(self, port: int, batch: Batch) -> None:
        try:
            records = self._called(batch)
            if records.num_rows == batch.rows and self._in_order(batch, records):
                made = [batch.with_records(records)]
            elif batch.late is None and self._time is not None and records.schema.get_field_index(self._time[0]) >= 0:
                made = [self._retimed(batch, records)]
            else:
                made = [self._single(part) for part in _of_one_time(batch)]
        except Exception as error:
            self._guard({"batch_of": batch.rows, "columns": batch.records.schema.names}, error)
            return
        for part in made:
            self.emit(part)

    def _called(self, batch: Batch) -> pa.RecordBatch:
        records = self._fn(batch.records)
        if isinstance(records, pa.Table):
            records = records.combine_chunks().to_batches()[0] if records.num_rows else empty_batch(records.schema)
        if not isinstance(records, pa.RecordBatch):
            raise SchemaError(f"must return a pyarrow.RecordBatch, not {type(records).__name__}")
        return conform(records, self._schema, self.name)

    def _in_order(self, batch: Batch, records: pa.RecordBatch) -> bool:
        """False if the event-time column shows that the rows were put in another order."""
        if self._time is None or records.schema.get_field_index(self._time[0]) < 0:
            return True
        now, before = records.column(self._time[0]), batch.records.column(self._time[0])
        return bool(now.equals(before)) or not now.sort().equals(before.sort())

    def _retimed(self, batch: Batch, records: pa.RecordBatch) -> Batch:
        """Times for rows that a function added, dropped or put in another order, from their time column."""
        assert self._time is not None
        times, usable = event_times(records.column(self._time[0]), self._time[1], 2**61)
        if not usable.all():
            raise DataError("returned rows without a usable event time")
        return Batch(records, times, batch.born_us, tag_us=batch.tag_us)

    def _single(self, part: Batch) -> Batch:
        """Rows of one time and one watermark: whatever the function makes of them has these too."""
        records = self._called(part)
        return part.take(np.zeros(records.num_rows, np.int64)).with_records(records)


def _of_one_time(batch: Batch) -> Iterator[Batch]:
    late = batch.late if batch.late is not None else np.zeros(batch.rows, np.int64)
    for at_us, watermark_us in sorted({*zip(batch.times.tolist(), late.tolist())}):
        yield batch.where((batch.times == at_us) & (late == watermark_us))


def to_records(rows: list[Any], schema: pa.Schema, guard: Guard, *, declared: bool) -> tuple[pa.RecordBatch, list[int]]:
    """Rows that a user's function made as Arrow, and which of them fit; the guard decides about the others.

    Columns that are not in the schema are a change of it, unless the user declared which ones to keep.
    """
    names = frozenset(schema.names)
    mappings = all(issubclass(kind, Mapping) for kind in {*map(type, rows)})
    if mappings and (declared or names.issuperset(set().union(*rows))):
        try:
            return to_batch(rows, schema), list(range(len(rows)))
        except _MISFIT:
            pass  # find out which
    kept = []
    for i, row in enumerate(rows):
        try:
            if not isinstance(row, Mapping):
                raise SchemaError(f"must return records (mappings), not {type(row).__name__}: {row!r:.80}")
            if not declared and not names.issuperset(row):
                raise SchemaError(f"column {min(row.keys() - names, key=str)!r} is new")
            to_batch([row], schema)
            kept.append(i)
        except _MISFIT as error:
            reason = f"does not fit the schema fixed at the start ({_columns(schema)}): {error}"
            guard(row, SchemaError(reason))
    return to_batch([rows[i] for i in kept], schema), kept


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
