"""Hashes and stamps of rows column by column, and rows in the order of their slices (compiled)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.state.compiled import I64, U64, compiled, mixed

_COMBINE = np.uint64(0x9FB21C651E98DF25)
_STAMP_ONE, _STAMP_TWO = np.uint64(0xD6E8FEB86659FD93), np.uint64(0xA5CB9243F0A2C3F1)
_29, _32 = np.uint64(29), np.uint64(32)


@compiled
def hash_words(words: U64, seed: np.uint64, hashes: U64) -> None:
    """One hash per word; every input bit reaches every output bit."""
    for i in range(len(words)):
        hashes[i] = mixed(words[i] + seed)


@compiled
def combine_hashes(hashes: U64, more: U64) -> None:
    """Hashes of rows so far, with those of one more column; the order of columns matters."""
    for i in range(len(hashes)):
        hashes[i] = mixed(hashes[i] * _COMBINE + more[i])


@compiled
def stamp_words(stamps: U64, words: U64) -> None:
    """Two stamps of each row so far, with one more column: cheap, and different enough for sums of ``finish_stamps``."""
    for i in range(len(words)):
        one, two = (stamps[i, 0] ^ words[i]) * _STAMP_ONE, (stamps[i, 1] + words[i]) * _STAMP_TWO
        stamps[i, 0], stamps[i, 1] = one ^ (one >> _32), two ^ (two >> _29)


@compiled
def finish_stamps(stamps: U64) -> None:
    """All columns are in: every bit of the row reaches every bit of both stamps."""
    for i in range(len(stamps)):
        stamps[i, 0], stamps[i, 1] = mixed(stamps[i, 0]), mixed(stamps[i, 1])


@compiled
def order_by_slice(slices: npt.NDArray[np.uint16], starts: I64, order: I64) -> None:
    """The rows' numbers with those of slice 0 first, each slice's ascending; ``starts`` has where each slice begins, and at
    its end how many rows there are.
    """
    starts[:] = 0
    for i in range(len(slices)):
        starts[slices[i] + 1] += 1
    for k in range(1, len(starts)):
        starts[k] += starts[k - 1]
    at = starts.copy()
    for i in range(len(slices)):
        order[at[slices[i]]] = i
        at[slices[i]] += 1
