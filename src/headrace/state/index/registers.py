"""The numbers of a ``Table`` that kernels change, by their place in ``Table.registers``."""

from __future__ import annotations

LIVE_ROWS, TOP, FREE_ROWS = 0, 1, 2
"""Rows in the table; one more than the highest row number given; length of the list of free numbers."""
ARENA_USED, ARENA_WASTE = 3, 4
"""Bytes of the arena written, and those of them that belonged to rows that are gone."""
SHIFT, SEED, HASH_MASK = 5, 6, 7
"""How far to shift a hash to get its slot; what makes an index's hashes its own; bits of the hash in use (all)."""
LIMIT, RULE, NOW, DICE = 8, 9, 10, 11
"""The maximum number of live rows; the policy's rule; rows that expire by then are complete; the generator's state."""
LEVEL, LOWEST = 12, 13
"""A row whose counter is the level is idle; no counter is below the lowest."""
IDLE, HAND, LOOKS = 14, 15, 16
"""Length of the list of idle rows; where in it to look next for a complete one, and how often one may."""
TUPLES, REFUSED, EVICTIONS, DECREMENTS = 17, 18, 19, 20
"""Figures: weight of all records, of those refused; rows pushed out; rise of the level by FREQUENT."""
COUNT = 21
