"""Windowed join by key: both sides' rows wait in their windows and meet when a window closes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.errors import SchemaError
from headrace.graph.nodes import JoinNode
from headrace.graph.windowing import Interval, TimeWindow
from headrace.runtime.batch import Batch
from headrace.runtime.operators.eventtimes import closed_until, first_end, last_end
from headrace.runtime.operators.operator import Operator, timestamps
from headrace.state.durable.changes import Store
from headrace.state.grouping import check_key_type
from headrace.state.hashing import slices_of
from headrace.state.stores.joinrows import RowStore

_HOW = {"inner": "inner", "left": "left outer", "right": "right outer", "outer": "full outer"}
_SIDES = ("#left", "#right")


class Join(Operator):
    """Inner, left, right and full outer joins; equal keys within equal windows.

    A record that is too late for the first of its windows is late for all.
    """

    def __init__(self, node: JoinNode, schemas: tuple[pa.Schema, pa.Schema], out: pa.Schema, slices: int) -> None:
        super().__init__(node.name, ports=2)
        assert isinstance(node.window, TimeWindow)
        self._node, self._window, self._out, self._slices = node, node.window, out, slices
        check_sides(node, schemas)
        self._rows = [RowStore(schema) for schema in schemas]
        self._born_us = 0

    def stores(self) -> dict[str, Store]:
        return dict(zip(("left", "right"), self._rows))

    def on_batch(self, port: int, batch: Batch) -> None:
        self._born_us = batch.born_us
        too_late = first_end(batch.times, self._window) <= closed_until(self, batch)
        batch = self.without_late(port, batch, too_late)
        if not batch.rows:
            return
        first, last = first_end(batch.times, self._window), last_end(batch.times, self._window)
        records = batch.records
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
            for side in self._rows:
                side.drop(end)
            joined = self._joined(left, right)
            n = joined.num_rows
            if n:
                for name, at in (("window_start", end - self._window.size_us), ("window_end", end)):
                    if name not in joined.schema.names:  # rows of an earlier window keep their own bounds
                        joined = joined.append_column(name, timestamps(at, n))
                records = joined.cast(self._out).combine_chunks().to_batches()[0]
                self.emit(Batch(records, np.full(n, end - 1), self._born_us))

    def _joined(self, left: pa.Table, right: pa.Table) -> pa.Table:
        """The rows of both sides. Arrow joins keys and row numbers only: it cannot carry lists along."""
        keys = list(self._node.keys)
        numbered = [
            side.select(keys).append_column(name, pa.array(np.arange(side.num_rows)))
            for side, name in zip((left, right), _SIDES)
        ]
        pairs = numbered[0].join(numbered[1], keys, join_type=_HOW[self._node.how], use_threads=False)
        columns = [pairs[name] if name in keys else left[name].take(pairs[_SIDES[0]]) for name in left.column_names]
        columns += [right[name].take(pairs[_SIDES[1]]) for name in right.column_names if name not in keys]
        return pa.table(columns, names=self._out.names[: len(columns)])


def check_sides(node: JoinNode, schemas: tuple[pa.Schema, pa.Schema]) -> None:
    """Both sides have the keys, as the same types."""
    for schema in schemas:
        for key in node.keys:
            if schema.get_field_index(key) < 0:
                raise SchemaError(f"step {node.name!r}: key column {key!r} is not among {', '.join(schema.names)}")
            check_key_type(key, schema.field(key).type, node.name)
    for key in node.keys:
        left, right = (schema.field(key).type for schema in schemas)
        if left != right:
            raise SchemaError(
                f"step {node.name!r}: key column {key!r} is {left} on the left and {right} on the right; "
                f"give both sides one type with map or map_batch"
            )


def join_schema(node: JoinNode, left: pa.Schema, right: pa.Schema) -> pa.Schema:
    """Columns of a join's output: left, right without keys (clashes get ``_right``), window if there is one."""
    names = set(left.names)
    left_null, right_null = node.outer(1), node.outer(0)
    fields = [field.with_nullable(field.nullable or (left_null and field.name not in node.keys)) for field in left]
    for field in (field.with_nullable(field.nullable or right_null) for field in right):
        if field.name not in node.keys:
            fields.append(field.with_name(f"{field.name}_right") if field.name in names else field)
    taken = {field.name for field in fields}
    if len(taken) < len(fields):
        raise SchemaError(
            f"step {node.name!r}: its output would have two columns of one name: {', '.join(f.name for f in fields)}; "
            f"rename one before the join"
        )
    if isinstance(node.window, Interval):
        return pa.schema(fields)
    bounds = [pa.field(name, pa.timestamp("us", "UTC")) for name in ("window_start", "window_end") if name not in taken]
    return pa.schema([*fields, *bounds])
