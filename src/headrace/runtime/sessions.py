"""Sessions: a key's records with no pause of ``gap`` or more between them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headrace.graph.windows import FOREVER_US, NEVER_US
from headrace.runtime.batch import Batch, Times
from headrace.runtime.keystates import Step
from headrace.runtime.operators import timestamps
from headrace.state.grouping import Rows
from headrace.state.sessionlists import SessionLists
from headrace.state.table import GroupTable


class SessionStates:
    """Sessions are table rows whose pane is their start; ``end`` is their last record's time.

    A batch is first cut into runs per key (vectorised); only runs, not records, meet the open
    sessions one by one. Two records belong together if less than the gap lies between them and
    neither came after its source had promised the end of the other's session. ``reach`` is the time
    after which a record still belongs: the gap before the start, or less far back where the session
    has late records. So the answer depends neither on how far other inputs have come nor on the
    order in which records arrive.
    """

    extras = ("end", "reach")

    def __init__(self, step: Step, table: GroupTable, gap_us: int) -> None:
        self._step, self.table, self._gap = step, table, gap_us
        self.patience_us = gap_us
        self._open = SessionLists(table)
        self._next_close = FOREVER_US
        self._runs: list[int] = []

    @property
    def nbytes(self) -> int:
        return self._open.nbytes

    @property
    def row_bytes(self) -> int:
        return self._open.row_bytes

    def without_late(self, batch: Batch) -> tuple[Batch, int]:
        """The records whose session may still be open, and how many were dropped."""
        if batch.late is None:
            return batch, 0
        dropped = batch.times + self._gap <= batch.late
        return batch.where(~dropped), int(dropped.sum())

    def take(self, batch: Batch) -> Iterator[Batch]:
        if batch.late is None:
            self._absorb(batch, NEVER_US)
        else:
            for promised in np.unique(batch.late).tolist():
                self._absorb(batch.where(batch.late == promised), promised)
        yield from ()

    def take_partial(self, partial: pa.RecordBatch) -> Iterator[Batch]:
        raise NotImplementedError("records are not combined before their session is known")

    def close(self, watermark_us: int) -> Iterator[Batch]:
        if self._next_close > watermark_us:
            return
        rows, table = self.table.all_rows(), self.table
        done = rows[table.extras["end"][rows] + self._gap <= watermark_us]
        done = done[np.argsort(table.extras["end"][done], kind="stable")]
        results = None
        if len(done):
            ends = table.extras["end"][done] + self._gap
            bounds = [timestamps(table.pane_of(done)), timestamps(ends)]
            results = Batch(self._step.results(done, bounds, table), ends - 1, self._step.born_us)
            self.drop(done)
        self._next_close = self.due_us(table.all_rows()) + 1
        if results is not None:
            yield results

    def end(self) -> Iterator[Batch]:
        yield from ()

    def rows_of(self, keys: list[pa.Array]) -> Rows:
        return self._open.rows_of(keys)

    def loaded(self, rows: Rows) -> None:
        self._open.add(rows)
        self._next_close = min(self._next_close, self.due_us(rows) + 1)

    def parting(self, rows: Rows) -> Iterator[Batch]:
        yield from ()

    def drop(self, rows: Rows) -> None:
        self._open.remove(rows)
        self.table.drop(rows)

    def due_us(self, rows: Rows) -> int:
        return int(self.table.extras["end"][rows].min()) + self._gap - 1 if len(rows) else FOREVER_US

    def waits_us(self, times: Times) -> int:
        return int(times.min()) + self._gap - 1

    def _absorb(self, batch: Batch, promised_us: int) -> None:
        if not batch.rows:
            return
        users = self._open.users(self._step.key_columns(batch.records))
        order = np.lexsort((batch.times, users))
        sorted_batch, users = batch.take(order), users[order]
        keys, times = self._step.key_columns(sorted_batch.records), sorted_batch.times
        breaks = (users[1:] != users[:-1]) | (times[1:] - times[:-1] >= self._gap)
        heads = np.flatnonzero(np.concatenate(([True], breaks)))
        tails = np.concatenate((heads[1:], [len(users)])) - 1
        self._runs = []
        for user, head, start, end in zip(*(a.tolist() for a in (users[heads], heads, times[heads], times[tails]))):
            key = [column.slice(head, 1) for column in keys]
            self._runs.append(self._session(user, key, start, end, promised_us))
        self.table.add(np.repeat(np.array(self._runs), tails - heads + 1), sorted_batch.records, times)

    def _session(self, user: int, key: list[pa.Array], start: int, end: int, promised_us: int) -> int:
        """The row of the session that ``[start, end]`` belongs to, merged with all it touches."""
        table, ends, reaches = self.table, self.table.extras["end"], self.table.extras["reach"]
        reach = max(start, promised_us) - self._gap
        rows = self._open.of(user)
        touching = [row for row in rows if int(ends[row]) > reach and end > int(reaches[row])]
        first = min([start, *table.pane_of(np.array(touching, np.int64)).tolist()])
        last = max([end, *(int(ends[row]) for row in touching)])
        reach = min([reach, *(int(reaches[row]) for row in touching)])
        row = int(table.admit(key, first).rows[0])
        for other in touching:
            if other != row:
                self._open.take_off(user, other)
                table.fold(row, other)
                if other in self._runs:  # an earlier run of this batch was in the session that now ends here
                    self._runs = [row if taken == other else taken for taken in self._runs]
        table.extras["end"][row], table.extras["reach"][row] = last, reach
        table.mark(np.array([row]))
        if row not in rows:
            self._open.put_on(user, row)
        self._next_close = min(self._next_close, last + self._gap)
        return row
