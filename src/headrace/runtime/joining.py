"""Windowed join by key: both sides' rows wait in their windows and meet when a window closes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.errors import SchemaError
from headrace.graph.nodes import JoinNode
from headrace.graph.windows import TimeWindow
from headrace.runtime.batch import Batch
from headrace.runtime.operators import Operator, timestamps
from headrace.runtime.windowed import first_end, last_end, without_closed
from headrace.state.changes import Store
from headrace.state.grouping import check_key_type
from headrace.state.hashing import slices_of
from headrace.state.rows import RowStore

_HOW = {"inner": "inner", "left": "left outer", "right": "right outer", "outer": "full outer"}
_SIDES = ("left", "right")


class Join(Operator):
    """Inner, left, right and full outer joins; equal keys within equal windows.

    A record that is too late for the first of its windows is dropped and counted.
    """

    def __init__(self, node: JoinNode, schemas: tuple[pa.Schema, pa.Schema], out: pa.Schema, slices: int) -> None:
        super().__init__(node.name, ports=2)
        assert isinstance(node.window, TimeWindow)
        self._node, self._window, self._out, self._slices = node, node.window, out, slices
        for schema in schemas:
            for key in node.keys:
                if schema.get_field_index(key) < 0:
                    raise SchemaError(f"step {node.name!r}: key column {key!r} is not among {', '.join(schema.names)}")
                check_key_type(key, schema.field(key).type, node.name)
        right = schemas[1]
        for key in node.keys:
            wanted = schemas[0].field(key).type
            right = right.set(right.get_field_index(key), pa.field(key, wanted))
        self._schemas = (schemas[0], right)
        self._rows = [RowStore(schemas[0]), RowStore(right)]
        self._born_us = 0

    def stores(self) -> dict[str, Store]:
        return dict(zip(_SIDES, self._rows))

    def on_batch(self, port: int, batch: Batch) -> None:
        self._born_us = batch.born_us
        batch = without_closed(self, batch, self._window)
        first, last = first_end(batch.times, self._window), last_end(batch.times, self._window)
        if batch.late is not None:
            dropped = first <= batch.late
            self.meter.late += int(dropped.sum())
            batch, first, last = batch.where(~dropped), first[~dropped], last[~dropped]
        if not batch.rows:
            return
        records = batch.records.cast(self._schemas[port])
        slices = slices_of([records.column(key) for key in self._node.keys], self._slices)
        while (inside := first <= last).any():
            for end in np.unique(first[inside]).tolist():
                here = inside & (first == end)
                self._rows[port].add(records.filter(pa.array(here)), end, slices[here])
            first = first + self._window.every_us

    def on_watermark(self, watermark_us: int) -> None:
        ends = sorted({*self._rows[0].panes(), *self._rows[1].panes()})
        for end in ends:
            if end > watermark_us:
                break
            left, right = (side.rows_of([end]) for side in self._rows)
            joined = left.join(
                right, list(self._node.keys), join_type=_HOW[self._node.how], right_suffix="_right", use_threads=False
            )
            for side in self._rows:
                side.drop(end)
            n = joined.num_rows
            if n:
                for name, at in (("window_start", end - self._window.size_us), ("window_end", end)):
                    if name not in joined.schema.names:  # rows of an earlier window keep their own bounds
                        joined = joined.append_column(name, timestamps(at, n))
                records = joined.select(self._out.names).cast(self._out).combine_chunks().to_batches()[0]
                self.emit(Batch(records, np.full(n, end - 1), self._born_us))


def join_schema(node: JoinNode, left: pa.Schema, right: pa.Schema) -> pa.Schema:
    """Columns of a join's output: left, right without keys (clashes get ``_right``), window."""
    names = set(left.names)
    fields = list(left)
    for field in right:
        if field.name not in node.keys:
            fields.append(field.with_name(f"{field.name}_right") if field.name in names else field)
    taken = {field.name for field in fields}
    bounds = [pa.field(name, pa.timestamp("us", "UTC")) for name in ("window_start", "window_end") if name not in taken]
    return pa.schema([*fields, *bounds])
