"""Columns into rows of words and back (compiled); ``state.spill.rowwords`` describes the row layout.

Like the kernels of ``state.index.keybytes`` these move a cursor per row from column to column.
"""

from __future__ import annotations

import numpy as np

from headrace.state.compiled import I64, U8, U64, compiled
from headrace.state.spill.blocks import HEADER_WORDS

LENGTH_MASK = np.uint64(0xFFFFFFFF)


@compiled
def place_rows(groups: I64, lengths: I64, starts: I64, places: I64) -> None:
    """Where rows go if each group is a block, rows in their order: a counting sort without moving anything.

    ``starts`` has one place more than there are groups.
    """
    starts[:] = 0
    for i in range(len(groups)):
        starts[groups[i] + 1] += lengths[i]
    for group in range(len(starts) - 1):
        if starts[group + 1] > 0:
            starts[group + 1] += HEADER_WORDS
        starts[group + 1] += starts[group]
    cursor = starts[:-1] + HEADER_WORDS
    for i in range(len(groups)):
        places[i] = cursor[groups[i]]
        cursor[groups[i]] += lengths[i]


@compiled
def put_words(out: U64, heads: I64, cursor: I64, words: U64, sizes: I64, null: np.uint64) -> None:
    """A fixed-width column; ``null`` is its bit in a row's head."""
    for i in range(len(words)):
        if len(sizes) > 0 and sizes[i] < 0:
            out[cursor[i]] = np.uint64(0)
            out[heads[i]] |= null
        else:
            out[cursor[i]] = words[i]
        cursor[i] += 1


@compiled
def put_spans(out: U64, out_bytes: U8, cursor: I64, starts: U64, sizes: I64, data: U8) -> None:
    """A column of byte strings; ``out_bytes`` is the same memory as ``out``."""
    for i in range(len(starts)):
        at, size, start = cursor[i], max(sizes[i], 0), np.int64(starts[i])
        words = (size + 7) >> 3
        out[at] = np.uint64(sizes[i])
        if words > 0:
            out[at + words] = np.uint64(0)
        for k in range(size):
            out_bytes[8 * (at + 1) + k] = data[start + k]
        cursor[i] = at + 1 + words


@compiled
def count_rows(words: U64) -> int:
    """Rows of whole blocks."""
    rows, at = 0, np.int64(0)
    while at < len(words):
        end = at + np.int64(words[at])
        at += HEADER_WORDS
        while at < end:
            at += np.int64(words[at] & LENGTH_MASK)
            rows += 1
    return rows


@compiled
def find_rows(words: U64, heads: I64) -> None:
    """Where each of them begins."""
    row, at = 0, np.int64(0)
    while at < len(words):
        end = at + np.int64(words[at])
        at += HEADER_WORDS
        while at < end:
            heads[row] = at
            at += np.int64(words[at] & LENGTH_MASK)
            row += 1


@compiled
def take_words(words: U64, heads: I64, cursor: I64, null: np.uint64, found: U64, sizes: I64) -> None:
    """What ``put_words`` put; a size of -1 is a null."""
    for i in range(len(cursor)):
        found[i] = words[cursor[i]]
        sizes[i] = -1 if words[heads[i]] & null else 0
        cursor[i] += 1


@compiled
def take_spans(words: U64, cursor: I64, starts: U64, sizes: I64) -> None:
    """What ``put_spans`` put: where in the bytes of ``words`` each string starts, and its size."""
    for i in range(len(cursor)):
        at, size = cursor[i], np.int64(words[cursor[i]])
        starts[i] = np.uint64(8 * (at + 1))
        sizes[i] = size
        cursor[i] = at + 1 + ((max(size, np.int64(0)) + 7) >> 3)
