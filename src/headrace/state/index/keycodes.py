"""Keys as comparable codes and back: one word per row, or one byte string per row.

Two keys have the same code exactly if ``state.grouping`` calls them equal: one NaN, -0.0 is 0.0, null
is a key of its own, a dictionary's text is text. Nothing loops over rows in Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import SchemaError
from headrace.state.compiled import I64, U8, U64
from headrace.state.index.keybytes import LENGTH_BYTES, WORD_BYTES, gather, put_spans, put_words, take_spans, take_words

_NO_SIZES = np.zeros(0, np.int64)
_NO_BYTES = np.zeros(0, np.uint8)
_LONGEST_BYTES = 2**31 - 1
_NAN_WORD = np.float64("nan").view(np.uint64)


@dataclass(frozen=True, slots=True)
class Keys:
    """Codes of a batch. ``words[i]`` is the key itself, or where in ``data`` its bytes start.

    ``sizes[i]`` is its length in bytes (0 for a word), -1 for null, whose word means nothing; empty if the keys
    are words without nulls. All arrays are read-only, because kernels are compiled for one or the other.
    """

    words: U64
    sizes: I64
    data: U8

    def __post_init__(self) -> None:
        for array in (self.words, self.sizes, self.data):
            array.flags.writeable = False


@dataclass(frozen=True, slots=True)
class ColumnCode:
    """How the values of one column are stored, found out once per index.

    ``plain`` is the type once dictionaries and views are resolved. Words are made of numbers of type ``number``;
    byte strings have a fixed ``width_bytes``, or None and offsets of type ``number``.
    """

    wanted: pa.DataType
    plain: pa.DataType
    is_word: bool
    number: np.dtype[Any]
    width_bytes: int | None

    def encode(self, column: pa.Array) -> Keys:
        """Codes of each row; a column of another type is cast first."""
        if column.type != self.plain:
            column = column.cast(self.plain)
        valid = _validity(column) if column.null_count else None
        if self.is_word:
            return Keys(self._words(column), _NO_SIZES if valid is None else valid.astype(np.int64) - 1, _NO_BYTES)
        starts, sizes, data = self._spans(column)
        return Keys(starts.view(np.uint64), sizes if valid is None else np.where(valid, sizes, -1), data)

    def decode(self, keys: Keys) -> pa.Array:
        """The column behind codes, with the type that is wanted."""
        nulls, count = keys.sizes < 0, len(keys.words)
        valid = pa.py_buffer(np.packbits(~nulls, bitorder="little")) if nulls.any() else None
        if self.is_word:
            column = self._from_words(keys.words, valid)
        elif self.width_bytes is not None:
            places = np.arange(count) * self.width_bytes
            column = pa.Array.from_buffers(
                self.plain, count, [valid, _gathered(keys, places, count * self.width_bytes)]
            )
        else:
            places = np.concatenate(([0], np.cumsum(np.maximum(keys.sizes, 0))))
            text = pa.types.is_string(self.plain) or pa.types.is_large_string(self.plain)
            buffers = [valid, pa.py_buffer(places), _gathered(keys, places, int(places[-1]))]
            column = pa.Array.from_buffers(pa.large_string() if text else pa.large_binary(), count, buffers)
        if pa.types.is_dictionary(self.wanted):
            column = column.cast(self.wanted.value_type).dictionary_encode()
        return column if column.type == self.wanted else column.cast(self.wanted)

    def _words(self, column: pa.Array) -> U64:
        if pa.types.is_boolean(self.plain):
            column = column.cast(pa.uint8())
        elif pa.types.is_null(self.plain):
            return np.zeros(len(column), np.uint64)
        values = _values(column.buffers()[1], self.number, column.offset, len(column))
        if self.number.kind == "f":
            with np.errstate(invalid="ignore"):  # signalling NaNs, and whatever is behind nulls
                numbers = values.astype(np.float64) + 0.0  # -0.0 becomes 0.0
                words: U64 = numbers.view(np.uint64)
                words[numbers != numbers] = _NAN_WORD
            return words
        if self.number.kind == "u":
            return values.astype(np.uint64, copy=False)
        return values.astype(np.int64, copy=False).view(np.uint64)

    def _from_words(self, words: U64, valid: pa.Buffer | None) -> pa.Array:
        if pa.types.is_null(self.plain):
            return pa.nulls(len(words))
        numbers = words.view(np.float64) if self.number.kind == "f" else words.view(np.int64)
        stored = pa.uint8() if pa.types.is_boolean(self.plain) else self.plain
        column = pa.Array.from_buffers(stored, len(words), [valid, pa.py_buffer(numbers.astype(self.number))])
        return column.cast(self.plain)

    def _spans(self, column: pa.Array) -> tuple[I64, I64, U8]:
        buffers, count = column.buffers(), len(column)
        data = np.frombuffer(buffers[-1], np.uint8) if buffers[-1] is not None else _NO_BYTES
        if self.width_bytes is not None:
            starts = np.arange(column.offset, column.offset + count, dtype=np.int64) * self.width_bytes
            return starts, np.full(count, self.width_bytes, np.int64), data
        offsets = _values(buffers[1], self.number, column.offset, count + 1).astype(np.int64, copy=False)
        sizes = offsets[1:] - offsets[:-1]
        if self.number.itemsize == 8 and sizes.max(initial=0) > _LONGEST_BYTES:
            raise SchemaError(f"a key of {sizes.max()} bytes; keys are shorter than 2 GiB")
        return offsets[:-1], sizes, data


def column_code(field: pa.Field) -> ColumnCode:
    """Raises SchemaError for types without a stable identity (lists, structs, extension types)."""
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if pa.types.is_string(kind) or pa.types.is_string_view(kind):
        return ColumnCode(field.type, pa.string(), False, np.dtype(np.int32), None)
    if pa.types.is_binary(kind) or pa.types.is_binary_view(kind):
        return ColumnCode(field.type, pa.binary(), False, np.dtype(np.int32), None)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return ColumnCode(field.type, kind, False, np.dtype(np.int64), None)
    if pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return ColumnCode(field.type, kind, True, np.dtype(np.uint8), None)
    if pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        return ColumnCode(field.type, kind, False, np.dtype(np.uint8), kind.bit_width // 8)
    if pa.types.is_primitive(kind) and kind.bit_width <= 64:
        letter = "f" if pa.types.is_floating(kind) else "u" if pa.types.is_unsigned_integer(kind) else "i"
        return ColumnCode(field.type, kind, True, np.dtype(f"{letter}{kind.bit_width // 8}"), None)
    raise SchemaError(f"key column {field.name!r} is {field.type}; key by numbers, text, booleans or times")


def _validity(column: pa.Array) -> U8:
    """1 for each value, 0 for each null."""
    bits = column.buffers()[0]
    if bits is None:  # a column of type null
        return np.zeros(len(column), np.uint8)
    byte, bit = divmod(column.offset, 8)
    flags = np.unpackbits(np.frombuffer(bits, np.uint8, offset=byte), count=bit + len(column), bitorder="little")
    return flags[bit:]


def _values(buffer: pa.Buffer | None, dtype: np.dtype[Any], offset: int, count: int) -> npt.NDArray[Any]:
    if buffer is None or not buffer.size:  # Arrow leaves out the buffers of empty arrays
        return np.zeros(count, dtype)
    return np.frombuffer(buffer, dtype, count, offset * dtype.itemsize)


def _gathered(keys: Keys, places: I64, size_bytes: int) -> pa.Buffer:
    out = np.zeros(size_bytes, np.uint8)
    gather(keys.data, keys.words, keys.sizes, out, places)
    return pa.py_buffer(out)


class KeyCodes:
    """Encodes and decodes keys of these columns; ``in_bytes`` says which of the two codes they need.

    A single fixed-width column is a word. Text is its own bytes, several columns are packed into one string.
    """

    def __init__(self, fields: list[pa.Field]) -> None:
        self.fields = fields
        self._columns = [column_code(field) for field in fields]
        self.in_bytes = len(fields) != 1 or not self._columns[0].is_word
        self._fixed_bytes = sum(WORD_BYTES if code.is_word else LENGTH_BYTES for code in self._columns)

    def encode(self, columns: list[pa.Array]) -> Keys:
        """Codes of each row; columns of another type than their field's are cast to it."""
        parts = [code.encode(column) for code, column in zip(self._columns, columns, strict=True)]
        if len(parts) == 1:
            return parts[0]
        if len({len(part.words) for part in parts}) > 1:
            raise SchemaError(f"key columns of different lengths: {[len(column) for column in columns]}")
        lengths = np.full(len(parts[0].words), self._fixed_bytes)
        for part, code in zip(parts, self._columns):
            if not code.is_word:
                lengths += np.maximum(part.sizes, 0)
        starts = np.cumsum(lengths) - lengths
        data, cursor = np.empty(int(lengths.sum()), np.uint8), starts.copy()
        for part, code in zip(parts, self._columns):
            if code.is_word:
                put_words(data, cursor, part.words, part.sizes)
            else:
                put_spans(data, cursor, part.words, part.sizes, part.data)
        return Keys(starts.view(np.uint64), lengths, data)

    def decode(self, keys: Keys) -> list[pa.Array]:
        """The key columns behind codes, with the types of the fields."""
        if len(self.fields) == 1:
            return [self._columns[0].decode(keys)]
        cursor, columns = keys.words.astype(np.int64), []
        for code in self._columns:
            words, sizes = np.empty(len(cursor), np.uint64), np.empty(len(cursor), np.int64)
            (take_words if code.is_word else take_spans)(keys.data, cursor, words, sizes)
            columns.append(code.decode(Keys(words, sizes, keys.data)))
        return columns
