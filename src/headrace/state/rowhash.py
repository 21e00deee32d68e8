"""Hashes and stamps of rows column by column, and rows by their slices (compiled)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.state.compiled import I64, U64, brief, compiled, mixed

_COMBINE = np.uint64(0x9FB21C651E98DF25)
_STAMP_ONE, _STAMP_TWO = np.uint64(0xD6E8FEB86659FD93), np.uint64(0xA5CB9243F0A2C3F1)
_1, _29, _32 = np.uint64(1), np.uint64(29), np.uint64(32)


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


@brief
def stamp_words(stamps: U64, words: U64) -> None:
    """Two stamps of each row so far, with one more column: cheap, and different enough for sums of ``finish_stamps``."""
    for i in range(len(words)):
        one, two = (stamps[i, 0] ^ words[i]) * _STAMP_ONE, (stamps[i, 1] + words[i]) * _STAMP_TWO
        stamps[i, 0], stamps[i, 1] = one ^ (one >> _32), two ^ (two >> _29)


@brief
def finish_stamps(stamps: U64) -> None:
    """All columns are in: every bit of the row reaches every bit of both stamps."""
    for i in range(len(stamps)):
        stamps[i, 0], stamps[i, 1] = mixed(stamps[i, 0]), mixed(stamps[i, 1])


@compiled
def rows_where(flags: npt.NDArray[np.bool_], rows: I64) -> int:
    """The numbers of rows that are flagged, ascending; returns how many there are."""
    found = 0
    for i in range(len(flags)):
        if flags[i]:
            rows[found] = i
            found += 1
    return found


@compiled
def places_by_slice(rows: I64, slices: npt.NDArray[np.uint16], starts: I64, places: I64) -> None:
    """Where each row stands when those of slice 0 come first and each slice's keep their order; ``starts`` has where each
    slice begins, and at its end how many rows there are.
    """
    starts[:] = 0
    for i in range(len(rows)):
        starts[slices[rows[i]] + 1] += 1
    for k in range(1, len(starts)):
        starts[k] += starts[k - 1]
    at = starts.copy()
    for i in range(len(rows)):
        slice = slices[rows[i]]
        places[i] = at[slice]
        at[slice] += 1


@brief
def gather_words(words: npt.NDArray[Any], rows: I64, out: npt.NDArray[Any]) -> None:
    """The words of some rows."""
    for i in range(len(rows)):
        out[i] = words[rows[i]]


@brief
def scatter_words(words: npt.NDArray[Any], places: I64, out: npt.NDArray[Any]) -> None:
    """Words at their places."""
    for i in range(len(words)):
        out[places[i]] = words[i]


@brief
def restamp(rows: I64, slices: npt.NDArray[np.uint16], stamps: U64, stored: U64, sums: U64) -> None:
    """Rows have new stamps: they take the place of those that are stored, and ``sums`` has by how much each slice's change."""
    for i in range(len(rows)):
        row = rows[i]
        slice = slices[row]
        for lane in range(2):
            sums[slice, lane] += stamps[i, lane] - stored[row, lane]
            stored[row, lane] = stamps[i, lane]


@compiled
def rows_of_slices(
    slices: npt.NDArray[np.uint16], stored: npt.NDArray[np.bool_], wanted: npt.NDArray[np.bool_], rows: I64
) -> int:
    """The numbers of stored rows whose slices are wanted, ascending; returns how many there are."""
    found = 0
    for i in range(len(slices)):
        if wanted[slices[i]] and stored[i]:
            rows[found] = i
            found += 1
    return found


@compiled
def last_of_each(ones: U64, twos: U64, last: npt.NDArray[np.bool_]) -> None:
    """Which of the identities, each a pair of words, do not come again behind."""
    size = 16
    while size < 2 * len(ones):
        size *= 2
    mask, seen = np.uint64(size - 1), np.full(size, -1, np.int32)
    for i in range(len(ones) - 1, -1, -1):
        at = mixed(ones[i] * _COMBINE + twos[i]) & mask
        while True:
            other = seen[at]
            if other < 0:
                seen[at] = i
                last[i] = True
                break
            if ones[other] == ones[i] and twos[other] == twos[i]:
                last[i] = False
                break
            at = (at + _1) & mask
