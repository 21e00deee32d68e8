"""Keys of a batch as codes and back, without a Python loop over rows."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError

Rows = npt.NDArray[np.int64]
Key = Hashable
_NAN = float("nan")
_MAX_CODES = 2**62
"""Combined codes of several key columns stay below this, within 64 bits."""


def key_codes(columns: list[pa.Array]) -> tuple[Rows, list[Key]]:
    """A code per row and the key behind each code; a key of several columns is a tuple."""
    codes, values = _codes(columns[0])
    if len(columns) == 1:
        return codes, values
    parts, size = [[values]], len(values)
    for column in columns[1:]:
        more, distinct = _codes(column)
        if size * len(distinct) > _MAX_CODES:
            present, codes = _compact(codes, size)
            parts, size = [_decoded(present, parts)], len(present)
        codes, size = codes * len(distinct) + more, size * len(distinct)
        parts.append([distinct])
    present, of_row = _compact(codes, size)
    return of_row, list(zip(*_decoded(present, parts)))


def _decoded(codes: Rows, parts: list[list[list[Any]]]) -> list[list[Any]]:
    """The columns behind combined codes; a part is one or more columns that share a code."""
    columns: list[list[Any]] = []
    for part in reversed(parts):
        at = (codes % len(part[0])).tolist()
        columns[:0] = [[column[i] for i in at] for column in part]
        codes = codes // len(part[0])
    return columns


def key_arrays(keys: list[Key], fields: list[pa.Field]) -> list[pa.Array]:
    """Keys back as columns."""
    if len(fields) == 1:
        return [pa.array(keys, fields[0].type)]
    columns = list(zip(*keys)) if keys else [()] * len(fields)
    return [pa.array(column, field.type) for column, field in zip(columns, fields)]


def check_key_type(name: str, kind: pa.DataType, step: str) -> None:
    """Keys are scalars: lists and structs have no stable identity."""
    if pa.types.is_nested(kind):
        raise SchemaError(f"step {step!r}: key column {name!r} is {kind}; key by numbers, text, booleans or times")


def _codes(column: pa.Array) -> tuple[Rows, list[Any]]:
    if pa.types.is_dictionary(column.type) and pc.count_distinct(column.dictionary).as_py() < len(column.dictionary):
        column = column.cast(column.type.value_type)
    if pa.types.is_floating(column.type):
        zero, nan = pa.scalar(0.0, column.type), pa.scalar(_NAN, column.type)
        column = pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))  # one NaN, and -0.0 becomes 0.0
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    if pa.types.is_floating(encoded.dictionary.type):
        values = [_NAN if value != value else value for value in values]  # one NaN object, so that dicts find it
    indices = encoded.indices
    if indices.null_count:
        indices = indices.fill_null(len(values))
        values = [*values, None]
    return indices.to_numpy(zero_copy_only=False).astype(np.int64), values


def _compact(codes: Rows, size: int) -> tuple[Rows, Rows]:
    """Distinct codes ascending, and each row's index among them."""
    if size <= 4 * len(codes) + 1024:
        present = np.flatnonzero(np.bincount(codes, minlength=size))
        index = np.empty(size, np.int64)
        index[present] = np.arange(len(present))
        return present, index[codes]
    distinct, of_row = np.unique(codes, return_inverse=True)
    return distinct, of_row
