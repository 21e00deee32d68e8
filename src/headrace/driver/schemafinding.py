"""Find every step's schema before anything starts, by sending sample records through the job.

Users' functions are called on a few sample records in the driver. What they return is their step's columns;
``returns=`` declares them instead. On a checkpoint they stay what they were, whatever samples there are now: columns of
a type that no value contradicts keep it, and others are added. Only what is declared is taken at its word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
from headrace.runtime.operators.eventtimes import check_time_type
from headrace.runtime.operators.joins import Join, join_schema
from headrace.runtime.operators.lookups import LookupOperator, edition_of, lookup_schema
from headrace.runtime.operators.process import Process
from headrace.runtime.operators.usercode import Guard
from headrace.runtime.plan import TimeColumn
from headrace.runtime.reduce.reduce import make_table
from headrace.schemas import conform, empty_batch, infer_schema, to_batch

_SAMPLE_ROWS = 200
_STAMP = pa.timestamp("us", "UTC")
_MISFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What Arrow raises for a value that does not fit a column."""


@dataclass(frozen=True, slots=True)
class Inferred:
    """Schemas and event-time columns by step."""

    schemas: dict[str, pa.Schema]
    time_columns: dict[str, TimeColumn | None]


def infer(graph: Graph, known: dict[str, pa.Schema] | None = None) -> Inferred:
    """Schemas of all steps. ``known`` are those of an existing checkpoint."""
    known = known or {}
    schemas: dict[str, pa.Schema] = {}
    times: dict[str, TimeColumn | None] = {}
    samples: dict[str, pa.RecordBatch] = {}
    for node in graph.nodes:
        read = graph.streams_into(node)
        inputs = [samples[name] for name in read]
        before = known.get(node.name)
        if isinstance(node, SourceNode):
            schema, sample = _source(node, before)
            times[node.name] = (node.event_time, node.time_unit) if node.event_time else None
        else:
            schema, sample = _step(node, inputs, before)
            kept = times[read[0]]
            times[node.name] = kept if kept is not None and schema.get_field_index(kept[0]) >= 0 else None
        schemas[node.name], samples[node.name] = schema, sample
    return Inferred(schemas, times)


def _source(node: SourceNode, known: pa.Schema | None) -> tuple[pa.Schema, pa.RecordBatch]:
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
    return schema, conform(node.source.sample(_SAMPLE_ROWS), schema, node.name)


def _says_columns(source: Source) -> bool:
    """Whether the user, or the DataFrame that is read, says which columns there are: then nothing is inferred."""
    return getattr(source, "declared", None) is not None or hasattr(source, "frame")


def _step(node: Node, inputs: list[pa.RecordBatch], known: pa.Schema | None) -> tuple[pa.Schema, pa.RecordBatch]:
    match node:
        case SinkNode() | PaneNode() | LateNode():
            return inputs[0].schema, inputs[0]
        case TransformNode():
            return _transform(node, inputs[0], known)
        case ReduceNode():
            return _reduce(node, inputs[0], known)
        case ProcessNode():
            return _process(node, inputs[0], known)
        case JoinNode():
            schema = join_schema(node, inputs[0].schema, inputs[1].schema)
            Join(node, (inputs[0].schema, inputs[1].schema), schema, 1)
            return schema, _blank(schema, inputs[0])
        case LookupNode():
            return _lookup(node, inputs[0])
        case _:
            schema = _united(node.name, [sample.schema for sample in inputs])
            return schema, conform(inputs[0], schema, node.name)


def _lookup(node: LookupNode, sample: pa.RecordBatch) -> tuple[pa.Schema, pa.RecordBatch]:
    """The table is read, so that later steps see values of it."""
    found = node.table.read()
    schema = lookup_schema(node, sample.schema, found.schema)
    lookup = LookupOperator(node, sample.schema, schema)
    edition = lookup.prepared(edition_of(node, found, lookup.columns))
    rows = edition.find([sample.column(name) for name in node.on])
    if node.how == "inner" and (rows >= 0).any():
        sample, rows = sample.filter(pa.array(rows >= 0)), rows[rows >= 0]
    return schema, edition.widened(sample, rows, schema)


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


def _transform(
    node: TransformNode, sample: pa.RecordBatch, known: pa.Schema | None
) -> tuple[pa.Schema, pa.RecordBatch]:
    if node.kind == "filter":
        return sample.schema, sample
    if node.kind == "map_batch":
        return _map_batch(node, sample, known)
    rows: list[Any] = []
    failure: Exception | None = None
    for record in sample.to_pylist():
        try:
            made = node.fn(record)
            rows += [made] if node.kind == "map" else list(made or ())
        except Exception as error:
            failure = failure or error
    declared = node.options.returns
    if not rows and declared is None and known is None and failure is not None:
        raise _failed(node.name, failure) from failure
    schema = declared if declared is not None else _made_of(rows, known, node.name)
    return schema, _fitting(rows, schema)


def _map_batch(
    node: TransformNode, sample: pa.RecordBatch, known: pa.Schema | None
) -> tuple[pa.Schema, pa.RecordBatch]:
    declared = node.options.returns
    try:
        out = node.fn(sample)
    except Exception as error:
        fallback = declared if declared is not None else known
        if fallback is None:
            raise _failed(node.name, error) from error
        return fallback, empty_batch(fallback)
    if isinstance(out, pa.Table):
        out = out.combine_chunks().to_batches()[0] if out.num_rows else empty_batch(out.schema)
    if not isinstance(out, pa.RecordBatch):
        raise SchemaError(f"step {node.name!r} must return a pyarrow.RecordBatch, not {type(out).__name__}")
    schema = declared if declared is not None else _kept(out, known)
    return schema, conform(out, schema, node.name)


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


def _reduce(node: ReduceNode, sample: pa.RecordBatch, known: pa.Schema | None) -> tuple[pa.Schema, pa.RecordBatch]:
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
    return schema, _reduced_sample(node, sample, schema)


def _user_result(
    step: str, name: str, reducer: UserReducer, sample: pa.RecordBatch, declared: pa.Schema | None
) -> pa.DataType:
    if declared is not None and declared.get_field_index(name) >= 0:
        return declared.field(name).type
    values: list[Any] = []
    failure: Exception | None = None
    try:
        state = reducer.init()
        for record in sample.to_pylist():
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


def _process(node: ProcessNode, sample: pa.RecordBatch, known: pa.Schema | None) -> tuple[pa.Schema, pa.RecordBatch]:
    declared = node.options.returns
    if declared is not None:
        Process(node, sample.schema, declared, Guard(node.name, "skip"), 1, debug=False)
        return declared, empty_batch(declared)
    errors: list[Exception] = []

    def note(record: Any, error: Exception) -> None:
        errors.append(error)

    probe = _Probe(node, sample.schema, pa.schema([]), note, 1, debug=False)
    probe.receive(0, Batch(sample, np.zeros(sample.num_rows, np.int64), 0))
    probe.watermark(0, FOREVER_US)
    if not probe.made and errors and known is None:
        raise _failed(node.name, errors[0]) from errors[0]
    schema = _made_of(probe.made, known, node.name)
    return schema, _fitting(probe.made, schema)


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


def _blank(schema: pa.Schema, like: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        like.column(field.name) if field.name in like.schema.names else pa.nulls(like.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _failed(step: str, error: Exception) -> SchemaError:
    return SchemaError(
        f"step {step!r} failed on sample records ({type(error).__name__}: {error}); fix the function, "
        f"or declare its columns: returns={{'column': 'int64', ...}}"
    )
