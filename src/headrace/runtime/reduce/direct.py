"""Reduce over event-time windows that tumble or slide: each window keeps its own aggregate.

Where the reducers can be merged, ``runtime.reduce.paned`` takes this place. Windows close in the order of
their ends, when the watermark has passed, whether or not data arrives.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.graph.nodes import ReduceNode
from headrace.graph.windowing import TimeWindow
from headrace.runtime.batch import Batch, Times
from headrace.runtime.operators.eventtimes import closed_until, first_end, last_end
from headrace.runtime.operators.operator import timestamps
from headrace.runtime.operators.usercode import Guard
from headrace.runtime.reduce.reduce import PaneReduce, Place
from headrace.state.grouping import Rows
from headrace.state.table.rowtable import GroupTable


class DirectReduce(PaneReduce):
    """Every window keeps its own aggregate: reducers without combine, and versioned windows."""

    def __init__(self, node: ReduceNode, schema: pa.Schema, out: pa.Schema, guard: Guard, place: Place) -> None:
        assert isinstance(node.window, TimeWindow)
        self._window = node.window
        super().__init__(node, schema, out, guard, place)
        self._born_us = 0

    def extra_columns(self) -> tuple[str, ...]:
        return (*super().extra_columns(), *(("version", "on_time", "records") if self._window.versioned else ()))

    def panes_of(self, times: Times) -> Times:
        return first_end(times, self._window)

    def on_batch(self, port: int, batch: Batch) -> None:
        window = self._window
        self._born_us = batch.born_us
        reach = closed_until(self, batch) - (window.keep_us if window.versioned else 0)
        too_late = last_end(batch.times, window) <= reach
        batch, reach = self.without_late(port, batch, too_late), reach[~too_late]
        ends, last = first_end(batch.times, window), last_end(batch.times, window)
        touched = []
        while True:
            inside = (ends <= last) & (ends > reach)
            if not (ends <= last).any():
                break
            if inside.any():
                touched.append(self._absorb(batch.where(inside), ends[inside]))
            ends = ends + window.every_us
        if touched:
            self._emit_now(np.unique(np.concatenate(touched)))

    def _absorb(self, part: Batch, ends: Times) -> Rows:
        of_record = self.states.absorb(part.records, self.key_columns(part.records), ends, part.times)
        rows, counts = np.unique(of_record[of_record >= 0], return_counts=True)
        if self._window.versioned:
            self.table.extras["records"][rows] += counts
        return rows

    def _emit_now(self, rows: Rows) -> None:
        """Early results, and new versions of windows that were emitted before."""
        if self._window.versioned:
            revised = rows[self.table.extras["version"][rows] > 0]
            for end in np.unique(self.table.pane_of(revised)).tolist():
                self._emit_window(revised[self.table.pane_of(revised) == end], end)
        if self.early:
            early = self.early_rows(rows)
            for end in np.unique(self.table.pane_of(early)).tolist():
                self._emit_window(early[self.table.pane_of(early) == end], end)

    def on_watermark(self, watermark_us: int) -> None:
        keep = self._window.keep_us if self._window.versioned else 0
        for end in self.states.panes():
            if end > watermark_us:
                break
            for table, rows in self.states.settled([end]):
                wanted = rows[self.final(table, rows)]
                if self._window.versioned:
                    wanted = wanted[table.extras["version"][wanted] == 0]
                    table.extras["on_time"][wanted] = table.extras["records"][wanted]
                if len(wanted):
                    self._emit_window(wanted, end, table)
            if end + keep <= watermark_us:
                self.states.drop_pane(end)

    def _emit_window(self, rows: Rows, end: int, table: GroupTable | None = None) -> None:
        n = len(rows)
        middle = [timestamps(end - self._window.size_us, n), timestamps(end, n)]
        late = None
        if self._window.versioned:
            extras = self.table.extras
            version, on_time, records = (extras[name][rows] for name in ("version", "on_time", "records"))
            middle += [pa.array(version), pa.array(on_time / np.maximum(records, 1))]
            if int(version.max()) > 0:
                late = np.full(n, max(self.watermark_us, end - 1))
            extras["version"][rows] += 1
            self.table.mark(rows)
        self.emit(Batch(self.results(rows, middle, table), np.full(n, end - 1), self._born_us, late))
