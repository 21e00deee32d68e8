"""Count windows: a result for every n records of a key, in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headrace.graph.windowing import FOREVER_US
from headrace.runtime.batch import Batch, Times
from headrace.runtime.reduce.keystates import KeyStep
from headrace.state.grouping import Rows, key_codes
from headrace.state.table.panes import at_pane_zero
from headrace.state.table.rowtable import GroupTable


class CountStates:
    """A key's open window is its row in pane 0; windows that a batch goes on to fill have the panes after it."""

    extras = ("filled",)
    patience_us = None
    nbytes = row_bytes = 0

    def __init__(self, step: KeyStep, table: GroupTable, n: int) -> None:
        self._step, self.table, self._n = step, table, n

    def take(self, batch: Batch) -> Iterator[Batch]:
        keys, table = self._step.key_columns(batch.records), self.table
        opened = table.index.find(keys, 0)
        place = np.where(opened >= 0, table.extras["filled"][opened], 0) + _ranks(keys)
        of_record = table.absorb(batch.records, keys, place // self._n, batch.times)
        rows, counts = np.unique(of_record, return_counts=True)
        table.extras["filled"][rows] += counts
        full = table.extras["filled"][rows] == self._n
        done, open_rows = rows[full], rows[~full]
        if len(done):
            last = np.flatnonzero(place % self._n == self._n - 1)  # results have the times of these records
            last = last[np.argsort(of_record[last])][np.argsort(table.pane_of(done), kind="stable")]
            results = batch.take(last).with_records(self._step.results(of_record[last], [], table))
            table.drop(done)
            self._move_to_front(open_rows[table.pane_of(open_rows) > 0])
            yield results

    def take_partial(self, partial: pa.RecordBatch) -> Iterator[Batch]:
        raise NotImplementedError("records are not combined before they are counted")

    def close(self, watermark_us: int) -> Iterator[Batch]:
        yield from ()

    def end(self) -> Iterator[Batch]:
        yield from ()

    def rows_of(self, keys: list[pa.Array]) -> Rows:
        rows = self.table.index.find(keys, 0)
        return rows[rows >= 0]

    def loaded(self, rows: Rows) -> None:
        """The table is all there is."""

    def leaving(self, rows: Rows) -> None:
        """The table is all there is."""

    def parting(self, rows: Rows) -> Iterator[Batch]:
        yield from ()

    def drop(self, rows: Rows) -> None:
        self.table.drop(rows)

    def due_us(self, rows: Rows) -> int:
        return FOREVER_US

    def waits_us(self, times: Times) -> int:
        return int(times.min())

    def _move_to_front(self, rows: Rows) -> None:
        """Rows to pane 0, where nothing is left of their keys."""
        if len(rows):
            moved = at_pane_zero(self.table.export(rows))
            self.table.drop(rows)
            self.table.absorb_partial(moved)


def _ranks(keys: list[pa.Array]) -> Rows:
    """Of each record, how many of its key came before it in the batch."""
    codes, values = key_codes(keys)
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes, minlength=len(values))
    ranks = np.empty(len(codes), np.int64)
    ranks[order] = np.arange(len(codes)) - np.repeat(np.cumsum(counts) - counts, counts)
    return ranks
