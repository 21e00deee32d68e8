"""The hash engines and sort-merge on batches of (k, v), without Spark: count and sum per key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.bench.spilling.sortmerge import SortMerge
from headrace.bench.spilling.workloads import I64
from headrace.graph.nodes import ReduceNode
from headrace.runtime.operators.usercode import Guard
from headrace.runtime.reduce.reduce import make_table
from headrace.state.index.policies import INC, ResidencyPolicy
from headrace.state.spill.bounded import ENGINES, BoundedTable, Parts
from headrace.state.spill.bounds import Bound, bytes_per_row
from headrace.state.spill.mrhash import MrHash
from headrace.state.table.rowtable import GroupTable, Partials

SORT_MERGE, SORT_RECORDS = "sort-merge", "sort-merge-records"
"""With a combiner, as INC and DINC; and without one, as MR-hash (SCALLA 2.1)."""
MR_COMBINED = "mr-combined"
"""MR-hash behind maps that combine (SCALLA 2.3), with memory of their own."""
EVERY_ENGINE = (*ENGINES, "mr", SORT_MERGE, SORT_RECORDS)
_SLICES, _MERGE_FACTOR, _COUNT = 64, 10, "__count"


@dataclass(frozen=True, slots=True)
class Grouped:
    """What a run gave, as columns of keys, counts and sums, and what it cost.

    ``disk_tuples`` are those refused and states pushed out before the input ended, as the thesis counts; what is
    refused in one turn is combined before it is written. None for engines without resident keys.
    """

    groups: list[tuple[pa.Array, I64, I64]]
    disk_tuples: int | None
    spill_bytes: int
    peak_bytes: int


def grouped(engine: str, batches: list[pa.RecordBatch], memory_bytes: int, directory: Path) -> Grouped:
    """Group batches of one schema within a memory bound."""
    if engine in (SORT_MERGE, SORT_RECORDS):
        return _sorted(batches, memory_bytes, directory, combine=engine == SORT_MERGE)
    if engine == MR_COMBINED:
        return _absorbed("mr", _map_combined(batches), _combined_schema(batches), memory_bytes, directory)
    return _absorbed(engine, batches, batches[0].schema, memory_bytes, directory)


def _absorbed(
    engine: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema, memory_bytes: int, directory: Path
) -> Grouped:
    states = states_of(engine, schema, memory_bytes, directory)
    peak_bytes, groups = 0, []
    for batch in batches:
        states.absorb(batch, [batch.column(0)], 0, np.zeros(batch.num_rows, np.int64))
        peak_bytes = max(peak_bytes, states.nbytes)
    figures = states.table.index.figures
    for table, rows in states.settled([0]):
        n, total = (column.to_numpy() for column in table.results(rows))
        groups.append((table.key_columns(rows)[0], n, total))
        peak_bytes = max(peak_bytes, states.nbytes + (0 if table is states.table else table.nbytes))
    states.close()
    disk_tuples = None if engine == "mr" else figures.refused + figures.evictions
    return Grouped(groups, disk_tuples, states.spill_bytes, peak_bytes)


def _combined_schema(batches: list[pa.RecordBatch]) -> pa.Schema:
    return batches[0].schema.append(pa.field(_COUNT, pa.int64()))


def _map_combined(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each batch as the output of a map: the sum and the count of each of its keys."""
    combiner, schema = partials_of(batches[0].schema), _combined_schema(batches)
    for batch in batches:
        made = combiner.of(batch, [batch.column(0)], 0, np.zeros(batch.num_rows, np.int64))
        columns = [made.column(name) for name in ("k", "total.value", "n.n")]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _sorted(batches: list[pa.RecordBatch], memory_bytes: int, directory: Path, *, combine: bool) -> Grouped:
    """The memory that sort-merge holds is not observed: its budget stands for it."""
    sorter = SortMerge(directory, memory_bytes=memory_bytes, merge_factor=_MERGE_FACTOR, combine=combine)
    for batch in batches:
        sorter.add(batch.column(0), batch.column(1).to_numpy())
    groups = [(part["key"], part["count"].to_numpy(), part["sum"].to_numpy()) for part in sorter.groups()]
    return Grouped(groups, None, sorter.io.written_bytes, memory_bytes)


def states_of(engine: str, schema: pa.Schema, memory_bytes: int, directory: Path, **more: Any) -> BoundedTable | MrHash:
    """An empty engine; ``more`` are further fields of its ``Bound``."""
    table = table_of(schema)
    bound = Bound(memory_bytes, engine, directory, _SLICES, **more)
    parts = Parts(table, lambda: partials_of(schema))
    return MrHash(parts, bound, schema, ("k",)) if engine == "mr" else BoundedTable(parts, bound)


def partials_of(schema: pa.Schema) -> Partials:
    """Combines tuples as a map side does."""
    made = table_of(schema)(1, INC)
    return Partials(made.key_fields, made.accumulators)


def memory_of(schema: pa.Schema, keys: int) -> int:
    """Memory for so many keys under INC; policies that count hold fewer in it."""
    return int((keys + 1) * bytes_per_row(table_of(schema)(1, INC)))


def table_of(schema: pa.Schema) -> Callable[[int | None, ResidencyPolicy], GroupTable]:
    """Makes tables as a reduce step does; counts of tuples that were combined are added up."""
    count = hr.sum(_COUNT) if _COUNT in schema.names else hr.count()
    node = ReduceNode("bench", ("k",), None, (("n", count), ("total", hr.sum("v"))), ("before",))
    out = pa.schema([("n", pa.int64()), ("total", pa.int64())])

    def table(slots: int | None, policy: ResidencyPolicy) -> GroupTable:
        return make_table(node, schema, out, Guard("bench", "fail"), _SLICES, slots=slots, policy=policy)

    return table
