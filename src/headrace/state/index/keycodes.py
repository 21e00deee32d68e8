"""Keys as comparable codes and back: one word per row, or one byte string per row.

Two keys have the same code exactly if ``state.grouping`` calls them equal: one NaN, -0.0 is 0.0, null
is a key of its own, a dictionary's text is text. Nothing loops over rows in Python.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.errors import SchemaError
from headrace.state.index.columncodes import Keys, column_code
from headrace.state.index.keybytes import LENGTH_BYTES, WORD_BYTES, put_spans, put_words, take_spans, take_words


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
