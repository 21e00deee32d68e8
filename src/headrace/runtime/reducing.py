"""Reduce without time windows: running results, the whole input, and windows of n records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.errors import SchemaError
from headrace.graph.nodes import ReduceNode
from headrace.graph.windows import FOREVER_US, CountWindow
from headrace.runtime.batch import Batch
from headrace.runtime.operators import Operator
from headrace.runtime.usercode import Guard
from headrace.state.aggregates import accumulator
from headrace.state.bounded import BoundedTable, Parts
from headrace.state.bounds import Bound
from headrace.state.changes import Store
from headrace.state.diskrows import spill_home
from headrace.state.grouping import Rows, check_key_type, group
from headrace.state.mrhash import MrHash
from headrace.state.panes import PaneStates, Unbounded
from headrace.state.policies import INC, Policy
from headrace.state.table import GroupTable, Partials
from headrace.state.userstates import UserState


def make_table(
    node: ReduceNode,
    schema: pa.Schema,
    out: pa.Schema,
    guard: Guard,
    slices: int,
    extras: tuple[str, ...] = (),
    *,
    slots: int | None = None,
    policy: Policy = INC,
) -> GroupTable:
    """The table of a reduce step; also used before the shuffle to combine, with the same partials."""
    keys = []
    for key in node.keys:
        index = schema.get_field_index(key)
        if index < 0:
            raise SchemaError(f"step {node.name!r}: key column {key!r} is not among {', '.join(schema.names)}")
        check_key_type(key, schema.field(index).type, node.name)
        keys.append(schema.field(index))
    accumulators = []
    for name, reducer in node.reducers:
        for column in reducer.columns:
            if schema.get_field_index(column) < 0:
                raise SchemaError(
                    f"step {node.name!r}: {name}={reducer.describe()} reads column {column!r}, "
                    f"which is not among {', '.join(schema.names)}"
                )
        at = out.get_field_index(name)
        result = out.field(at).type if at >= 0 else None
        try:
            accumulators.append(accumulator(name, reducer, schema, guard, result, packed=slots is not None))
        except SchemaError as error:
            raise SchemaError(f"step {node.name!r}: {name}={error}") from None
    return GroupTable(keys, accumulators, slices, extras, slots=slots, policy=policy)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a reduce keeps its state: how many slices there are, and where on this node it may overflow to."""

    slices: int
    spill: Path | None = None


class Reduce(Operator):
    """What all reduce operators share: their state, the output columns, early results."""

    def __init__(self, node: ReduceNode, schema: pa.Schema, out: pa.Schema, guard: Guard, place: Place) -> None:
        super().__init__(node.name)
        self.node, self._schema, self._out, self._guard, self._place = node, schema, out, guard, place
        self.early = any(getattr(reducer, "early", None) is not None for _, reducer in node.reducers)
        self.states = self._make_states()
        self.table = self.states.table

    def extra_columns(self) -> tuple[str, ...]:
        return ("early",) if self.early else ()

    def stores(self) -> dict[str, Store]:
        return self.states.stores()

    def close(self) -> None:
        self.states.close()

    def key_columns(self, records: pa.RecordBatch) -> list[pa.Array]:
        return [records.column(key) for key in self.node.keys]

    def results(self, rows: Rows, middle: list[pa.Array], table: GroupTable | None = None) -> pa.RecordBatch:
        """Output rows: keys, what the window adds, reducers."""
        table = table or self.table
        columns = [*table.key_columns(rows), *middle, *table.results(rows)]
        return pa.RecordBatch.from_arrays(columns, schema=self._out)

    def early_rows(self, touched: Rows) -> Rows:
        """Of these rows, those to be emitted now and never again."""
        wanted = np.zeros(len(touched), bool)
        for state in self.table.accumulators:
            if isinstance(state, UserState):
                wanted |= state.early(touched)
        rows: Rows = touched[wanted & (self.table.extras["early"][touched] == 0)]
        self.table.extras["early"][rows] = 1
        self.table.mark(rows)
        return rows

    def new_table(self, slots: int | None = None, policy: Policy = INC) -> GroupTable:
        """An empty table like the step's own."""
        extras = self.extra_columns()
        return make_table(
            self.node, self._schema, self._out, self._guard, self._place.slices, extras, slots=slots, policy=policy
        )

    def _make_states(self) -> PaneStates:
        node = self.node
        if node.memory_bytes is None:
            return Unbounded(self.new_table(), self.new_table)
        engine = engine_of(node)
        bound = Bound(node.memory_bytes, engine, self._place.spill or spill_home(), self._place.slices)
        parts = Parts(self.new_table, self._new_partials)
        return MrHash(parts, bound, self._schema, node.keys) if engine == "mr" else BoundedTable(parts, bound)

    def _new_partials(self) -> Partials:
        table = self.new_table()
        return Partials(table.key_fields, table.accumulators)


def engine_of(node: ReduceNode) -> str:
    """The hash engine of a bounded reduce. Without combine, records have to wait as they are: MR-hash."""
    if node.engine != "auto":
        return node.engine
    return "inc" if node.mergeable else "mr"


class RunningReduce(Reduce):
    """A result per key over all records so far, emitted whenever it changed.

    In modes that run stage by stage a key's result is emitted once per epoch.
    """

    def __init__(
        self, node: ReduceNode, schema: pa.Schema, out: pa.Schema, guard: Guard, place: Place, *, eager: bool
    ) -> None:
        super().__init__(node, schema, out, guard, place)
        self._eager, self._touched, self._newest_us, self._born_us = eager, [np.zeros(0, np.int64)], 0, 0

    def on_batch(self, port: int, batch: Batch) -> None:
        rows = np.unique(self.table.absorb(batch.records, self.key_columns(batch.records), 0, batch.times))
        self._changed(rows, int(batch.times.max()), batch.born_us)

    def receive_partial(self, port: int, partial: pa.RecordBatch, born_us: int) -> None:
        self.meter.items_in += partial.num_rows
        self._changed(np.unique(self.table.absorb_partial(partial)), self._newest_us, born_us)

    def _changed(self, rows: Rows, newest_us: int, born_us: int) -> None:
        self._newest_us = max(self._newest_us, newest_us)
        if self._eager:
            self._emit(rows, born_us)
        else:
            self._touched.append(rows)
            self._born_us = born_us

    def on_epoch_end(self) -> None:
        rows = np.unique(np.concatenate(self._touched))
        self._touched = [np.zeros(0, np.int64)]
        if len(rows):
            self._emit(rows, self._born_us)

    def _emit(self, rows: Rows, born_us: int) -> None:
        self.emit(Batch(self.results(rows, []), np.full(len(rows), self._newest_us), born_us))


class WholeInputReduce(Reduce):
    """One result per key when the input has ended."""

    def on_batch(self, port: int, batch: Batch) -> None:
        touched = np.unique(self.states.absorb(batch.records, self.key_columns(batch.records), 0, batch.times))
        if self.early:
            rows = self.early_rows(touched[touched >= 0])
            self.emit(Batch(self.results(rows, []), np.full(len(rows), int(batch.times.max())), batch.born_us))

    def receive_partial(self, port: int, partial: pa.RecordBatch, born_us: int) -> None:
        self.meter.items_in += partial.num_rows
        self.states.absorb_partial(partial)

    def on_watermark(self, watermark_us: int) -> None:
        if watermark_us < FOREVER_US:
            return
        for table, rows in self.states.settled([0]):
            wanted = rows[table.extras["early"][rows] == 0] if self.early else rows
            if len(wanted):
                self.emit(Batch(self.results(wanted, [], table), np.full(len(wanted), FOREVER_US - 1), 0))
        self.states.drop_pane(0)


class CountReduce(Reduce):
    """A result for every n records of a key, in order of arrival."""

    def __init__(self, node: ReduceNode, schema: pa.Schema, out: pa.Schema, guard: Guard, place: Place) -> None:
        super().__init__(node, schema, out, guard, place)
        assert isinstance(node.window, CountWindow)
        self._n = node.window.rows
        self._open: dict[object, tuple[int, int]] = {}

    def extra_columns(self) -> tuple[str, ...]:
        return ("filled",)

    def restored(self, slices: list[int]) -> None:
        rows = self.table.all_rows()
        panes, filled = self.table.pane_of(rows).tolist(), self.table.extras["filled"][rows].tolist()
        self._open = {key: (pane, n) for key, pane, n in zip(self.table.keys_of(rows), panes, filled)}

    def on_batch(self, port: int, batch: Batch) -> None:
        columns = self.key_columns(batch.records)
        groups = group(columns, 0)
        order = np.argsort(groups.of_row, kind="stable")
        counts = np.bincount(groups.of_row, minlength=len(groups.keys))
        rank = np.empty(batch.rows, np.int64)
        rank[order] = np.arange(batch.rows) - np.repeat(np.cumsum(counts) - counts, counts)
        opened = [self._open.get(key, (0, 0)) for key in groups.keys]
        pane = np.array([p for p, _ in opened])[groups.of_row]
        filled = np.array([n for _, n in opened])[groups.of_row]
        panes = pane + (filled + rank) // self._n
        last = (filled + rank) % self._n == self._n - 1
        of_record = self.table.absorb(batch.records, columns, panes, batch.times)
        rows, counts = np.unique(of_record, return_counts=True)
        self.table.extras["filled"][rows] += counts
        full = self.table.extras["filled"][rows] >= self._n
        for key, pane_no, n in zip(
            self.table.keys_of(rows[~full]),
            self.table.pane_of(rows[~full]).tolist(),
            self.table.extras["filled"][rows[~full]].tolist(),
        ):
            self._open[key] = (pane_no, n)
        done = rows[full]
        if len(done):
            filling = np.flatnonzero(last)[np.argsort(of_record[last])]  # results have these records' times
            still_open = set(self.table.keys_of(rows[~full]))
            for key in self.table.keys_of(done):
                if key not in still_open:
                    self._open.pop(key, None)
            order = np.argsort(self.table.pane_of(done), kind="stable")
            self.emit(batch.take(filling[order]).with_records(self.results(done[order], [])))
            self.table.drop(done)
