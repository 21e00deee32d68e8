"""The open-addressing table under ``KeyIndex``: find, place and remove (compiled).

One slot is one word: the upper half of the key's 64-bit hash, and a row number plus one. The slot where
a search starts is the hash's leading bits, so a slot alone says where it belongs: deleting shifts its
successors back, growing moves slots, and neither looks at a key. A row's identity is one cell of four
words. Equal hashes never decide: a key is found only if pane and whole key agree.
"""

from __future__ import annotations

import numpy as np

from headrace.state.compiled import I64, U8, U64, Int, compiled, inlined, word_at
from headrace.state.index import registers as reg
from headrace.state.index.keyhash import fill_hashes
from headrace.state.index.layout import (
    FREE,
    FULL_AT,
    HASH,
    LIVE,
    NEVER,
    PANE,
    SIZE,
    WORD,
    KeyBatch,
    Table,
    borrow_batch,
    borrow_table,
)

_UPPER, _LOWER = np.uint64(0xFFFFFFFF00000000), np.uint64(0xFFFFFFFF)
_ONE = np.uint64(1)


@inlined
def find(table: Table, batch: KeyBatch, i: Int, pane: Int) -> Int:
    """The row of record ``i``, or -1."""
    slots, wanted = table.slots, batch.hashes[i]
    last = np.uint64(len(slots) - 1)
    at = wanted >> np.uint64(table.registers[reg.SHIFT])
    while True:
        slot = slots[at]
        if slot == 0:
            return -1
        if (slot ^ wanted) <= _LOWER:
            row = np.int64(slot & _LOWER) - 1
            if _same(table, batch, i, pane, row):
                return row
        at = (at + _ONE) & last


@inlined
def _same(table: Table, batch: KeyBatch, i: Int, pane: Int, row: Int) -> bool:
    cells = table.cells
    size = batch.sizes[i] if len(batch.sizes) else 0
    if cells[row, PANE] != pane or cells[row, SIZE] != size:
        return False
    if size < 0:
        return True
    if not batch.in_bytes:
        return bool(np.uint64(cells[row, WORD]) == batch.words[i])
    if np.uint64(cells[row, HASH]) != batch.hashes[i]:
        return False
    here, there = cells[row, WORD], np.int64(batch.words[i])
    at = 0
    while at + 8 <= size:
        if word_at(table.arena, here + at) != word_at(batch.data, there + at):
            return False
        at += 8
    while at < size:
        if table.arena[here + at] != batch.data[there + at]:
            return False
        at += 1
    return True


@inlined
def has_room(table: Table, batch: KeyBatch, i: Int) -> bool:
    """Whether record ``i`` can become a row without any array growing."""
    registers = table.registers
    if registers[reg.FREE_ROWS] == 0 and registers[reg.TOP] == len(table.life):
        return False
    if (registers[reg.LIVE_ROWS] + 1) * FULL_AT[1] > len(table.slots) * FULL_AT[0]:
        return False
    return not batch.in_bytes or registers[reg.ARENA_USED] + batch.sizes[i] <= len(table.arena)


@inlined
def place(table: Table, batch: KeyBatch, i: Int, pane: Int) -> Int:
    """Make record ``i`` a row; there must be room, and the key must be absent."""
    registers, cells = table.registers, table.cells
    if registers[reg.FREE_ROWS]:
        registers[reg.FREE_ROWS] -= 1
        row: Int = table.free[registers[reg.FREE_ROWS]]
    else:
        row = registers[reg.TOP]
        registers[reg.TOP] += 1
    size = batch.sizes[i] if len(batch.sizes) else 0
    cells[row, HASH], cells[row, PANE] = np.int64(batch.hashes[i]), pane
    cells[row, WORD], cells[row, SIZE] = np.int64(batch.words[i]), size
    if batch.in_bytes:
        used, start = registers[reg.ARENA_USED], np.int64(batch.words[i])
        for k in range(max(size, 0)):
            table.arena[used + k] = batch.data[start + k]
        cells[row, WORD] = used
        registers[reg.ARENA_USED] += max(size, 0)
    table.life[row] = LIVE
    registers[reg.LIVE_ROWS] += 1
    occupy(table.slots, (batch.hashes[i] & _UPPER) | np.uint64(row + 1), registers[reg.SHIFT])
    return row


@inlined
def occupy(slots: U64, slot: np.uint64, shift: Int) -> None:
    """Put a slot into the first empty place from its own on."""
    last = np.uint64(len(slots) - 1)
    at = slot >> np.uint64(shift)
    while slots[at]:
        at = (at + _ONE) & last
    slots[at] = slot


@inlined
def vacate(table: Table, row: Int) -> None:
    """Take a row out of the slots; slots behind it move up, so that searches need no tombstones."""
    slots, shift = table.slots, np.uint64(table.registers[reg.SHIFT])
    last = np.uint64(len(slots) - 1)
    hole = np.uint64(table.cells[row, HASH]) >> shift
    while (slots[hole] & _LOWER) != np.uint64(row + 1):
        hole = (hole + _ONE) & last
    at = hole
    while True:
        at = (at + _ONE) & last
        slot = slots[at]
        if slot == 0:
            break
        if ((at - (slot >> shift)) & last) >= ((at - hole) & last):
            slots[hole] = slot
            hole = at
    slots[hole] = np.uint64(0)
    table.registers[reg.LIVE_ROWS] -= 1


@compiled
def find_all(table: Table, batch: KeyBatch, rows: I64) -> None:
    """The row of each record, or -1."""
    table, batch = borrow_table(table), borrow_batch(batch)
    fill_hashes(table, batch)
    step = 1 if len(batch.panes) > 1 else 0
    for i in range(len(rows)):
        rows[i] = find(table, batch, i, batch.panes[i * step])


@compiled
def rows_in_pane(table: Table, pane: Int, rows: I64) -> None:
    """The first live rows of a pane, as many as ``rows`` has place for."""
    count = 0
    for row in range(table.registers[reg.TOP]):
        if count == len(rows):
            break
        if table.life[row] == LIVE and table.cells[row, PANE] == pane:
            rows[count] = row
            count += 1


@compiled
def move_slots(old: U64, new: U64, shift: Int) -> None:
    """Refill a larger table from a smaller one."""
    for slot in old:
        if slot:
            occupy(new, slot, shift)


@compiled
def give_back(table: Table, rows: I64, expected: Int, in_bytes: bool) -> Int:
    """Free row numbers whose life is ``expected``; returns the index of the first that has another, or -1.

    Live rows leave the slots. Checks all rows before it changes any.
    """
    table = borrow_table(table)
    registers, life = table.registers, table.life
    for i in range(len(rows)):
        if rows[i] < 0 or rows[i] >= registers[reg.TOP] or life[rows[i]] != expected:
            for k in range(i):
                life[rows[k]] = expected
            return i
        life[rows[i]] = FREE
    for row in rows:
        if expected == LIVE:
            vacate(table, row)
        if len(table.counters):
            table.counters[row] = NEVER
        if in_bytes:
            registers[reg.ARENA_WASTE] += max(table.cells[row, SIZE], 0)
        table.free[registers[reg.FREE_ROWS]] = row
        registers[reg.FREE_ROWS] += 1
    return -1


@compiled
def compact(table: Table, arena: U8) -> Int:
    """Copy the bytes still in use to a new arena; returns how many they are."""
    used = 0
    for row in range(table.registers[reg.TOP]):
        size = table.cells[row, SIZE]
        if table.life[row] != FREE and size > 0:
            start = table.cells[row, WORD]
            for k in range(size):
                arena[used + k] = table.arena[start + k]
            table.cells[row, WORD] = used
            used += size
    return used
