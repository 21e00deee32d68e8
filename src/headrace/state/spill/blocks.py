"""Blocks of a bucket's file: words with their number and checksum in front, laid end to end (compiled).

Any number of neighbouring blocks is checked by one call, so a block may be as short as a write buffer of the
thesis (SCALLA 2.4), which serves one bucket and holds a few rows when memory is little.
"""

from __future__ import annotations

import numpy as np

from headrace.state.compiled import I64, U64, Int, compiled, inlined

HEADER_WORDS = 2
"""How many words the block has, these two included, and their checksum."""
_PER_WORD, _32 = np.uint64(0x9FB21C651E98DF25), np.uint64(32)


@compiled
def seal(words: U64, starts: I64) -> None:
    """Write the headers of blocks from ``starts[i]`` to ``starts[i + 1]``; there is none where the two are equal."""
    for i in range(len(starts) - 1):
        if starts[i + 1] > starts[i]:
            words[starts[i]] = np.uint64(starts[i + 1] - starts[i])
            words[starts[i] + 1] = _checksum(words, starts[i], starts[i + 1])


@compiled
def whole_words(words: U64) -> Int:
    """How many words the whole blocks at the beginning have; -1 if one of them is not as it was sealed."""
    at = np.int64(0)
    while at + HEADER_WORDS <= len(words):
        size = np.int64(words[at])
        if size <= HEADER_WORDS:
            return np.int64(-1)
        if size > len(words) - at:
            break
        if words[at + 1] != _checksum(words, at, at + size):
            return np.int64(-1)
        at += size
    return at


@inlined
def _checksum(words: U64, start: Int, end: Int) -> np.uint64:
    """Each step is one to one in the word, so a single changed word never goes unnoticed.

    Two halves at once, as each step waits for the one before.
    """
    found: np.uint64 = words[start]
    second = _PER_WORD
    middle = start + HEADER_WORDS + (end - start - HEADER_WORDS) // 2
    for i in range(start + HEADER_WORDS, middle):
        found = (found ^ words[i]) * _PER_WORD
        found ^= found >> _32
        second = (second ^ words[i - start - HEADER_WORDS + middle]) * _PER_WORD
        second ^= second >> _32
    if middle + middle - start - HEADER_WORDS < end:
        second = (second ^ words[end - 1]) * _PER_WORD
    return found * _PER_WORD + second
