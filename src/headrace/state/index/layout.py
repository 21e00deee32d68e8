"""The arrays that kernels work on: a table, and a batch of records to look up in it."""

from __future__ import annotations

from typing import NamedTuple

from headrace.state.compiled import I64, U8, U64, borrowed, inlined

HASH, PANE, WORD, SIZE = range(4)
"""The columns of a cell; ``WORD`` is where in the arena the bytes start if keys are byte strings."""
FREE, LIVE, EVICTED = range(3)
"""What a row number stands for: nothing, a row of the table, a row pushed out and not released yet."""
NEVER = 2**63 - 1
"""The counter of rows that are not live, which is never idle; the time at which nothing is complete."""
FULL_AT = (5, 8)
"""Slots in use at most: at five of eight a search reads 1.8 slots on average if it finds, 4.1 if not."""


class Table(NamedTuple):
    """Everything an index holds: slots of the hash table, and columns by row number.

    ``cells`` are identities, ``free`` is a stack of numbers to use again, ``absorbed`` is the thesis's t, ``idle`` a
    list of rows. Columns that the policy does not need are empty.
    """

    registers: I64
    slots: U64
    cells: I64
    life: U8
    free: I64
    arena: U8
    counters: I64
    absorbed: I64
    expires: I64
    idle: I64


class KeyBatch(NamedTuple):
    """A batch's keys (see ``Keys``), panes and weights; one pane may stand for all, no weights for ones."""

    words: U64
    sizes: I64
    data: U8
    panes: I64
    weights: I64
    hashes: U64
    in_bytes: bool


@inlined
def borrow_table(table: Table) -> Table:
    """See ``borrowed``: every kernel that calls others per record starts with this."""
    return Table(
        borrowed(table.registers),
        borrowed(table.slots),
        borrowed(table.cells),
        borrowed(table.life),
        borrowed(table.free),
        borrowed(table.arena),
        borrowed(table.counters),
        borrowed(table.absorbed),
        borrowed(table.expires),
        borrowed(table.idle),
    )


@inlined
def borrow_batch(batch: KeyBatch) -> KeyBatch:
    return KeyBatch(
        borrowed(batch.words),
        borrowed(batch.sizes),
        borrowed(batch.data),
        borrowed(batch.panes),
        borrowed(batch.weights),
        borrowed(batch.hashes),
        batch.in_bytes,
    )
