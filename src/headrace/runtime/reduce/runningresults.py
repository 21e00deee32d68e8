"""Running results: a result per key over all records so far."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headrace.graph.windowing import FOREVER_US
from headrace.runtime.batch import Batch, Times
from headrace.runtime.reduce.keystates import KeyStep
from headrace.state.grouping import Rows
from headrace.state.table.rowtable import GroupTable


class RunningStates:
    """One row per key. A result follows whenever it changed or, if not ``eager``, at the next cut."""

    patience_us = None
    row_bytes = 1

    def __init__(self, step: KeyStep, table: GroupTable, *, eager: bool) -> None:
        self._step, self.table, self._eager = step, table, eager
        self._changed = np.zeros(0, bool)

    @property
    def nbytes(self) -> int:
        return self._changed.nbytes

    def take(self, batch: Batch) -> Iterator[Batch]:
        keys = self._step.key_columns(batch.records)
        yield from self._follow(self.table.absorb(batch.records, keys, 0, batch.times))

    def take_partial(self, partial: pa.RecordBatch) -> Iterator[Batch]:
        yield from self._follow(self.table.absorb_partial(partial))

    def close(self, watermark_us: int) -> Iterator[Batch]:
        yield from ()

    def end(self) -> Iterator[Batch]:
        yield from self.parting(np.flatnonzero(self._changed))

    def rows_of(self, keys: list[pa.Array]) -> Rows:
        rows = self.table.index.find(keys, 0)
        return rows[rows >= 0]

    def loaded(self, rows: Rows) -> None:
        """The table is all there is."""

    def leaving(self, rows: Rows) -> None:
        """The table is all there is."""

    def parting(self, rows: Rows) -> Iterator[Batch]:
        rows = rows[rows < len(self._changed)]
        rows = rows[self._changed[rows]]
        self._changed[rows] = False
        if len(rows):
            yield self._result(rows)

    def drop(self, rows: Rows) -> None:
        self.table.drop(rows)

    def due_us(self, rows: Rows) -> int:
        return FOREVER_US

    def waits_us(self, times: Times) -> int:
        return FOREVER_US

    def _follow(self, of_record: Rows) -> Iterator[Batch]:
        rows = np.unique(of_record)
        if self._eager:
            yield self._result(rows)
            return
        if (more := self.table.index.capacity - len(self._changed)) > 0:
            self._changed = np.concatenate((self._changed, np.zeros(more, bool)))
        self._changed[rows] = True

    def _result(self, rows: Rows) -> Batch:
        results = self._step.results(rows, [], self.table)
        return Batch(results, np.full(len(rows), self._step.newest_us), self._step.born_us)
