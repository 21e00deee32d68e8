"""The arrays of a ``KeyIndex``: made, grown, compacted, and given the columns that a policy needs; rows per pane."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.state.compiled import I64
from headrace.state.index import registers as reg
from headrace.state.index.layout import FULL_AT, LIVE, NEVER, Table
from headrace.state.index.policies import ResidencyPolicy
from headrace.state.index.probing import compact, move_slots

_FIRST_ROWS, _FIRST_SLOTS, _FIRST_ARENA_BYTES = 64, 128, 1024
_MAX_ROWS = 2**32 - 2
"""A slot has 32 bits for the row number."""
_COLUMNS = ("cells", "life", "free", "counters", "absorbed", "expires", "idle")
"""One entry per row; those that the policy does not need are empty."""
_FEW = 64
"""Up to so many rows, counting in a Python loop beats sorting."""
_ENTRY_BYTES = 64
"""Two whole numbers, the pane and its count."""


def new_table(limit: int | None, seed: int) -> Table:
    """An empty table of first-come policy for at most ``limit`` live rows."""
    registers = np.zeros(reg.COUNT, np.int64)
    registers[reg.SEED] = (seed * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) % 2**63
    registers[reg.DICE] = registers[reg.SEED] | 1  # xorshift must not start at zero
    registers[reg.HASH_MASK] = -1
    registers[reg.LIMIT] = _MAX_ROWS if limit is None else min(limit, _MAX_ROWS)
    registers[reg.SHIFT] = 64 - (_FIRST_SLOTS.bit_length() - 1)
    none = np.zeros(0, np.int64)
    rows = min(_FIRST_ROWS, int(registers[reg.LIMIT]))
    slots, cells = np.zeros(_FIRST_SLOTS, np.uint64), np.zeros((rows, 4), np.int64)
    return Table(
        registers,
        slots,
        cells,
        np.zeros(rows, np.uint8),
        np.zeros(rows, np.int64),
        np.zeros(0, np.uint8),
        *([none] * 4),
    )


def with_policy(table: Table, policy: ResidencyPolicy) -> Table:
    """The same rows under another policy; all of them idle, since nobody counted for it so far.

    The level starts at what may have been lost of an absent key: what was refused, or all tuples if an
    earlier policy pushed rows out. So a row's counter still bounds its key's frequency from above.
    """
    registers, size = table.registers, len(table.life)
    level = registers[reg.TUPLES] if registers[reg.EVICTIONS] else registers[reg.REFUSED]
    live = np.flatnonzero(table.life == LIVE)
    none = np.zeros(0, np.int64)
    counters = absorbed = expires = idle = none
    if policy.evicts:
        counters, idle = np.full(size, NEVER), np.zeros(size, np.int64)
        counters[live], idle[: len(live)] = level, live
    if policy.counts:
        absorbed = np.zeros(size, np.int64)
    if policy.complete_only:
        expires = table.expires if len(table.expires) else np.full(size, NEVER)
    registers[reg.RULE], registers[reg.LEVEL], registers[reg.LOWEST] = policy.rule, level, level
    registers[reg.IDLE] = registers[reg.LOOKS] = len(live) if policy.evicts else 0
    registers[reg.HAND] = 0
    return table._replace(counters=counters, absorbed=absorbed, expires=expires, idle=idle)


def with_room(table: Table, records: int, key_bytes: int) -> Table:
    """Room for one more row whose key takes ``key_bytes``; up to ``records`` may follow."""
    registers = table.registers
    if registers[reg.FREE_ROWS] == 0 and registers[reg.TOP] == len(table.life):
        table = _with_rows(table, records)
    table = _with_slots(table, int(registers[reg.LIVE_ROWS]) + 1)
    if registers[reg.ARENA_USED] + key_bytes > len(table.arena):
        size = max(2 * len(table.arena), int(registers[reg.ARENA_USED]) + key_bytes, _FIRST_ARENA_BYTES)
        table = table._replace(arena=_extended(table.arena, size))
    return table


def reserved(table: Table, rows: int) -> Table:
    """Room for at least so many rows in all, got at once: growing step by step touches twice the memory."""
    rows = min(rows, int(table.registers[reg.LIMIT]))
    if rows > len(table.life):
        table = _with_columns(table, rows)
    return _with_slots(table, rows)


def without_waste(table: Table) -> Table:
    """A smaller arena if more than half of this one is bytes of rows that are gone."""
    registers = table.registers
    if 2 * registers[reg.ARENA_WASTE] <= max(registers[reg.ARENA_USED], _FIRST_ARENA_BYTES):
        return table
    arena = np.zeros(int(registers[reg.ARENA_USED] - registers[reg.ARENA_WASTE]), np.uint8)
    registers[reg.ARENA_USED] = compact(table, arena)
    registers[reg.ARENA_WASTE] = 0
    return table._replace(arena=arena)


def row_bytes(table: Table) -> int:
    """Memory per row at most: its columns, and 3.2 slots of eight bytes just after slots doubled.

    While columns grow, the largest one's old half is held too.
    """
    sizes = [int(getattr(table, name).nbytes) // len(table.life) for name in _COLUMNS]
    return sum(sizes) + 26 + max(sizes) // 2


def _with_rows(table: Table, records: int) -> Table:
    """Twice the rows while live ones may still come; beyond the limit only evicted ones can."""
    size, limit = len(table.life), int(table.registers[reg.LIMIT])
    size = min(2 * size, limit) if size < limit else size + min(records, size)
    return _with_columns(table, size)


def _with_slots(table: Table, rows: int) -> Table:
    """Slots enough for so many live rows."""
    size, registers = len(table.slots), table.registers
    while rows * FULL_AT[1] > size * FULL_AT[0]:
        size *= 2
        registers[reg.SHIFT] -= 1
    if size == len(table.slots):
        return table
    slots = np.zeros(size, np.uint64)
    move_slots(table.slots, slots, int(registers[reg.SHIFT]))
    return table._replace(slots=slots)


def _with_columns(table: Table, size: int) -> Table:
    longer = {name: _extended(getattr(table, name), size) for name in _COLUMNS if len(getattr(table, name))}
    return table._replace(**longer)


def _extended(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    longer = np.zeros((size, *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer


class PaneCounts:
    """Counts rows as they come and go; a pane without rows is no pane."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def __getitem__(self, pane: int) -> int:
        return self._counts.get(pane, 0)

    def panes(self) -> list[int]:
        """Panes that hold rows, ascending."""
        return sorted(self._counts)

    def add(self, panes: I64, change: int) -> None:
        """One row more (1) or less (-1) for each entry of ``panes``."""
        if len(panes) <= _FEW:
            counted = [(pane, 1) for pane in panes.tolist()]
        elif panes.min() == panes.max():
            counted = [(int(panes[0]), len(panes))]
        else:
            distinct, counts = np.unique(panes, return_counts=True)
            counted = list(zip(distinct.tolist(), counts.tolist()))
        for pane, count in counted:
            left = self._counts.get(pane, 0) + change * count
            if left:
                self._counts[pane] = left
            else:
                del self._counts[pane]

    @property
    def nbytes(self) -> int:
        return sys.getsizeof(self._counts) + _ENTRY_BYTES * len(self._counts)
