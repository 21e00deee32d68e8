"""The sources of a subtask as its loop sees them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pyarrow as pa

from headrace.runtime.clock import now_us
from headrace.runtime.operators.sources import SourceOperator

_LOOK_AGAIN_US = 2_000
"""How soon a source is polled again that has nothing and cannot say when it will."""

_FIRST_ROWS = 512
_LONGEST_POLL_US = 50_000
"""A cut is made between two polls, so what is asked for has to be read, and go through the steps behind, in that time."""
_GROWTH = 4


class PollSize:
    """How many rows a poll may ask for so that it takes 50 ms at most; follows what polls have taken."""

    def __init__(self) -> None:
        self.rows = _FIRST_ROWS

    def took(self, rows: int, elapsed_us: int) -> None:
        """A poll read so many rows. Only one that took too long, or could have read more, says anything."""
        if elapsed_us > _LONGEST_POLL_US and rows:
            self.rows = max(rows * _LONGEST_POLL_US // elapsed_us, 1)
        elif rows >= self.rows:
            self.rows = min(self.rows * _LONGEST_POLL_US // max(elapsed_us, 1), self.rows * _GROWTH)


class Sources:
    """All sources of one subtask, in the order of the job; in most stages there are none."""

    def __init__(self, sources: Sequence[SourceOperator]) -> None:
        self._sources = tuple(sources)
        self.size = PollSize()

    def __bool__(self) -> bool:
        return bool(self._sources)

    @property
    def exhausted(self) -> bool:
        return all(source.exhausted for source in self._sources)

    @property
    def paced(self) -> bool:
        """Whether it is known when the next record is due: until then there is nothing to look for."""
        return all(source.exhausted or source.next_due_us() is not None for source in self._sources)

    def poll(self, max_rows: int) -> int:
        """Read up to so many rows from each; returns how many there were."""
        began_ns = time.perf_counter_ns()
        rows = sum(source.poll(max_rows, now_us()) for source in self._sources)
        self.size.took(rows, (time.perf_counter_ns() - began_ns) // 1000)
        return rows

    def take_external(self, number: int, records: pa.RecordBatch) -> None:
        """Records of one of the sources that Spark itself read."""
        self._sources[number].take_external(records, now_us())

    def wait_us(self, now: int, patience_us: int) -> int | None:
        """How long polling may wait, if what is due may wait so patiently: one poll then takes it all."""
        waits = []
        for source in self._sources:
            due_us = source.next_due_us()
            if due_us is not None:
                waits.append(due_us + patience_us - now)
            elif not source.exhausted:
                waits.append(_LOOK_AGAIN_US)
        return min(waits, default=None)
