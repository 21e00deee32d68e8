"""Rows found by key and time, and the order in which their times pass (compiled).

Time is divided into panes as long as the interval within which rows meet, so what a record can meet lies in two of
them at most. Rows whose keys have one hash and whose times one pane form a chain, in order of arrival; an
open-addressing table has the first and the last row of each chain. So a record looks at few rows that it does not meet,
however long the input is and however few its keys are.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.state.compiled import I64, U64, Int, compiled, inlined, mixed

END, ALONE = -1, -2
"""In place of the next row: the chain's last row; a row that is in no chain, as nothing can meet it."""
_PER_PANE = np.uint64(0xD6E8FEB86659FD93)
_ONE = np.uint64(1)


@compiled
def link(
    heads: I64, tails: I64, hashes: U64, times: I64, links: I64, pane_us: Int, start: Int, end: Int
) -> Int:  # fmt: skip
    """Append rows from ``start`` to ``end`` to their chains; how many chains are new."""
    made = 0
    for row in range(start, end):
        if links[row] == ALONE:
            continue
        links[row] = END
        at = _slot(heads, hashes, times, pane_us, hashes[row], times[row] // pane_us)
        if heads[at] < 0:
            heads[at] = row
            made += 1
        else:
            links[tails[at]] = row
        tails[at] = row
    return made


@compiled
def meet(
    heads: I64, hashes: U64, times: I64, knowns: I64, links: I64, pane_us: Int,
    new_hashes: U64, new_times: I64, new_knowns: I64, lone: npt.NDArray[np.bool_], back_us: Int, ahead_us: Int,
    place: I64, found_new: I64, found_rows: I64,
) -> Int:  # fmt: skip
    """Pairs of new records and rows of equal hash whose times meet, as many as there is room for; how many.

    A row is met from ``back_us`` before to ``ahead_us`` after a record's time. By the record's own watermark the row's
    time must not have passed, nor by the row's the record's: ``knowns`` are the later of time and watermark.
    ``place`` is where to go on: record, pane and row.
    """
    filled = 0
    i, pane, row = place[0], place[1], place[2]
    while i < len(new_hashes):
        first_us, last_us = new_knowns[i] - back_us, new_times[i] + ahead_us
        if row == ALONE:  # a record is begun
            pane = first_us // pane_us
            row = END if lone[i] else heads[_slot(heads, hashes, times, pane_us, new_hashes[i], pane)]
        while True:
            while row >= 0:
                if (
                    first_us <= times[row] <= last_us
                    and hashes[row] == new_hashes[i]
                    and knowns[row] - ahead_us <= new_times[i]
                ):
                    if filled == len(found_new):
                        place[0], place[1], place[2] = i, pane, row
                        return filled
                    found_new[filled], found_rows[filled] = i, row
                    filled += 1
                row = links[row]
            pane += 1
            if lone[i] or pane * pane_us > last_us:
                break
            row = heads[_slot(heads, hashes, times, pane_us, new_hashes[i], pane)]
        i, row = i + 1, ALONE
    place[0], place[1], place[2] = i, pane, row
    return filled


@compiled
def push_rows(heap: I64, size: Int, times: I64, start: Int, end: Int) -> None:
    """Add rows to a heap of ``size`` rows whose first is the one with the earliest time."""
    for row in range(start, end):
        at = size
        size += 1
        while at > 0 and times[heap[(at - 1) >> 1]] > times[row]:
            heap[at] = heap[(at - 1) >> 1]
            at = (at - 1) >> 1
        heap[at] = row


@compiled
def pop_rows(heap: I64, size: Int, times: I64, before_us: Int, found: I64) -> Int:
    """Take rows with times before ``before_us`` off the heap, earliest first, as many as there is room for; how many."""
    filled = 0
    while size > 0 and filled < len(found) and times[heap[0]] < before_us:
        found[filled] = heap[0]
        filled += 1
        size -= 1
        row, at = heap[size], 0
        while 2 * at + 1 < size:
            below = 2 * at + 1
            if below + 1 < size and times[heap[below + 1]] < times[heap[below]]:
                below += 1
            if times[heap[below]] >= times[row]:
                break
            heap[at] = heap[below]
            at = below
        heap[at] = row
    return filled


@inlined
def _slot(heads: I64, hashes: U64, times: I64, pane_us: Int, wanted: np.uint64, pane: Int) -> np.uint64:
    """Where the chain of a hash and a pane is, or would be."""
    last = np.uint64(len(heads) - 1)
    at = mixed(wanted + np.uint64(pane) * _PER_PANE) & last
    while heads[at] >= 0:
        row = heads[at]
        if hashes[row] == wanted and times[row] // pane_us == pane:
            break
        at = (at + _ONE) & last
    return at
