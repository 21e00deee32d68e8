"""Who stays in memory: the residency policies of SCALLA 2.5 and 2.6, in one compiled loop over records.

All policies share one picture. Every row has a *counter*, and there is one *level*. A row whose counter
equals the level is *idle*: it may be pushed out. A record of weight w (one that stands for w tuples: a
combined partial state) adds w to its row's counter, and a new row starts at level + w. A record whose key is
absent while all slots are taken

- INC: is refused (goes to disk).
- FREQUENT: takes an idle row's slot; if none is idle, the level rises by d = min(w, lowest counter - level),
  which is the pseudo-code's "all c -= 1" done d times, and the record is refused unless w > d.
- SPACE_SAVING: takes the slot of a row with the lowest counter; the level is that lowest counter.
- MARKER: counters are a bit (level + 1 or level). Takes an unmarked row's slot; if all are marked, the level
  rises by one, which clears all bits, and the record is refused.

Guarantees, with M the weight of all records, f a key's weight, t what its row absorbed, D the rise of the
level: a record is never split, so FREQUENT's rise takes d from each of s counters and from the record itself,
hence D <= M / (s + 1), and a key with f > D is in memory. A counter grows with t, so counter - t is the level
when the row entered, and under FREQUENT and SPACE_SAVING this bounds what was lost of the key before: f <=
counter, coverage >= t / counter. With w = 1 everywhere these are the thesis's own statements, with D as observed
instead of M / (s + 1).

Where we depart: the pseudo-code decrements counters or groups them by value; we look through all s counters
whenever no row is idle any more. Each such look follows a rise of the level by one at least, which takes s + 1
tuples (FREQUENT; s for the others), so a tuple still costs O(1) amortised. That is by weight: if weights spread
over far more values than there are slots, looks come every few records.

Streaming (``complete_only``): an idle row may be pushed out only if it is complete, ``expires <= now``; if there
are idle rows but none complete, the record is refused and the level stays. Complete rows are found by a hand that
goes round the idle ones (``state.index.idling``). No coverage is claimed.
"""

from __future__ import annotations

from headrace.state.compiled import I64, Int, borrowed, compiled, inlined
from headrace.state.index import registers as reg
from headrace.state.index.idling import LOOKS_PER_RECORD, collect_idle, idle_row, lowest_counter
from headrace.state.index.keyhash import fill_hashes
from headrace.state.index.layout import EVICTED, NEVER, KeyBatch, Table, borrow_batch, borrow_table
from headrace.state.index.policies import Rule
from headrace.state.index.probing import find, has_room, place, vacate

_INC, _FREQUENT, _SPACE_SAVING, _MARKER = map(int, Rule)
_NO_ROOM, _REFUSED = -2, -1


@compiled
def admit(table: Table, batch: KeyBatch, start: Int, made: I64, rows: I64, fresh: I64, evicted: I64) -> Int:
    """Admit records from ``start`` on; returns where it stopped for want of room, or the number of records.

    ``made`` counts the entries of ``fresh`` and ``evicted``.
    """
    table, batch = borrow_table(table), borrow_batch(batch)
    made, evicted = borrowed(made), borrowed(evicted)
    registers, stop = table.registers, len(rows)
    if start == 0:
        fill_hashes(table, batch)
        registers[reg.LOOKS] = min(registers[reg.LOOKS] + stop * LOOKS_PER_RECORD, registers[reg.IDLE])
    step = 1 if len(batch.panes) > 1 else 0
    tuples = refused = 0
    for i in range(start, len(rows)):
        pane = batch.panes[i * step]
        weight = batch.weights[i] if len(batch.weights) else 1
        row = find(table, batch, i, pane)
        if row >= 0:
            _touch(table, row, weight)
        else:
            row = _enter(table, batch, i, pane, weight, made, evicted)
            if row >= 0:
                fresh[made[0]] = row
                made[0] += 1
            elif row == _REFUSED:
                refused += weight
            else:
                stop = i
                break
        tuples += weight
        rows[i] = row
    registers[reg.TUPLES] += tuples
    registers[reg.REFUSED] += refused
    return stop


@inlined
def _touch(table: Table, row: Int, weight: Int) -> None:
    rule = table.registers[reg.RULE]
    if rule == _MARKER:
        table.counters[row] = table.registers[reg.LEVEL] + 1
    elif rule != _INC:
        table.counters[row] += weight
        table.absorbed[row] += weight


@inlined
def _enter(table: Table, batch: KeyBatch, i: Int, pane: Int, weight: Int, made: I64, evicted: I64) -> Int:
    registers = table.registers
    full = registers[reg.LIVE_ROWS] >= registers[reg.LIMIT]
    if full and registers[reg.RULE] == _INC:
        return _REFUSED
    if not has_room(table, batch, i):
        return _NO_ROOM
    level = registers[reg.LEVEL]
    if full:
        victim = _victim(table, weight)
        if victim < 0:
            return _REFUSED
        if registers[reg.RULE] == _SPACE_SAVING:
            level = registers[reg.LEVEL]
        vacate(table, victim)
        table.life[victim] = EVICTED
        table.counters[victim] = NEVER
        evicted[made[1]] = victim
        made[1] += 1
        registers[reg.EVICTIONS] += 1
    row = place(table, batch, i, pane)
    if registers[reg.RULE] != _INC:
        _start(table, row, level, weight)
    return row


@inlined
def _start(table: Table, row: Int, level: Int, weight: Int) -> None:
    registers = table.registers
    if len(table.expires):
        table.expires[row] = NEVER
    if registers[reg.RULE] == _MARKER:
        table.counters[row] = level + 1
        return
    table.counters[row] = level + weight
    table.absorbed[row] = weight
    registers[reg.LOWEST] = min(registers[reg.LOWEST], level + weight)


@inlined
def _victim(table: Table, weight: Int) -> Int:
    """The row to push out for a record of this weight, or -1 to refuse it."""
    registers = table.registers
    row = idle_row(table)
    if row >= 0 or registers[reg.IDLE]:
        return row
    if registers[reg.RULE] == _MARKER:
        registers[reg.LEVEL] += 1
        collect_idle(table)
        return -1
    level = registers[reg.LEVEL]
    if registers[reg.RULE] == _FREQUENT and level + weight < registers[reg.LOWEST]:
        rise = weight
    else:
        registers[reg.LOWEST] = lowest_counter(table)
        rise = registers[reg.LOWEST] - level
    if registers[reg.RULE] == _FREQUENT:
        rise = min(rise, weight)
        registers[reg.DECREMENTS] += rise
    registers[reg.LEVEL] += rise
    if registers[reg.LEVEL] == registers[reg.LOWEST]:
        collect_idle(table)
    return idle_row(table) if registers[reg.RULE] == _SPACE_SAVING or weight > rise else -1
