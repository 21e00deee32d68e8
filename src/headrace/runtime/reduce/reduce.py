"""What reduce steps share; those with a state per pane and key; and the one over the whole input."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError
from headrace.graph.memory import engine_of
from headrace.graph.nodes import ReduceNode
from headrace.graph.windowing import FOREVER_US, TimeWindow
from headrace.runtime.batch import Batch
from headrace.runtime.operators.operator import Operator, ShedRule
from headrace.runtime.operators.usercode import Guard
from headrace.state.durable.changes import Store
from headrace.state.grouping import Rows, check_key_type
from headrace.state.index.choosing import Choice
from headrace.state.index.policies import INC, ResidencyPolicy
from headrace.state.spill.bounded import BoundedTable, Parts
from headrace.state.spill.bounds import Bound, Frequent
from headrace.state.spill.diskrows import spill_home
from headrace.state.spill.mrhash import MrHash
from headrace.state.table.aggregates import accumulator
from headrace.state.table.panes import PaneStates, Unbounded
from headrace.state.table.rowtable import GroupTable, Partials
from headrace.state.table.userstates import UserState

Shares = npt.NDArray[np.float64]
"""At least which share of its key's records each row has seen."""


def make_table(
    node: ReduceNode,
    schema: pa.Schema,
    out: pa.Schema,
    guard: Guard,
    slices: int,
    extras: tuple[str, ...] = (),
    *,
    slots: int | None = None,
    policy: ResidencyPolicy = INC,
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
    """What all reduce operators share: their table, the output columns."""

    table: GroupTable
    """The part of the state that is in memory."""

    def __init__(self, node: ReduceNode, schema: pa.Schema, out: pa.Schema, guard: Guard, place: Place) -> None:
        super().__init__(node.name)
        self.node, self._schema, self._out, self._guard, self._place = node, schema, out, guard, place
        self.early = node.at_least is not None or any(
            getattr(reducer, "early", None) is not None for _, reducer in node.reducers
        )

    def extra_columns(self) -> tuple[str, ...]:
        return ("early",) if self.early else ()

    @property
    def combined_schema(self) -> pa.Schema:
        return self.table.combined_schema

    @property
    def shed_rule(self) -> ShedRule | None:
        if self.node.overload is None:
            return None
        return ShedRule(self.node.overload.after_us, self.on_disk if self.node.memory_bytes is not None else None)

    def on_disk(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """Which records' keys are not in memory although some keys are on disk; new ones may yet find room."""
        return np.zeros(batch.rows, bool)

    def key_columns(self, records: pa.RecordBatch) -> list[pa.Array]:
        return [records.column(key) for key in self.node.keys]

    def results(self, rows: Rows, middle: list[pa.Array], table: GroupTable | None = None) -> pa.RecordBatch:
        """Output rows: keys, what the window adds, reducers."""
        table = self.table if table is None else table
        columns = [*table.key_columns(rows), *middle, *table.results(rows)]
        return pa.RecordBatch.from_arrays(columns, schema=self._out)

    def new_table(self, slots: int | None = None, policy: ResidencyPolicy = INC) -> GroupTable:
        """An empty table like the step's own."""
        extras = self.extra_columns()
        return make_table(
            self.node, self._schema, self._out, self._guard, self._place.slices, extras, slots=slots, policy=policy
        )

    def new_partials(self) -> Partials:
        table = self.new_table()
        return Partials(table.key_fields, table.accumulators)


class PaneReduce(Reduce):
    """Reduce with a state per pane and key; early results."""

    def __init__(self, node: ReduceNode, schema: pa.Schema, out: pa.Schema, guard: Guard, place: Place) -> None:
        super().__init__(node, schema, out, guard, place)
        self.states = self._make_states()
        self.table = self.states.table

    def stores(self) -> dict[str, Store]:
        return self.states.stores()

    def close(self) -> None:
        self.states.close()

    @property
    def choice(self) -> Choice | None:
        """The hash engine in use and why, if there is a memory bound."""
        return self.states.choice if isinstance(self.states, BoundedTable) else None

    def on_disk(self, batch: Batch) -> npt.NDArray[np.bool_]:
        if not isinstance(self.states, BoundedTable) or not self.states.disk.panes():
            return super().on_disk(batch)
        missing: npt.NDArray[np.bool_] = (
            self.table.index.find(self.key_columns(batch.records), self.panes_of(batch.times)) < 0
        )
        return missing

    def panes_of(self, times: Rows) -> Rows | int:
        """The panes that records of these times belong to, or the first of them."""
        return 0

    def early_rows(self, touched: Rows) -> Rows:
        """Of these rows, those to be emitted now and never again."""
        touched = np.unique(touched[touched >= 0])
        wanted = self._reached(self.table, touched)
        for state in self.table.accumulators:
            if isinstance(state, UserState):
                wanted |= state.early(touched)
        rows: Rows = touched[wanted & (self.table.extras["early"][touched] == 0)]
        self.table.extras["early"][rows] = 1
        self.table.mark(rows)
        return rows[~self.states.told(rows)]

    def final(self, table: GroupTable, rows: Rows, shares: Shares | None = None) -> npt.NDArray[np.bool_]:
        """Which rows whose window has ended are to be emitted: not emitted before, and large enough.

        Where only a share of a key's records was seen, it is large enough if it might be: none is missed.
        """
        if not self.early:
            return np.ones(len(rows), bool)
        wanted: npt.NDArray[np.bool_] = table.extras["early"][rows] == 0
        return wanted & self._reached(table, rows, shares) if self.node.at_least is not None else wanted

    def _reached(self, table: GroupTable, rows: Rows, shares: Shares | None = None) -> npt.NDArray[np.bool_]:
        """Which rows have reached ``at_least``."""
        if self.node.at_least is None:
            return np.zeros(len(rows), bool)
        name, minimum = self.node.at_least
        at = [reducer for reducer, _ in self.node.reducers].index(name)
        reached: npt.NDArray[np.bool_] = np.zeros(len(rows), bool)
        if len(rows):
            values = pc.fill_null(table.accumulators[at].finalize(rows).cast(pa.float64()), -np.inf)
            reached = values.to_numpy(zero_copy_only=False) >= minimum * (1.0 if shares is None else shares)
        return reached

    def _make_states(self) -> PaneStates:
        node = self.node
        if node.memory_bytes is None:
            return Unbounded(self.new_table(), self.new_table)
        engine, _ = engine_of(node)
        spill = self._place.spill or spill_home()
        windowed = isinstance(node.window, TimeWindow)
        frequent = None
        if node.max_records is not None and node.at_least is not None and node.coverage is not None:
            frequent = Frequent(node.at_least[1], node.max_records, node.coverage)
        bound = Bound(node.memory_bytes, engine, spill, self._place.slices, windowed=windowed, frequent=frequent)
        parts = Parts(self.new_table, self.new_partials)
        return MrHash(parts, bound, self._schema, node.keys) if engine == "mr" else BoundedTable(parts, bound)


class WholeInputReduce(PaneReduce):
    """One result per key when the input has ended; earlier for what is asked to be early."""

    def on_batch(self, port: int, batch: Batch) -> None:
        touched = self.states.absorb(batch.records, self.key_columns(batch.records), 0, batch.times)
        self._emit_early(touched, int(batch.times.max()), batch.born_us)

    def on_partial(self, port: int, partial: pa.RecordBatch, born_us: int) -> None:
        self._emit_early(self.states.absorb_partial(partial), 0, born_us)

    def on_watermark(self, watermark_us: int) -> None:
        if watermark_us < FOREVER_US:
            return
        covered = None
        if self.node.coverage is not None and isinstance(self.states, BoundedTable):
            covered, shares = self.states.covered(0.0 if self.states.lossy else self.node.coverage)
            self._emit_last(self.table, covered, shares)
        for table, rows in self.states.settled([0], without=covered):
            self._emit_last(table, rows, np.ones(len(rows)))
        self.states.drop_pane(0)

    def _emit_early(self, touched: Rows, at_us: int, born_us: int) -> None:
        if self.early:
            rows = self.early_rows(touched)
            shares = np.ones(len(rows))
            if len(rows) and self.node.coverage is not None:
                shares = self.table.index.coverage_of(rows)
            at_us = max(at_us, self.watermark_us)
            self.emit(Batch(self.results(rows, self._coverage(shares)), np.full(len(rows), at_us), born_us))

    def _emit_last(self, table: GroupTable, rows: Rows, shares: Shares) -> None:
        wanted = self.final(table, rows, shares)
        rows, shares = rows[wanted], shares[wanted]
        if len(rows):
            results = self.results(rows, self._coverage(shares), table)
            self.emit(Batch(results, np.full(len(rows), FOREVER_US - 1), 0))

    def _coverage(self, shares: Shares) -> list[pa.Array]:
        return [pa.array(shares)] if self.node.coverage is not None else []
