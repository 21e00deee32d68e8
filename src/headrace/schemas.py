"""Schemas as users write them, and the casts that enforce them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.errors import SchemaError

SchemaLike: TypeAlias = pa.Schema | Mapping[str, str | type | pa.DataType]
"""A ``pyarrow.Schema``, or a mapping of column names to Arrow type names."""
_ALIASES = {"int": "int64", "float": "float64", "str": "string", "bytes": "binary", "timestamp": "timestamp[us]"}


def to_schema(schema: SchemaLike) -> pa.Schema:
    """An Arrow schema from one, or from ``{"user": "string", "n": "int64", "at": "timestamp"}``.

    >>> to_schema({"n": "int"}).field("n").type
    DataType(int64)
    """
    if isinstance(schema, pa.Schema):
        return schema
    if not isinstance(schema, Mapping):
        raise SchemaError(
            f"a schema is a mapping of column names to types such as {{'n': 'int64'}}, not {schema!r:.80}"
        )
    fields = []
    for name, kind in schema.items():
        if isinstance(kind, pa.DataType):
            fields.append(pa.field(name, kind))
            continue
        text = kind.__name__ if isinstance(kind, type) else str(kind)
        text = _ALIASES.get(text, text)
        try:
            if text.startswith("timestamp["):
                unit, _, zone = text[10:-1].partition(",")
                kind = pa.timestamp(unit, zone.strip().removeprefix("tz=") or None)
            else:
                kind = pa.type_for_alias(text)
        except ValueError:
            raise SchemaError(f"column {name!r}: {text!r} is not an Arrow type such as 'int64' or 'string'") from None
        fields.append(pa.field(name, kind))
    return pa.schema(fields)


def infer_schema(rows: Sequence[Mapping[str, Any]], step: str) -> pa.Schema:
    """The schema of the first records of a step; columns that are only null become strings."""
    if not rows:
        raise SchemaError(
            f"step {step!r}: no sample record came through, so its columns are unknown; "
            f"declare them: returns={{'column': 'int64', ...}}"
        )
    names: dict[str, None] = {}
    for row in rows:
        if not isinstance(row, Mapping):
            raise SchemaError(f"step {step!r} must return records (mappings), not {type(row).__name__}: {row!r:.80}")
        names.update(dict.fromkeys(row))
    fields = []
    for name in names:
        try:
            kind = pa.array([row.get(name) for row in rows], from_pandas=False).type
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            try:
                kind = pa.array([None if row.get(name) is None else float(row[name]) for row in rows]).type
            except (TypeError, ValueError, pa.ArrowException) as error:
                raise SchemaError(f"step {step!r}: column {name!r} mixes types in its first records: {error}") from None
        fields.append(pa.field(name, pa.string() if pa.types.is_null(kind) else kind))
    return pa.schema(fields)


def conform(batch: pa.RecordBatch, schema: pa.Schema, step: str) -> pa.RecordBatch:
    """The batch with exactly these columns and types, or SchemaError."""
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            raise SchemaError(
                f"step {step!r}: column {field.name!r} is missing; got {', '.join(batch.schema.names)}; "
                f"the schema was fixed when the job started"
            )
        column = batch.column(index)
        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except pa.ArrowException as error:
                raise SchemaError(
                    f"step {step!r}: column {field.name!r} is {column.type} now but {field.type} in the schema "
                    f"fixed when the job started ({error})"
                ) from None
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def to_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Python values as a column, or an Arrow error. Unlike Arrow's own conversion, 1.5 is no whole number.

    >>> to_array([1, 2.0], pa.int64()).to_pylist()
    [1, 2]
    """
    listed = pa.types.is_list(kind)
    if pa.types.is_integer(kind.value_type if listed else kind):
        try:
            found = pa.array(values)
        except OverflowError:  # uint64
            return pa.array(values, kind)
        inner = found.type.value_type if listed and pa.types.is_list(found.type) else found.type
        if pa.types.is_floating(inner):
            return found.cast(kind)
        if found.type == kind:
            return found
    return pa.array(values, kind)


def to_batch(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Records as a batch; columns that a record lacks are null, columns that the schema lacks are left out."""
    columns = [to_array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """A batch of these columns without rows."""
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
