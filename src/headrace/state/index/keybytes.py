"""Keys of several columns as one byte string per row, and back (compiled).

A fixed-width column takes nine bytes, one that says whether there is a value and the word; a column
of text or bytes takes four bytes of length (-1 for null) and the bytes. Both can be read back from
the left, so two rows have the same string only if they have the same key.
"""

from __future__ import annotations

import numpy as np

from headrace.state.compiled import I64, U8, U64, compiled

WORD_BYTES, LENGTH_BYTES = 9, 4
_BYTE, _8 = np.uint64(0xFF), np.uint64(8)


@compiled
def put_words(out: U8, cursor: I64, words: U64, sizes: I64) -> None:
    """Append a fixed-width column at each row's cursor; ``sizes`` is empty or negative where null."""
    for i in range(len(words)):
        at = cursor[i]
        null = len(sizes) > 0 and sizes[i] < 0
        rest = np.uint64(0) if null else words[i]
        out[at] = 0 if null else 1
        for k in range(1, 9):
            out[at + k] = np.uint8(rest & _BYTE)
            rest >>= _8
        cursor[i] = at + WORD_BYTES


@compiled
def put_spans(out: U8, cursor: I64, starts: U64, sizes: I64, data: U8) -> None:
    """Append a column of byte strings at each row's cursor; a negative size is a null."""
    for i in range(len(starts)):
        at, size, start = cursor[i], sizes[i], np.int64(starts[i])
        for k in range(LENGTH_BYTES):
            out[at + k] = np.uint8((size >> (8 * k)) & 0xFF)
        at += LENGTH_BYTES
        for k in range(max(size, 0)):
            out[at + k] = data[start + k]
        cursor[i] = at + max(size, 0)


@compiled
def take_words(data: U8, cursor: I64, words: U64, sizes: I64) -> None:
    """Read what ``put_words`` wrote; moves the cursors on."""
    for i in range(len(cursor)):
        at = cursor[i]
        sizes[i] = 0 if data[at] else -1
        word = np.uint64(0)
        for k in range(8, 0, -1):
            word = (word << _8) | np.uint64(data[at + k])
        words[i] = word
        cursor[i] = at + WORD_BYTES


@compiled
def take_spans(data: U8, cursor: I64, starts: U64, sizes: I64) -> None:
    """Read what ``put_spans`` wrote; moves the cursors on."""
    for i in range(len(cursor)):
        at = cursor[i]
        size = np.int64(0)
        for k in range(LENGTH_BYTES):
            size |= np.int64(data[at + k]) << (8 * k)
        starts[i] = np.uint64(at + LENGTH_BYTES)
        sizes[i] = np.int32(size)
        cursor[i] = at + LENGTH_BYTES + max(sizes[i], 0)


@compiled
def gather(data: U8, starts: U64, sizes: I64, out: U8, places: I64) -> None:
    """Copy string ``i`` to ``out[places[i]:]``."""
    for i in range(len(starts)):
        start, place = np.int64(starts[i]), places[i]
        for k in range(max(sizes[i], 0)):
            out[place + k] = data[start + k]
