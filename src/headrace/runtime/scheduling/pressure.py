"""How much of its memory a subtask uses, and when it stops reading because of that.

x = (queued + state bytes) / budget (C-MR, section 6). C-MR's machine swaps beyond it; here reading stops,
Spark's shuffle stops behind it, and the figures say for how long. Work itself needs some memory for a moment, so
the budget is what may be held, not what the process takes.
"""

from __future__ import annotations

_MIN_ROOM = 64
"""Sources are read again when one part of so many is free, or they would be read record by record."""
_FIRST_ROWS = 1024
"""Rows of a poll while nobody knows how large they are, or although memory is used up by state alone."""


class Pressure:
    """The memory of one subtask. Without a budget only what is queued counts, against ``queue_bytes``."""

    def __init__(self, budget_bytes: int | None, queue_bytes: int) -> None:
        self.limit_bytes = budget_bytes if budget_bytes is not None else queue_bytes
        self.counts_state = budget_bytes is not None
        self.begin(0)

    def begin(self, now_us: int) -> None:
        """A new attempt."""
        self.queued_bytes = self.state_bytes = self.peak_bytes = self.stopped_us = 0
        self._weighed_us, self._stopped = now_us, False

    @property
    def used_bytes(self) -> int:
        return self.queued_bytes + (self.state_bytes if self.counts_state else 0)

    @property
    def used_share(self) -> float:
        """x; more than 1 when a last poll or the state went beyond the limit."""
        return self.used_bytes / self.limit_bytes

    def weigh(self, queued_bytes: int, now_us: int, *, stopped: bool) -> None:
        """Note what is queued, and whether reading stands still."""
        self.queued_bytes = queued_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        if self._stopped:
            self.stopped_us += now_us - self._weighed_us
        self._weighed_us, self._stopped = now_us, stopped

    def poll_rows(self, maximum: int, row_bytes: float | None) -> int:
        """How many rows sources may be asked for, if each of them takes ``row_bytes`` in queues; 0 for none."""
        if row_bytes is None:
            return min(maximum, _FIRST_ROWS)
        room = self.limit_bytes - self.used_bytes
        if room * _MIN_ROOM < self.limit_bytes:
            return 0 if self.queued_bytes else min(maximum, _FIRST_ROWS)
        return min(maximum, max(int(room / row_bytes), 1))
