"""Reduce over sessions: a key's records with no pause of ``gap`` or more between them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.graph.nodes import ReduceNode
from headrace.graph.windows import FOREVER_US, NEVER_US, SessionWindow
from headrace.runtime.batch import Batch
from headrace.runtime.operators import timestamps
from headrace.runtime.reducing import Place, Reduce
from headrace.runtime.usercode import Guard
from headrace.state.grouping import Key, key_codes


class SessionReduce(Reduce):
    """Sessions are table rows whose pane is their start; ``end`` is their last record's time.

    A batch is first cut into runs per key (vectorised); only runs, not records, meet the open
    sessions one by one. Two records belong together if less than the gap lies between them and
    neither came after its source had promised the end of the other's session. ``reach`` is the time
    after which a record still belongs: the gap before the start, or less far back where the session
    has late records. So the answer depends neither on how far other inputs have come nor on the
    order in which records arrive.
    """

    def __init__(self, node: ReduceNode, schema: pa.Schema, out: pa.Schema, guard: Guard, place: Place) -> None:
        super().__init__(node, schema, out, guard, place)
        assert isinstance(node.window, SessionWindow)
        self._gap = node.window.gap_us
        self._open: dict[Key, list[int]] = {}
        self._next_close = FOREVER_US
        self._born_us = 0
        self._runs: list[int] = []

    def extra_columns(self) -> tuple[str, ...]:
        return ("end", "reach")

    def restored(self, slices: list[int]) -> None:
        self._open = {}
        rows = self.table.all_rows()
        for key, row in zip(self.table.keys_of(rows), rows.tolist()):
            self._open.setdefault(key, []).append(row)
        if len(rows):
            self._next_close = int(self.table.extras["end"][rows].min()) + self._gap

    def on_batch(self, port: int, batch: Batch) -> None:
        self._born_us = batch.born_us
        if batch.late is None:
            self._absorb(batch, NEVER_US)
            return
        dropped = batch.times + self._gap <= batch.late
        self.meter.late += int(dropped.sum())
        for promised in np.unique(batch.late[~dropped]).tolist():
            self._absorb(batch.where(~dropped & (batch.late == promised)), promised)

    def _absorb(self, batch: Batch, promised_us: int) -> None:
        if not batch.rows:
            return
        codes, keys = key_codes(self.key_columns(batch.records))
        order = np.lexsort((batch.times, codes))
        sorted_batch, codes = batch.take(order), codes[order]
        times = sorted_batch.times
        breaks = (codes[1:] != codes[:-1]) | (times[1:] - times[:-1] >= self._gap)
        heads = np.flatnonzero(np.concatenate(([True], breaks)))
        tails = np.concatenate((heads[1:], [len(codes)])) - 1
        self._runs = []
        for code, start, end in zip(codes[heads].tolist(), times[heads].tolist(), times[tails].tolist()):
            self._runs.append(self._session(keys[code], start, end, promised_us))
        self.table.add(np.repeat(np.array(self._runs), tails - heads + 1), sorted_batch.records, times)

    def _session(self, key: Key, start: int, end: int, promised_us: int) -> int:
        """The row of the session that ``[start, end]`` belongs to, merged with all it touches."""
        table, ends, reaches = self.table, self.table.extras["end"], self.table.extras["reach"]
        reach = max(start, promised_us) - self._gap
        touching = [row for row in self._open.get(key, ()) if int(ends[row]) > reach and end > int(reaches[row])]
        first = min([start, *table.pane_of(np.array(touching, np.int64)).tolist()])
        last = max([end, *(int(ends[row]) for row in touching)])
        reach = min([reach, *(int(reaches[row]) for row in touching)])
        row = table.intern(first, key)
        for other in touching:
            if other != row:
                table.fold(row, other)
                self._open[key].remove(other)
                if other in self._runs:  # an earlier run of this batch was in the session that now ends here
                    self._runs = [row if taken == other else taken for taken in self._runs]
        table.extras["end"][row], table.extras["reach"][row] = last, reach
        table.mark(np.array([row]))
        rows = self._open.setdefault(key, [])
        if row not in rows:
            rows.append(row)
        self._next_close = min(self._next_close, last + self._gap)
        return row

    def on_watermark(self, watermark_us: int) -> None:
        if self._next_close > watermark_us:
            return
        rows = self.table.all_rows()
        closing = self.table.extras["end"][rows] + self._gap <= watermark_us
        done = rows[closing]
        done = done[np.argsort(self.table.extras["end"][done], kind="stable")]
        if len(done):
            ends = self.table.extras["end"][done] + self._gap
            bounds = [timestamps(self.table.pane_of(done)), timestamps(ends)]
            self.emit(Batch(self.results(done, bounds), ends - 1, self._born_us))
            for key, row in zip(self.table.keys_of(done), done.tolist()):
                self._open[key].remove(row)
                if not self._open[key]:
                    del self._open[key]
            self.table.drop(done)
        left = self.table.all_rows()
        self._next_close = int(self.table.extras["end"][left].min()) + self._gap if len(left) else FOREVER_US
