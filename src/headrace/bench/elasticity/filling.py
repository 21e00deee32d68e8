"""A source that fills a job's state, then paces it, then gives it as much as it can take: one curve point in one run.

State of gigabytes has to be there before anything is measured. Records that fill it are whole panes, so that this takes
seconds; what they are is the workload's affair.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.connect.source import Offset, Poll, Reader

Ints = npt.NDArray[np.int64]
_FILL_ROWS = 256
"""Records of filling are large: so many at once, at most."""
_REST_US = 4_000_000
"""After filling and before the burst, so that what was delayed is over."""


@dataclass(frozen=True, slots=True)
class Phases:
    """``fill`` records that make the state, ``paced`` ones at ``rate`` per second, ``burst`` ones as fast as they are taken."""

    fill: int
    paced: int
    burst: int
    rate: int

    @property
    def total(self) -> int:
        return self.fill + self.paced + self.burst

    def event_us(self, numbers: Ints) -> Ints:
        """Event time: what fills is of the beginning, the others come ``rate`` per second."""
        return np.maximum(numbers - self.fill, 0) * 1_000_000 // self.rate


class FillingLoad(Protocol):
    """What records are, by their numbers; ``due_us`` is 0 of those that fill, and of the burst when it began."""

    @property
    def phases(self) -> Phases: ...

    def schema(self) -> pa.Schema: ...

    def batch(self, numbers: Ints, due_us: Ints) -> pa.RecordBatch: ...


@dataclass(frozen=True, slots=True)
class FillingSource:
    """A workload as a source of one partition: records of a key keep their order."""

    workload: FillingLoad

    @property
    def bounded(self) -> bool:
        return True

    @property
    def live(self) -> bool:
        return False

    def partitions(self, parallelism: int) -> int:
        return 1

    def schema(self) -> pa.Schema:
        return self.workload.schema()

    def sample(self, rows: int) -> pa.RecordBatch:
        return self.workload.batch(np.arange(min(rows, self.workload.phases.total)), np.zeros(rows, np.int64))

    def open(self, partition: int, of: int, offset: Offset | None, schema: pa.Schema, log_dir: Path) -> Reader:
        return FillingReader(self.workload, offset)

    def describe(self) -> str:
        phases = self.workload.phases
        return f"{phases.fill} records that fill, {phases.paced} at {phases.rate}/s, {phases.burst} at once"


class FillingReader:
    """Its offset is the next number, and when the paced records began."""

    def __init__(self, workload: FillingLoad, offset: Offset | None) -> None:
        self._workload, self._phases = workload, workload.phases
        self._next: int = offset["next"] if offset else 0
        self._start_us: int | None = offset["start_us"] if offset else None

    def poll(self, max_rows: int, now_us: int) -> Poll | None:
        rows = min(_FILL_ROWS if self._next < self._phases.fill else max_rows, self._due(now_us) - self._next)
        if rows <= 0:
            return None
        numbers = np.arange(self._next, self._next + rows)
        self._next += rows
        due_us = self._due_us(numbers)
        batch = self._workload.batch(numbers, due_us)
        return Poll(batch, int(due_us[0]), last_due_us=int(due_us[-1])) if due_us[0] else Poll(batch)

    def _due(self, now_us: int) -> int:
        """All numbers below are due."""
        phases = self._phases
        if self._next < phases.fill:
            return phases.fill
        if self._start_us is None:
            self._start_us = now_us + _REST_US
        burst_from, elapsed_us = phases.fill + phases.paced, now_us - self._start_us
        if self._next >= burst_from:
            return phases.total if elapsed_us >= self._burst_after_us else burst_from
        return min(phases.fill + (elapsed_us * phases.rate // 1_000_000 + 1 if elapsed_us >= 0 else 0), burst_from)

    @property
    def _burst_after_us(self) -> int:
        """From the first paced record to the burst."""
        return self._phases.paced * 1_000_000 // self._phases.rate + _REST_US

    def _due_us(self, numbers: Ints) -> Ints:
        if self._start_us is None:
            return np.zeros(len(numbers), np.int64)
        paced = numbers - self._phases.fill
        after_us = np.where(paced < self._phases.paced, paced * 1_000_000 // self._phases.rate, self._burst_after_us)
        return self._start_us + after_us

    def offset(self) -> Offset:
        return {"next": self._next, "start_us": self._start_us}

    @property
    def exhausted(self) -> bool:
        return self._next >= self._phases.total

    def next_due_us(self) -> int | None:
        return None if self._start_us is None or self.exhausted else int(self._due_us(np.array([self._next]))[0])

    def close(self) -> None:
        """Nothing is held open."""
