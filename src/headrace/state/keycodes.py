"""Key columns as comparable codes and back: one word per row, or one byte string per row.

Two keys have the same code exactly if ``state.grouping`` calls them equal: one NaN, -0.0 is 0.0, null
is a key of its own, a dictionary's text is text. Nothing loops over rows in Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError
from headrace.state.compiled import I64, U8, U64
from headrace.state.keybytes import LENGTH_BYTES, WORD_BYTES, gather, put_spans, put_words, take_spans, take_words

_LONGEST_VALUE_BYTES = 2**31 - 1
_NO_SIZES = np.zeros(0, np.int64)
_NO_BYTES = np.zeros(0, np.uint8)
_NAN_WORD = np.float64("nan").view(np.uint64)


@dataclass(frozen=True, slots=True)
class Keys:
    """Codes of a batch. ``words[i]`` is the key itself, or where in ``data`` its bytes start.

    ``sizes[i]`` is its length in bytes (0 for a word), -1 for null; empty if the keys are words without
    nulls. All arrays are read-only, because kernels are compiled for one or the other.
    """

    words: U64
    sizes: I64
    data: U8

    def __post_init__(self) -> None:
        for array in (self.words, self.sizes, self.data):
            array.flags.writeable = False


class KeyCodes:
    """Encodes and decodes keys of these columns; ``in_bytes`` says which of the two codes they need.

    Raises SchemaError for types without a stable identity (lists, structs, extension types).
    """

    def __init__(self, fields: list[pa.Field]) -> None:
        self.fields = fields
        self._kinds = [_plain(field) for field in fields]
        self.in_bytes = len(fields) != 1 or not _is_word(self._kinds[0])

    def encode(self, columns: list[pa.Array]) -> Keys:
        """Codes of each row; columns of another type than their field's are cast to it."""
        parts = [_codes(column, kind) for column, kind in zip(columns, self._kinds, strict=True)]
        if len(parts) == 1:
            return parts[0]
        if len({len(part.words) for part in parts}) > 1:
            raise SchemaError(f"key columns of different lengths: {[len(column) for column in columns]}")
        lengths = np.zeros(len(parts[0].words), np.int64)
        for part, kind in zip(parts, self._kinds):
            lengths += WORD_BYTES if _is_word(kind) else LENGTH_BYTES + np.maximum(part.sizes, 0)
        starts = np.cumsum(lengths) - lengths
        data, cursor = np.empty(int(lengths.sum()), np.uint8), starts.copy()
        for part, kind in zip(parts, self._kinds):
            if _is_word(kind):
                put_words(data, cursor, part.words, part.sizes)
            else:
                put_spans(data, cursor, part.words, part.sizes, part.data)
        return Keys(starts.view(np.uint64), lengths, data)

    def decode(self, keys: Keys) -> list[pa.Array]:
        """The key columns behind codes, with the types of the fields."""
        if len(self.fields) == 1:
            return [_column(keys, self._kinds[0], self.fields[0].type)]
        cursor, columns = keys.words.astype(np.int64), []
        for field, kind in zip(self.fields, self._kinds):
            words, sizes = np.empty(len(cursor), np.uint64), np.empty(len(cursor), np.int64)
            (take_words if _is_word(kind) else take_spans)(keys.data, cursor, words, sizes)
            columns.append(_column(Keys(words, sizes, keys.data), kind, field.type))
        return columns


def _plain(field: pa.Field) -> pa.DataType:
    """The type that a field's values have once dictionaries and views are resolved."""
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if pa.types.is_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    fixed = pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind)
    if fixed or pa.types.is_null(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return kind
    raise SchemaError(f"key column {field.name!r} is {field.type}; key by numbers, text, booleans or times")


def _is_word(kind: pa.DataType) -> bool:
    if pa.types.is_null(kind):
        return True
    return bool(pa.types.is_primitive(kind) and not pa.types.is_decimal(kind) and kind.bit_width <= 64)


def _codes(column: pa.Array, kind: pa.DataType) -> Keys:
    if column.type != kind:
        column = column.cast(kind)
    nulls = pc.is_null(column).to_numpy(zero_copy_only=False) if column.null_count else None
    if _is_word(kind):
        words = _words(column, kind)
        if nulls is None:
            return Keys(words, _NO_SIZES, _NO_BYTES)
        return Keys(np.where(nulls, np.uint64(0), words), -nulls.astype(np.int64), _NO_BYTES)
    starts, sizes, data = _spans(column, kind)
    if nulls is not None:
        sizes = np.where(nulls, -1, sizes)
    if len(sizes) and sizes.max() > _LONGEST_VALUE_BYTES:
        raise SchemaError(f"a key of {sizes.max()} bytes; keys are shorter than 2 GiB")
    return Keys(starts.view(np.uint64), sizes, data)


def _words(column: pa.Array, kind: pa.DataType) -> U64:
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.uint64)
    if pa.types.is_boolean(kind):
        column, kind = column.cast(pa.uint8()), pa.uint8()
    values = _values(column.buffers()[1], _dtype(kind), column.offset, len(column))
    if pa.types.is_floating(kind):
        numbers = values.astype(np.float64) + 0.0  # -0.0 becomes 0.0
        words: U64 = numbers.view(np.uint64)
        words[numbers != numbers] = _NAN_WORD
        return words
    if values.dtype.kind == "u":
        return values.astype(np.uint64, copy=False)
    return values.astype(np.int64, copy=False).view(np.uint64)


def _spans(column: pa.Array, kind: pa.DataType) -> tuple[I64, I64, U8]:
    buffers = column.buffers()
    data = np.frombuffer(buffers[-1], np.uint8) if buffers[-1] is not None else _NO_BYTES
    if not _is_variable(kind):
        width = kind.bit_width // 8
        starts = np.arange(column.offset, column.offset + len(column), dtype=np.int64) * width
        return starts, np.full(len(column), width, np.int64), data
    large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    offsets = _values(buffers[1], np.dtype(np.int64 if large else np.int32), column.offset, len(column) + 1)
    offsets = offsets.astype(np.int64, copy=False)
    return offsets[:-1], np.diff(offsets), data


def _is_variable(kind: pa.DataType) -> bool:
    return not (pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind) or pa.types.is_primitive(kind))


def _dtype(kind: pa.DataType) -> np.dtype[Any]:
    """The fixed-width numbers that an Arrow type is stored as."""
    letter = "f" if pa.types.is_floating(kind) else "u" if pa.types.is_unsigned_integer(kind) else "i"
    return np.dtype(f"{letter}{kind.bit_width // 8}")


def _values(buffer: pa.Buffer | None, dtype: np.dtype[Any], offset: int, count: int) -> npt.NDArray[Any]:
    if buffer is None or not buffer.size:  # Arrow leaves out the buffers of empty arrays
        return np.zeros(count, dtype)
    return np.frombuffer(buffer, dtype, count, offset * dtype.itemsize)


def _column(keys: Keys, kind: pa.DataType, wanted: pa.DataType) -> pa.Array:
    """One column from its codes."""
    count = len(keys.words)
    nulls = keys.sizes < 0
    bits = pa.py_buffer(np.packbits(~nulls, bitorder="little")) if nulls.any() else None
    if pa.types.is_null(kind):
        column = pa.nulls(count)
    elif _is_word(kind):
        column = _word_column(keys.words, kind, bits)
    elif _is_variable(kind):
        places = np.concatenate(([0], np.cumsum(np.maximum(keys.sizes, 0))))
        large = pa.large_string() if pa.types.is_string(kind) or pa.types.is_large_string(kind) else pa.large_binary()
        buffers = [bits, pa.py_buffer(places), _gathered(keys, places, int(places[-1]))]
        column = pa.Array.from_buffers(large, count, buffers)
    else:
        width = kind.bit_width // 8
        gathered = _gathered(keys, np.arange(count) * width, count * width)
        column = pa.Array.from_buffers(kind, count, [bits, gathered])
    if column.type != wanted and pa.types.is_dictionary(wanted):
        column = column.cast(wanted.value_type).dictionary_encode()
    return column if column.type == wanted else column.cast(wanted)


def _word_column(words: U64, kind: pa.DataType, bits: pa.Buffer | None) -> pa.Array:
    stored = pa.uint8() if pa.types.is_boolean(kind) else kind
    numbers = words.view(np.float64) if pa.types.is_floating(kind) else words.view(np.int64)
    data = pa.py_buffer(numbers.astype(_dtype(stored)))
    column = pa.Array.from_buffers(stored, len(words), [bits, data])
    return column.cast(pa.bool_()) if pa.types.is_boolean(kind) else column


def _gathered(keys: Keys, places: I64, size: int) -> pa.Buffer:
    out = np.zeros(size, np.uint8)
    gather(keys.data, keys.words, keys.sizes, out, places)
    return pa.py_buffer(out)
