"""Reduce over event-time windows that tumble or slide.

Where the reducers can be merged, each pane (highest common factor of size and slide) keeps one
aggregate and windows are assembled from panes (C-MR, section 2.5). Otherwise, and for versioned
windows, each window keeps its own. Windows close in the order of their ends, when the watermark
has passed, whether or not data arrives.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.graph.nodes import ReduceNode
from headrace.graph.windows import NEVER_US, TimeWindow
from headrace.runtime.batch import Batch, Times
from headrace.runtime.operators import Operator, timestamps
from headrace.runtime.reducing import Place, Reduce, make_table
from headrace.runtime.usercode import Guard
from headrace.state.changes import Store
from headrace.state.grouping import Rows
from headrace.state.keyed import KeyedStore
from headrace.state.table import GroupTable


def first_end(times: Times, window: TimeWindow) -> Times:
    """End of the first window that contains each time."""
    return (times // window.every_us + 1) * window.every_us


def last_end(times: Times, window: TimeWindow) -> Times:
    """End of the last window that contains each time."""
    return (times + window.size_us) // window.every_us * window.every_us


def without_closed(operator: Operator, batch: Batch, window: TimeWindow) -> Batch:
    """Drop and count records whose windows have all been emitted.

    Only a source that was silent and comes back with old records can send such.
    """
    reached = operator.watermark_us
    if not batch.rows or int(batch.times.min()) + window.size_us > reached:
        return batch
    closed = last_end(batch.times, window) <= reached
    operator.meter.late += int(closed.sum())
    return batch.where(~closed) if closed.any() else batch


class PanedReduce(Reduce):
    """Windows assembled from panes.

    ``rest`` holds records that came too late for some of their windows but not for all: these are
    added window by window, so that the answer does not depend on how far other inputs have come.
    ``marks`` keeps with each slice up to where its windows have been emitted, since panes of
    sliding windows outlive them. At an epoch's end every subtask has seen the same watermark, so
    the highest mark among the slices loaded holds for all of them.
    """

    def __init__(self, node: ReduceNode, schema: pa.Schema, out: pa.Schema, guard: Guard, place: Place) -> None:
        super().__init__(node, schema, out, guard, place)
        assert isinstance(node.window, TimeWindow)
        self._window = node.window
        self._rest = make_table(node, schema, out, guard, place.slices)
        self._marks = KeyedStore(node.name, lambda keys: [int(str(key)) for key in keys])
        self._held: list[int] = []
        self._closed_us = self._marked_us = NEVER_US
        self._born_us = 0

    def stores(self) -> dict[str, Store]:
        if self._window.tumbling:
            return self.states.stores()
        return {**self.states.stores(), "rest": self._rest, "marks": self._marks}

    def restored(self, slices: list[int]) -> None:
        self._held = slices
        marks = [closed for _, _, closed in self._marks.all_of("closed")]
        self._closed_us = self._marked_us = max(marks, default=NEVER_US)

    def on_batch(self, port: int, batch: Batch) -> None:
        self._born_us = batch.born_us
        if batch.late is not None:
            batch = self._sort_out_late(batch)
        batch = without_closed(self, batch, self._window)
        if batch.rows:
            panes = self.panes_of(batch.times)
            self._emit_early(self.states.absorb(batch.records, self.key_columns(batch.records), panes, batch.times))

    def panes_of(self, times: Times) -> Times:
        return times // self._window.pane_us

    def receive_partial(self, port: int, partial: pa.RecordBatch, born_us: int) -> None:
        self._born_us = born_us
        self.meter.items_in += partial.num_rows
        self._emit_early(self.states.absorb_partial(partial))

    def _emit_early(self, touched: Rows) -> None:
        """Keys that have reached ``at_least`` within one pane; windows of several panes tell when they end."""
        if self.early and self._window.tumbling:
            rows = self.early_rows(touched)
            for pane in np.unique(self.table.pane_of(rows)).tolist():
                of_pane = rows[self.table.pane_of(rows) == pane]
                self._emit_window(self.table, of_pane, (pane + 1) * self._window.size_us)

    def on_watermark(self, watermark_us: int) -> None:
        while (end := self._next_end()) is not None and end <= watermark_us:
            self._close(end)
            self._closed_us = end
            for pane in self.states.panes():
                if int(last_end(np.array([pane * self._window.pane_us]), self._window)[0]) > end:
                    break
                self.states.drop_pane(pane)

    def on_epoch_end(self) -> None:
        if not self._window.tumbling and self._closed_us != self._marked_us:
            self._marked_us = self._closed_us
            for slice in self._held:
                self._marks.set("closed", slice, None, self._closed_us)

    def _next_end(self) -> int | None:
        """The earliest window that may have something to emit."""
        ends = self._rest.panes()[:1]
        panes = self.states.panes()
        if panes:
            first = int(first_end(np.array([panes[0] * self._window.pane_us]), self._window)[0])
            ends.append(max(first, self._closed_us + self._window.every_us))
        return min(ends, default=None)

    def _close(self, end: int) -> None:
        window = self._window
        first, last = (end - window.size_us) // window.pane_us, end // window.pane_us
        late = self._rest.rows_of(end)
        rest = self._rest.export(late) if len(late) else None
        for table, rows in self.states.settled(range(first, last), rest):
            self._emit_window(table, rows[self.final(table, rows)], end)
        self._rest.drop(late)

    def _emit_window(self, table: GroupTable, rows: Rows, end: int) -> None:
        if len(rows):
            n = len(rows)
            bounds = [timestamps(end - self._window.size_us, n), timestamps(end, n)]
            self.emit(Batch(self.results(rows, bounds, table), np.full(n, end - 1), self._born_us))

    def _sort_out_late(self, batch: Batch) -> Batch:
        """Drop and count what is too late for all its windows; keep what is in time for all."""
        assert batch.late is not None
        first, last = first_end(batch.times, self._window), last_end(batch.times, self._window)
        dropped = last <= batch.late
        self.meter.late += int(dropped.sum())
        some = ~dropped & (first <= batch.late)
        if some.any():
            part, ends, late = batch.where(some), first[some], batch.late[some]
            while True:
                inside = ends <= last[some]
                if not inside.any():
                    break
                timely = part.where(inside & (ends > late))
                if timely.rows:
                    panes = ends[inside & (ends > late)]
                    self._rest.absorb(timely.records, self.key_columns(timely.records), panes, timely.times)
                ends = ends + self._window.every_us
        return batch.where(~dropped & ~some)


class DirectReduce(Reduce):
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
        if not window.versioned:
            batch = without_closed(self, batch, window)
        self._born_us = batch.born_us
        ends, last = first_end(batch.times, window), last_end(batch.times, window)
        if batch.late is not None:
            reach = batch.late - (window.keep_us if window.versioned else 0)
            self.meter.late += int((last <= reach).sum())
        else:
            reach = np.full(batch.rows, NEVER_US)
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
