"""Record batches as JSON: UTC times in ISO-8601, bytes in base64, NaN and infinity as null."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_ISO = "%Y-%m-%dT%H:%M:%SZ"


def json_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as plain JSON data.

    >>> json_rows(pa.record_batch({"t": pa.array([0], pa.timestamp("s")), "x": [float("nan")]}))
    [{'t': '1970-01-01T00:00:00Z', 'x': None}]
    """
    names = batch.schema.names
    columns = [_json_values(column) for column in batch.columns]
    return [dict(zip(names, values)) for values in zip(*columns)]


def json_lines(batch: pa.RecordBatch) -> bytes:
    """Rows as JSON lines in UTF-8, each ended by a newline.

    >>> json_lines(pa.record_batch({"tag": ["käse"], "n": [3]})).decode()
    '{"tag":"käse","n":3}\\n'
    """
    # Each column is encoded as a whole: several times faster than an encoder called for each row.
    names = (encode_basestring(name).replace("%", "%%") for name in batch.schema.names)
    template = "{" + ",".join(f"{name}:%s" for name in names) + "}\n"
    return "".join([template % fields for fields in zip(*map(_json_texts, batch.columns))]).encode()


def _json_texts(column: pa.Array) -> list[str]:
    kind = column.type
    encode: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        encode = repr
    elif pa.types.is_string(kind) or pa.types.is_timestamp(kind):
        encode = encode_basestring
    return ["null" if value is None else encode(value) for value in _json_values(column)]


def _json_values(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind):
        plain = column.cast(pa.timestamp(kind.unit, "UTC")).cast(pa.timestamp(kind.unit)) if kind.tz else column
        column = pc.strftime(plain, _ISO)
    elif pa.types.is_floating(kind):
        column = column.cast(pa.float32()) if pa.types.is_float16(kind) else column
        # Clear of NaN as a whole, the common case, a column needs no second look.
        if not pc.all(pc.is_finite(column), min_count=0).as_py():
            column = pc.if_else(pc.is_finite(column), column, pa.scalar(None, column.type))
    elif not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind)):
        return [_json_value(value) for value in column.to_pylist()]
    values: list[Any] = column.to_pylist()
    return values


def _json_value(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime.datetime):
        utc = value if value.tzinfo is None else value.astimezone(datetime.UTC).replace(tzinfo=None)
        return utc.isoformat() + "Z"
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return str(value) if isinstance(value, decimal.Decimal) else value
