"""Schemas that users declare, and schemas inferred once from a source's first records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import SchemaError
from headrace.schemas import SchemaLike, to_schema

INFER_ROWS = 1000
# A few wrong values among the first records must not change a column's type: they are bad records.
_CLEAR_SHARE = 0.95


def as_schema(declared: SchemaLike | None) -> pa.Schema | None:
    """The schema a user declared: a ``pa.Schema``, or a mapping of column to type or type name.

    >>> as_schema({"ts": "int64", "likes": pa.float64()}).names
    ['ts', 'likes']
    """
    if declared is None:
        return None
    schema = to_schema(declared)
    if not schema.names:
        raise SchemaError("a schema names at least one column, such as {'ts': 'int64'}")
    return schema


def schema_of_records(rows: Sequence[Mapping[str, Any]], where: str) -> pa.Schema:
    """The schema of Python records: integers with floats become float64, a column of nulls string.

    >>> schema_of_records([{"a": 1, "b": None}, {"a": 2.5}], "x.jsonl").types
    [DataType(double), DataType(string)]
    """
    if not rows:
        raise SchemaError(
            f"{where} has no records to infer a schema from; declare it: schema={{'ts': 'int64', 'key': 'string', …}}"
        )
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.schema([(name, _infer_column(name, [row.get(name) for row in rows], where)) for name in names])


def _infer_column(name: str, values: Sequence[Any], where: str) -> pa.DataType:
    kinds = Counter(_kind(value) for value in values if value is not None)
    if "float" in kinds:
        kinds["float"] += kinds.pop("int", 0)
    if not kinds:
        return pa.string()
    kind, count = kinds.most_common(1)[0]
    if "string" in kinds and count < _CLEAR_SHARE * kinds.total():
        kind = "string"
    scalars = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "string": pa.string()}
    if kind in scalars:
        return scalars[kind]
    try:
        return _without_nulls(pa.infer_type([value for value in values if _kind(value) == kind]))
    except pa.ArrowException as error:
        raise SchemaError(f"{where}: cannot infer the type of column {name!r} ({error}); declare schema=") from None


def _kind(value: Any) -> str:
    for kind, types in (("bool", bool), ("int", int), ("float", float), ("string", str), ("list", list)):
        if isinstance(value, types):
            return kind
    return "struct"


def _without_nulls(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_without_nulls(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _without_nulls(field.type)) for field in kind])
    return kind


def guess_value(text: str) -> Any:
    """What a CSV field without a declared type looks like; an empty one is null.

    >>> [guess_value(t) for t in ("7", "2.5", "true", "", "abc")]
    [7, 2.5, True, None, 'abc']
    """
    if text == "":
        return None
    if text in ("true", "false", "True", "False", "TRUE", "FALSE"):
        return text.lower() == "true"
    number: int | float
    try:
        number = int(text)
    except ValueError:
        try:
            number = float(text)
        except ValueError:
            return text
    if "_" in text or text.startswith("+") or (isinstance(number, int) and not -(2**63) <= number < 2**63):
        return text
    if isinstance(number, float) and not math.isfinite(number) and text.lower().strip("-") not in ("nan", "inf"):
        return text
    return number
