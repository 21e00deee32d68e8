"""The sources of a subtask as its loop sees them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.runtime.clock import now_us
from headrace.runtime.operators.sources import SourceOperator

_LOOK_AGAIN_US = 2_000
"""How soon a source is polled again that has nothing and cannot say when it will."""


class Sources:
    """All sources of one subtask, in the order of the job; in most stages there are none."""

    def __init__(self, sources: Sequence[SourceOperator]) -> None:
        self._sources = tuple(sources)

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
        return sum(source.poll(max_rows, now_us()) for source in self._sources)

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
