"""How a memory bound is divided: slots of a table, a buffer before disk, buckets, room to settle them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.state.table.rowtable import GroupTable

_MIN_TURN, _MAX_TURN = 16, 8192
"""Records offered at once: what a policy pushes out during a turn stays in memory until its end."""
_MIN_INC_TURN = 256
"""INC pushes nothing out; so many records take some 40 kB, and fewer cost more in calls than in work."""
TABLE_SHARE, BUFFER_SHARE, TURN_SHARE, SETTLING_SHARE = 0.6, 0.06, 0.3, 0.35
"""Of the memory bound. Buckets are settled between turns, with the buffer empty: that room serves twice."""
_TURN_BYTES = 160
"""What a record takes while it is offered: its hash, its row, its copy among those refused, their partials."""
_KEY_BYTES = 40
"""Room left per row where keys vary in size: twice what a short text takes, as room for them doubles."""
_FEWEST_BUCKETS, _MAX_BUCKETS = 16, 64
_PAGE_BYTES = 4096
_APPEND_BYTES = 512
"""A bucket's part of a full buffer; shorter appends cost more than the recursion that they save."""
_STATES_PER_BYTE = 4
"""A row takes about three times as much in a table as on disk, and buckets differ in size."""


@dataclass(frozen=True, slots=True)
class Frequent:
    """Only keys with at least ``minimum`` of at most ``max_records`` records are asked for, ``coverage`` of them."""

    minimum: float
    max_records: int
    coverage: float

    def needs_no_disk(self, slots: int) -> bool:
        """The no-spill rule: every such key is resident, and well enough covered (SCALLA 2.7)."""
        return 1 - self.max_records / (slots + 1) / self.minimum >= self.coverage


@dataclass(frozen=True, slots=True)
class Bound:
    """How much memory a reduce may use in a subtask, and who stays in it.

    ``slots`` and ``buckets`` are chosen from ``memory_bytes`` unless given. ``level`` is the depth of
    recursion: each has a hash function of its own, and knows the ``bucket_bytes`` of the bucket above.
    Engine ``"auto"`` begins as ``"inc"`` and changes when what it has seen of the keys says so
    (``state.index.choosing``).
    """

    memory_bytes: int
    engine: str
    directory: Path
    slices: int
    slots: int | None = None
    buckets: int | None = None
    level: int = 0
    windowed: bool = False
    frequent: Frequent | None = None
    bucket_bytes: int | None = None

    @property
    def buffer_bytes(self) -> int:
        """Of the buffer before disk; those of the levels above are empty while this one is in use."""
        share = BUFFER_SHARE if self.level == 0 else BUFFER_SHARE / SETTLING_SHARE
        return max(_PAGE_BYTES, int(self.memory_bytes * share))

    @property
    def bucket_count(self) -> int:
        return self.buckets_behind(self.buffer_bytes)

    def buckets_behind(self, buffer_bytes: int) -> int:
        """As many as such a buffer can append to, or as are enough where it is known how much comes."""
        if self.buckets:
            return self.buckets
        maximum = min(max(_FEWEST_BUCKETS, buffer_bytes // _APPEND_BYTES), _MAX_BUCKETS)
        if self.bucket_bytes is None:
            return maximum
        return min(max(2, _STATES_PER_BYTE * self.bucket_bytes // self.memory_bytes), maximum)


def rows_for(table: GroupTable, memory_bytes: int) -> tuple[int, int]:
    """How many keys fit, and how many records may be offered at once.

    Where states vary in size, half of the room is left to them.
    """
    rows = int(memory_bytes / bytes_per_row(table))
    turn = min(max(rows // 8, _MIN_TURN), _MAX_TURN)
    if table.index.policy.evicts:
        return max(rows - turn, 1), turn
    if not table.states_vary:
        turn = min(max(int(memory_bytes * TURN_SHARE / _TURN_BYTES), _MIN_INC_TURN), _MAX_TURN)
    return max(rows, 1), turn


def keys_for(table: GroupTable, memory_bytes: int, more_bytes: int, *, evicts: bool) -> tuple[int, int]:
    """The same where a key has a slot apart from its rows, and each row takes ``more_bytes`` besides the table.

    Keys that vary in size are held twice then.
    """
    room = table.row_bytes if table.states_vary else 2 * _KEY_BYTES if table.varies else 0
    rows = int(memory_bytes * TABLE_SHARE / (table.row_bytes + more_bytes + room))
    turn = min(max(rows // 8, _MIN_TURN), _MAX_TURN)
    return max(rows - turn if evicts else rows, 1), turn


def bytes_per_row(table: GroupTable) -> float:
    """Memory that a key takes, with what is left free for growth."""
    room = table.row_bytes if table.states_vary else _KEY_BYTES if table.varies else 0
    return (table.row_bytes + room) / TABLE_SHARE
