"""Recorded times as microseconds since 1970, whatever the column holds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connect.pace import Ints
from headrace.errors import SchemaError


def column_us(column: pa.Array, default_us: int = 0) -> Ints:
    """Timestamps and dates, ISO-8601 strings, whole microseconds, or floating seconds.

    Nulls and text that is no time take ``default_us``.

    >>> column_us(pa.array(["1970-01-01T00:00:01Z", None])).tolist()
    [1000000, 0]
    """
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        micros = column.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False).cast(pa.int64())
    elif pa.types.is_integer(kind):
        micros = column.cast(pa.int64(), safe=False)
    elif pa.types.is_floating(kind):
        finite = pc.if_else(pc.is_finite(column), column, None)
        micros = pc.multiply(finite, 1e6).cast(pa.int64(), safe=False)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        micros = _texts_us(column)
    else:
        raise SchemaError(f"a column of {kind} holds no time; use a timestamp, ISO-8601 text, microseconds or seconds")
    return np.asarray(pc.fill_null(micros, default_us), dtype=np.int64)


def _texts_us(column: pa.Array) -> pa.Array:
    try:
        return column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    except pa.ArrowInvalid:
        return pa.array([_text_us(text) for text in column.to_pylist()], pa.int64())


def _text_us(text: str | None) -> int | None:
    for zone in ("UTC", None):
        try:
            return int(pa.scalar(text).cast(pa.timestamp("us", zone)).cast(pa.int64()).as_py())
        except (pa.ArrowInvalid, TypeError):
            continue
    return None
