"""Rows as words, for disk buckets: written in order of their buckets and read back without a step per block.

SCALLA 2.3 keeps records in byte arrays and places them by partition in one scan, after counting. A row begins with
its *head*, its length in words and a bit per null; then its columns follow: a fixed-width value is a word, text is
a word of length and as many words as its bytes need. Column by column would be shorter where blocks are long; but
with little memory a bucket gets a few rows at a time, and rows of many blocks read like rows of one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.errors import SchemaError
from headrace.state.compiled import I64, U64
from headrace.state.index.keycodes import ColumnCode, Keys, column_code
from headrace.state.spill.blocks import HEADER_WORDS, seal
from headrace.state.spill.rowkernels import (
    count_rows,
    find_rows,
    place_rows,
    put_spans,
    put_words,
    take_spans,
    take_words,
)

_MAX_COLUMNS = 32
"""Bits for nulls in a row's head."""
_NO_BIT = np.uint64(0)
_SAME_BITS = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


@dataclass(frozen=True, slots=True)
class Blocks:
    """One block per group, sealed: ``words[starts[i]:starts[i + 1]]``, nothing for a group without rows."""

    words: U64
    starts: I64


class RowWords:
    """Rows of ``schema`` as words; SchemaError if it has nested columns, or too many."""

    def __init__(self, schema: pa.Schema) -> None:
        if len(schema) > _MAX_COLUMNS:
            raise SchemaError(f"{len(schema)} columns; at most {_MAX_COLUMNS} can be packed into words")
        self._schema = schema
        self._codes = [_code(field) for field in schema]

    def pack(self, rows: pa.RecordBatch, groups: I64, count: int) -> Blocks:
        """A block for each of ``count`` groups; ``groups[i]`` is that of row ``i``, and rows keep their order."""
        parts = [code.encode(_as_bits(column)) for code, column in zip(self._codes, rows.columns)]
        lengths = np.full(rows.num_rows, 1 + len(parts))
        for part, code in zip(parts, self._codes):
            if not code.is_word:
                lengths += (np.maximum(part.sizes, 0) + 7) >> 3
        starts, heads = np.empty(count + 1, np.int64), np.empty(rows.num_rows, np.int64)
        place_rows(groups, lengths, starts, heads)
        words = np.empty(int(starts[-1]), np.uint64)
        cursor = heads.copy()
        put_words(words, heads, cursor, *_as_column(lengths), _NO_BIT)
        for i, (part, code) in enumerate(zip(parts, self._codes)):
            if code.is_word:
                put_words(words, heads, cursor, part.words, part.sizes, _null_bit(i))
            else:
                put_spans(words, words.view(np.uint8), cursor, part.words, part.sizes, part.data)
        seal(words, starts)
        return Blocks(words, starts)

    def unpack(self, words: U64) -> pa.RecordBatch:
        """The rows of whole blocks."""
        heads = np.empty(count_rows(words), np.int64)
        find_rows(words, heads)
        cursor, columns = heads + 1, []
        for i, (field, code) in enumerate(zip(self._schema, self._codes)):
            found, sizes = np.empty(len(heads), np.uint64), np.empty(len(heads), np.int64)
            if code.is_word:
                take_words(words, heads, cursor, _null_bit(i), found, sizes)
            else:
                take_spans(words, cursor, found, sizes)
            column = code.decode(Keys(found, sizes, words.view(np.uint8)))
            columns.append(column.view(field.type) if pa.types.is_floating(field.type) else column)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


class RowMessages:
    """Rows of any schema, as an Arrow message per block: what ``RowWords`` cannot hold (lists, structs)."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def pack(self, rows: pa.RecordBatch, groups: I64, count: int) -> Blocks:
        """As ``RowWords.pack``."""
        ordered = rows.take(pa.array(np.argsort(groups, kind="stable")))
        ends = np.cumsum(np.bincount(groups, minlength=count)).tolist()
        parts, starts = [], np.zeros(count + 1, np.int64)
        for group, (begin, end) in enumerate(zip([0, *ends], ends)):
            if end > begin:
                message = bytes(ordered.slice(begin, end - begin).serialize())
                parts.append(np.frombuffer(bytes(8 * HEADER_WORDS) + message + bytes(-len(message) % 8), np.uint64))
            starts[group + 1] = starts[group] + (len(parts[-1]) if end > begin else 0)
        words = np.concatenate(parts)
        seal(words, starts)
        return Blocks(words, starts)

    def unpack(self, words: U64) -> pa.RecordBatch:
        """As ``RowWords.unpack``."""
        batches, at = [], 0
        while at < len(words):
            end = at + int(words[at])
            message = pa.py_buffer(words[at + HEADER_WORDS : end])
            batches.append(pa.ipc.read_record_batch(message, self._schema))
            at = end
        return pa.concat_batches(batches)


def row_format(schema: pa.Schema) -> RowWords | RowMessages:
    """Words if they can hold rows of this schema."""
    try:
        return RowWords(schema)
    except SchemaError:
        return RowMessages(schema)


def _code(field: pa.Field) -> ColumnCode:
    """Floats are kept bit by bit, where codes of keys know one zero and one NaN only."""
    if pa.types.is_floating(field.type):
        return column_code(field.with_type(_SAME_BITS[field.type.bit_width]))
    if pa.types.is_dictionary(field.type):
        raise SchemaError(f"column {field.name!r} is {field.type}: a dictionary's order would be lost")
    return column_code(field)


def _as_bits(column: pa.Array) -> pa.Array:
    return column.view(_SAME_BITS[column.type.bit_width]) if pa.types.is_floating(column.type) else column


def _as_column(lengths: I64) -> tuple[U64, I64]:
    """Heads, as what ``put_words`` is compiled for: the read-only words of a column without nulls."""
    keys = Keys(lengths.view(np.uint64), np.zeros(0, np.int64), np.zeros(0, np.uint8))
    return keys.words, keys.sizes


def _null_bit(column: int) -> np.uint64:
    return np.uint64(1 << (32 + column))
