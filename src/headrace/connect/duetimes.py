"""When the records of a replay are due: at once, at a rate, or by the times recorded in them."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headrace.connect.pace import Ints, Pace
from headrace.connect.reading.times import column_us


class Schedule(Protocol):
    """Decides how many of the rows that are next may go now. Its state is JSON data, part of the offset."""

    def start(self, now_us: int) -> None:
        """The first call sets the time that all others count from."""
        ...

    def due(self, rows: pa.RecordBatch, now_us: int) -> tuple[int, int | None]:
        """How many of the rows that are next are due, and since when the first one is."""
        ...

    def take(self, rows: int) -> int | None:
        """So many of them were handed over; returns when the last of them was due."""
        ...

    def next_due_us(self) -> int | None: ...

    def state(self) -> dict[str, Any]: ...

    def resume(self, state: dict[str, Any]) -> None: ...


class Unscheduled:
    """As fast as rows are taken."""

    def start(self, now_us: int) -> None:
        """No time counts."""

    def due(self, rows: pa.RecordBatch, now_us: int) -> tuple[int, int | None]:
        return rows.num_rows, None

    def take(self, rows: int) -> int | None:
        return None

    def next_due_us(self) -> int | None:
        return None

    def state(self) -> dict[str, Any]:
        return {}

    def resume(self, state: dict[str, Any]) -> None:
        """Nothing was kept."""


class ByRate:
    """Record ``k`` of partition ``p`` of ``P`` is record ``k P + p`` of the whole, and due when that one is."""

    def __init__(self, pace: Pace, partition: int, of: int) -> None:
        self._pace, self._of = pace, of
        self._next = partition
        self._start_us: int | None = None

    def start(self, now_us: int) -> None:
        if self._start_us is None:
            self._start_us = now_us

    def due(self, rows: pa.RecordBatch, now_us: int) -> tuple[int, int | None]:
        assert self._start_us is not None
        if rows.num_rows == 0:
            return 0, None
        count = -((self._next - self._pace.count_due(now_us - self._start_us)) // self._of)
        return min(count, rows.num_rows), self.next_due_us()

    def take(self, rows: int) -> int | None:
        self._next += rows * self._of
        return self._due_us(self._next - self._of) if rows else None

    def next_due_us(self) -> int | None:
        return self._due_us(self._next)

    def _due_us(self, number: int) -> int | None:
        if self._start_us is None:
            return None
        return self._start_us + int(self._pace.due_us(np.array([number]))[0])

    def state(self) -> dict[str, Any]:
        return {"start_us": self._start_us, "next": self._next}

    def resume(self, state: dict[str, Any]) -> None:
        self._start_us, self._next = state["start_us"], state["next"]


class ByRecordedTime:
    """A record is due as long after the start as its time lies after ``origin_us``, divided by ``speed``.

    Records keep their stored order: one with an earlier time than its predecessor is due with it.
    """

    def __init__(self, column: str, speed: float, origin_us: int) -> None:
        self._column, self._speed, self._origin_us = column, speed, origin_us
        self._start_us: int | None = None
        self._latest_us = 0
        self._due_us: Ints = np.empty(0, dtype=np.int64)

    def start(self, now_us: int) -> None:
        if self._start_us is None:
            self._start_us = now_us

    def due(self, rows: pa.RecordBatch, now_us: int) -> tuple[int, int | None]:
        assert self._start_us is not None
        if rows.num_rows == 0:
            return 0, None
        if len(self._due_us) == 0:
            recorded_us = column_us(rows.column(self._column), self._origin_us) - self._origin_us
            due_us = (recorded_us / self._speed).astype(np.int64)
            self._due_us = np.maximum.accumulate(np.maximum(due_us, self._latest_us))
        count = int(np.searchsorted(self._due_us, now_us - self._start_us, side="right"))
        return count, self._start_us + int(self._due_us[0])

    def take(self, rows: int) -> int | None:
        if not rows or self._start_us is None:
            return None
        self._latest_us = int(self._due_us[rows - 1])
        self._due_us = self._due_us[rows:]
        return self._start_us + self._latest_us

    def next_due_us(self) -> int | None:
        if self._start_us is None or len(self._due_us) == 0:
            return None
        return self._start_us + int(self._due_us[0])

    def state(self) -> dict[str, Any]:
        return {"start_us": self._start_us, "latest_us": self._latest_us}

    def resume(self, state: dict[str, Any]) -> None:
        self._start_us, self._latest_us = state["start_us"], state["latest_us"]
