"""Find every step's schema before anything starts, by sending sample records through the job.

Users' functions are called on a few sample records in the driver. What they return is their step's columns;
``returns=`` declares them instead, and then a function is called only if a later step needs what it makes of the
samples. On a checkpoint they stay what they were, whatever samples there are now: columns of
a type that no value contradicts keep it, and others are added. Only what is declared is taken at its word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.connect.source import Source
from headrace.errors import GraphError, SchemaError
from headrace.graph.nodes import (
    Graph,
    JoinNode,
    LateNode,
    LookupNode,
    Node,
    PaneNode,
    ProcessNode,
    ReduceNode,
    SinkNode,
    SourceNode,
    TransformNode,
)
from headrace.graph.reduction import UserReducer
from headrace.graph.windowing import FOREVER_US, SessionWindow, TimeWindow
from headrace.runtime.batch import Batch
from headrace.runtime.clock import now_us
from headrace.runtime.operators.eventtimes import check_time_type, event_times
from headrace.runtime.operators.joins import check_sides, join_schema
from headrace.runtime.operators.lookups import LookupOperator, edition_of, lookup_schema
from headrace.runtime.operators.process import Process
from headrace.runtime.operators.usercode import Guard, line_of
from headrace.runtime.plan import TimeColumn
from headrace.runtime.reduce.reduce import make_table
from headrace.schemas import conform, empty_batch, infer_schema, to_batch

_SAMPLE_ROWS = 200
_STAMP = pa.timestamp("us", "UTC")
_MISFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What Arrow raises for a value that does not fit a column."""


@dataclass
class _Sample:
    """A step's columns, and what it makes of the samples, if anybody asks."""

    schema: pa.Schema
    make: Callable[[], pa.RecordBatch]

    @cached_property
    def rows(self) -> pa.RecordBatch:
        return self.make()


def _of(schema: pa.Schema, rows: pa.RecordBatch) -> _Sample:
    """What is known already."""
    return _Sample(schema, lambda: rows)


@dataclass(frozen=True, slots=True)
class Inferred:
    """Schemas and event-time columns by step."""

    schemas: dict[str, pa.Schema]
    time_columns: dict[str, TimeColumn | None]


def infer(graph: Graph, known: dict[str, pa.Schema] | None = None) -> Inferred:
    """Schemas of all steps. ``known`` are those of an existing checkpoint."""
    known = known or {}
    times: dict[str, TimeColumn | None] = {}
    samples: dict[str, _Sample] = {}
    for node in graph.nodes:
        read = graph.streams_into(node)
        inputs = [samples[name] for name in read]
        before = known.get(node.name)
        if isinstance(node, SourceNode):
            sample = _source(node, before)
            times[node.name] = (node.event_time, node.time_unit) if node.event_time else None
        else:
            kept = times[read[0]]
            sample = _step(node, inputs, before, kept)
            times[node.name] = kept if kept is not None and sample.schema.get_field_index(kept[0]) >= 0 else None
        samples[node.name] = sample
    return Inferred({name: sample.schema for name, sample in samples.items()}, times)


def _source(node: SourceNode, known: pa.Schema | None) -> _Sample:
    schema = node.options.returns
    if schema is None:
        schema = known if known is not None and not _says_columns(node.source) else node.source.schema()
    if node.event_time is not None:
        index = schema.get_field_index(node.event_time)
        if index < 0:
            raise SchemaError(
                f"source {node.name!r}: event-time column {node.event_time!r} is not among {', '.join(schema.names)}"
            )
        check_time_type(schema.field(index).type, node.event_time, node.name)
    return _of(schema, conform(node.source.sample(_SAMPLE_ROWS), schema, node.name))


def _says_columns(source: Source) -> bool:
    """Whether the user, or the DataFrame that is read, says which columns there are: then nothing is inferred."""
    return getattr(source, "declared", None) is not None or hasattr(source, "frame")


def _step(node: Node, inputs: list[_Sample], known: pa.Schema | None, time: TimeColumn | None) -> _Sample:
    first = inputs[0]
    match node:
        case SinkNode() | PaneNode() | LateNode():
            return first
        case TransformNode():
            return _transform(node, first, known)
        case ReduceNode():
            return _reduce(node, first, known)
        case ProcessNode():
            return _process(node, first, known, time)
        case JoinNode():
            schema = join_schema(node, first.schema, inputs[1].schema)
            check_sides(node, (first.schema, inputs[1].schema))
            return _Sample(schema, lambda: _paired(node, schema, first.rows, inputs[1].rows))
        case LookupNode():
            return _lookup(node, first)
        case _:
            schema = _united(node.name, [sample.schema for sample in inputs])
            return _Sample(schema, lambda: conform(first.rows, schema, node.name))


def _lookup(node: LookupNode, sample: _Sample) -> _Sample:
    """The table is read, so that later steps see values of it."""
    found = node.table.read()
    schema = lookup_schema(node, sample.schema, found.schema)
    lookup = LookupOperator(node, sample.schema, schema)
    edition = lookup.prepared(edition_of(node, found, lookup.columns))

    def looked_up() -> pa.RecordBatch:
        records = sample.rows
        rows = edition.find([records.column(name) for name in node.on])
        if node.how == "inner" and (rows >= 0).any():
            records, rows = records.filter(pa.array(rows >= 0)), rows[rows >= 0]
        return edition.widened(records, rows, schema)

    return _Sample(schema, looked_up)


def _united(step: str, schemas: list[pa.Schema]) -> pa.Schema:
    """The columns of a union: those of its first input, wide enough for all."""
    for other in schemas[1:]:
        if set(other.names) != set(schemas[0].names):
            raise SchemaError(
                f"union {step!r}: its inputs have different columns: {', '.join(schemas[0].names)} and "
                f"{', '.join(other.names)}; give them the same ones with map or map_batch"
            )
    try:
        return pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as error:
        raise SchemaError(
            f"union {step!r}: its inputs have columns of different types ({error}); convert one with map or map_batch"
        ) from None


def _transform(node: TransformNode, sample: _Sample, known: pa.Schema | None) -> _Sample:
    declared = node.options.returns
    if node.kind == "filter":
        return sample
    if node.kind == "map_batch":
        if declared is not None:
            return _Sample(declared, lambda: _map_batch(node, sample.rows, declared))
        out = _map_batch(node, sample.rows, known)
        return _of(out.schema, out)
    if declared is not None:
        return _Sample(declared, lambda: _fitting(_called(node, sample.rows)[0], declared))
    rows, failure = _called(node, sample.rows)
    if not rows and known is None and failure is not None:
        raise _failed(node.name, failure) from failure
    schema = _made_of(rows, known, node.name)
    return _of(schema, _fitting(rows, schema))


def _called(node: TransformNode, sample: pa.RecordBatch) -> tuple[list[Any], Exception | None]:
    """What a map or flat_map makes of the samples, and why it first failed on one, if it did."""
    rows: list[Any] = []
    failure: Exception | None = None
    for record in sample.to_pylist():
        try:
            made = node.fn(record)
            rows += [made] if node.kind == "map" else list(made or ())
        except Exception as error:
            failure = failure or error
    return rows, failure


def _map_batch(node: TransformNode, sample: pa.RecordBatch, known: pa.Schema | None) -> pa.RecordBatch:
    declared = node.options.returns
    try:
        out = node.fn(sample)
    except Exception as error:
        if known is None:
            raise _failed(node.name, error) from error
        return empty_batch(known)
    if isinstance(out, pa.Table):
        out = out.combine_chunks().to_batches()[0] if out.num_rows else empty_batch(out.schema)
    if not isinstance(out, pa.RecordBatch):
        raise SchemaError(f"step {node.name!r} must return a pyarrow.RecordBatch, not {type(out).__name__}")
    return conform(out, declared if declared is not None else _kept(out, known), node.name)


def _made_of(rows: list[Any], known: pa.Schema | None, step: str) -> pa.Schema:
    """The columns of records that a function made; those known before are kept, since a sample may lack them."""
    if known is None or not all(isinstance(row, Mapping) for row in rows):
        return infer_schema(rows, step)
    fields = {field.name: field for field in known}
    for name in dict.fromkeys(name for row in rows for name in row):
        column = [{name: row.get(name)} for row in rows]
        if name not in fields or not _fits(column, fields[name]):
            fields[name] = infer_schema(column, step).field(name)
    return pa.schema(list(fields.values()))


def _kept(out: pa.RecordBatch, known: pa.Schema | None) -> pa.Schema:
    """The columns of a batch that a function made, in the order and of the types known before where they fit."""
    if known is None:
        return out.schema
    names = [*(name for name in known.names if name in out.schema.names)]
    names += [name for name in out.schema.names if name not in names]
    fields = []
    for field in (out.schema.field(name) for name in names):
        before = known.field(field.name) if field.name in known.names else field
        try:
            out.column(field.name).cast(before.type)
        except pa.ArrowException:
            before = field
        fields.append(before)
    return pa.schema(fields)


def _fits(rows: list[dict[str, Any]], field: pa.Field) -> bool:
    try:
        to_batch(rows, pa.schema([field]))
    except _MISFIT:
        return False
    return True


def _reduce(node: ReduceNode, sample: _Sample, known: pa.Schema | None) -> _Sample:
    declared = node.options.returns if node.options.returns is not None else known
    if isinstance(node.window, SessionWindow) and not node.mergeable:
        raise GraphError(f"step {node.name!r}: sessions can merge, so its reducers need combine=")
    table = make_table(node, sample.schema, pa.schema([]), Guard(node.name, "skip"), 1)
    fields = list(table.key_fields)
    if isinstance(node.window, (TimeWindow, SessionWindow)):
        fields += [pa.field("window_start", _STAMP), pa.field("window_end", _STAMP)]
        if node.window.versioned:
            fields += [pa.field("version", pa.int64()), pa.field("completeness", pa.float64())]
    if node.coverage is not None:
        fields.append(pa.field("coverage", pa.float64()))
    for (name, reducer), state in zip(node.reducers, table.accumulators):
        kind = state.result
        if isinstance(reducer, UserReducer):
            kind = _user_result(node.name, name, reducer, sample, declared)
        fields.append(pa.field(name, kind))
    schema = pa.schema(fields)
    if len(set(schema.names)) < len(schema.names):
        raise SchemaError(
            f"step {node.name!r}: its output would have two columns of one name: {', '.join(schema.names)}"
        )
    return _Sample(schema, lambda: _reduced_sample(node, sample.rows, schema))


def _user_result(
    step: str, name: str, reducer: UserReducer, sample: _Sample, declared: pa.Schema | None
) -> pa.DataType:
    if declared is not None and declared.get_field_index(name) >= 0:
        return declared.field(name).type
    values: list[Any] = []
    failure: Exception | None = None
    try:
        state = reducer.init()
        for record in sample.rows.to_pylist():
            try:
                state = reducer.update(state, record)
            except Exception as error:
                failure = failure or error
                continue
            values = [state]
        values = [reducer.finalize(state) for state in values] if reducer.finalize is not None else values
    except Exception as error:
        raise _failed(step, error) from error
    if not values and failure is not None:
        raise _failed(step, failure) from failure
    return infer_schema([{name: value} for value in values], step).field(name).type


def _reduced_sample(node: ReduceNode, sample: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """One result over the whole sample, so that later steps see plausible values."""
    if not sample.num_rows:
        return empty_batch(schema)
    table = make_table(node, sample.schema, schema, Guard(node.name, "skip"), 1)
    keys = [sample.column(key) for key in node.keys]
    rows = np.unique(table.absorb(sample, keys, 0, np.zeros(sample.num_rows, np.int64)))
    results = dict(
        zip([*node.keys, *(name for name, _ in node.reducers)], [*table.key_columns(rows), *table.results(rows)])
    )
    moment = pa.array(np.zeros(len(rows), np.int64)).cast(_STAMP)
    blank = {
        "window_start": moment, "window_end": moment,
        "version": pa.array(np.zeros(len(rows), np.int64)), "completeness": pa.array(np.ones(len(rows))),
        "coverage": pa.array(np.ones(len(rows))),
    }  # fmt: skip
    return pa.RecordBatch.from_arrays([results.get(f.name, blank.get(f.name)) for f in schema], schema=schema)


def _process(node: ProcessNode, sample: _Sample, known: pa.Schema | None, time: TimeColumn | None) -> _Sample:
    """Its functions are called with the samples' own times; timers are at times that could have been, too."""
    declared = node.options.returns
    if declared is not None:
        Process(node, sample.schema, declared, Guard(node.name, "skip"), 1, debug=False)
        return _of(declared, empty_batch(declared))
    errors: list[Exception] = []

    def note(record: Any, error: Exception) -> None:
        errors.append(error)

    probe = _Probe(node, sample.schema, pa.schema([]), note, 1, debug=False)
    probe.receive(0, _timed(sample.rows, time))
    probe.watermark(0, FOREVER_US)
    if not probe.made and errors and known is None:
        raise _failed(node.name, errors[0]) from errors[0]
    schema = _made_of(probe.made, known, node.name)
    return _of(schema, _fitting(probe.made, schema))


def _timed(sample: pa.RecordBatch, time: TimeColumn | None) -> Batch:
    """Samples as the step will be given them: at their event times, or now, if they have none."""
    now = now_us()
    if time is None:
        return Batch(sample, np.full(sample.num_rows, now), now)
    times, usable = event_times(sample.column(time[0]), time[1], now)
    return Batch(sample.filter(pa.array(usable)), times[usable], now)


class _Probe(Process):
    """Keeps the rows that a function makes, since no schema says yet how to emit them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.made: list[dict[str, Any]] = []

    def emit_rows(self, rows: list[dict[str, Any]], times: Any, born_us: int, late: Any) -> None:
        self.made += rows


def _fitting(rows: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    try:
        return to_batch(rows, schema)
    except _MISFIT:
        return empty_batch(schema)


def _paired(node: JoinNode, schema: pa.Schema, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
    """Records of both sides beside each other, so that later steps see plausible values of all columns."""
    n = min(left.num_rows, right.num_rows) or left.num_rows
    beside = [right.column(name)[:n] for name in right.schema.names if name not in node.keys and right.num_rows]
    columns = [column[:n] for column in left.columns] + beside
    columns += [pa.nulls(n, field.type) for field in list(schema)[len(columns) :]]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _failed(step: str, error: Exception) -> SchemaError:
    return SchemaError(
        f"step {step!r} failed on sample records at {line_of(error)} ({type(error).__name__}: {error}); fix the function, "
        f"or declare its columns: returns={{'column': 'int64', ...}}"
    )
