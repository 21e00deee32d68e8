"""The list of idle rows, those that may be pushed out (compiled).

It is filled by one look through all counters when the level rises, and only shrinks until the next rise: rows
that are touched meanwhile are noticed when it is their turn. Of rows that may be pushed out whether complete
or not, any is as likely to be taken (SCALLA 2.6). Complete ones are found by a hand that goes round the list.
Each record pays for eight looks at rows that turn out incomplete, and unused looks are saved up to one round;
so after a fruitless round of n idle rows, one that completes is found within n / 8 records.
"""

from __future__ import annotations

import numpy as np

from headrace.state.compiled import I64, Int, inlined
from headrace.state.index import registers as reg
from headrace.state.index.layout import NEVER, Table

LOOKS_PER_RECORD = 8
_12, _25, _27 = np.uint64(12), np.uint64(25), np.uint64(27)
_STAR = np.uint64(0x2545F4914F6CDD1D)


@inlined
def idle_row(table: Table) -> Int:
    """Take an idle row that may be pushed out: any, at random, or the next complete one; -1 if there is none.

    Rows that were touched since they were collected are no longer idle and leave the list here.
    """
    registers, idle, counters = table.registers, table.idle, table.counters
    level = registers[reg.LEVEL]
    streaming = len(table.expires) > 0
    while registers[reg.IDLE]:
        at = registers[reg.HAND] % registers[reg.IDLE] if streaming else _roll(registers, registers[reg.IDLE])
        row: Int = idle[at]
        if streaming and counters[row] == level and table.expires[row] > registers[reg.NOW]:
            if registers[reg.LOOKS] == 0:
                return -1
            registers[reg.LOOKS] -= 1
            registers[reg.HAND] = at + 1
            continue
        registers[reg.IDLE] -= 1
        idle[at] = idle[registers[reg.IDLE]]
        if counters[row] == level:
            return row
    return -1


@inlined
def _roll(registers: I64, sides: Int) -> Int:
    """A number below ``sides`` (xorshift64*, seeded with the index)."""
    x = np.uint64(registers[reg.DICE])
    x ^= x >> _12
    x ^= x << _25
    x ^= x >> _27
    registers[reg.DICE] = np.int64(x)
    return np.int64(((x * _STAR) >> np.uint64(32)) * np.uint64(sides) >> np.uint64(32))


@inlined
def lowest_counter(table: Table) -> Int:
    lowest = NEVER
    for row in range(table.registers[reg.TOP]):
        lowest = min(lowest, table.counters[row])
    return lowest


@inlined
def collect_idle(table: Table) -> None:
    registers, count = table.registers, 0
    level = registers[reg.LEVEL]
    for row in range(registers[reg.TOP]):
        if table.counters[row] == level:
            table.idle[count] = row
            count += 1
    registers[reg.IDLE] = registers[reg.LOOKS] = count
    registers[reg.HAND] = 0
