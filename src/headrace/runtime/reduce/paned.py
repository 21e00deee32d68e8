"""Reduce over event-time windows whose reducers can be merged: windows assembled from panes.

A pane, the highest common factor of size and slide, keeps one aggregate per key, which all windows over it share
(C-MR, section 2.5). Beside the panes there is a table by window. What is in it counts for one window, what is in
a pane for all windows over it, and a window that closes merges both: so each record may go either way, and which
way is the cheaper one (``runtime.reduce.forms``) can change at any record without changing an answer.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from headrace.graph.combining import chooses_panes
from headrace.graph.nodes import ReduceNode
from headrace.graph.windowing import NEVER_US, TimeWindow
from headrace.runtime.batch import Batch, Times
from headrace.runtime.operators.eventtimes import (
    closed_until,
    first_end,
    last_end,
    partials_without_closed,
    without_closed,
)
from headrace.runtime.operators.operator import timestamps
from headrace.runtime.operators.usercode import Guard
from headrace.runtime.reduce.forms import Forms
from headrace.runtime.reduce.reduce import PaneReduce, Place
from headrace.state.durable.changes import Store
from headrace.state.grouping import Rows
from headrace.state.index.choosing import Choice
from headrace.state.stores.keyvalues import KeyedStore
from headrace.state.table.panes import Settled, at_pane_zero
from headrace.state.table.rowtable import GroupTable
from headrace.state.table.sliding import MIN_PANES, Sliding

_ROWS_PER_CALL = 65_536
_SLIDING_COST = 3
"""Rows that suffix and prefix touch per key of a window: where keys hardly repeat, its panes have fewer."""


class PanedReduce(PaneReduce):
    """Windows assembled from panes, and from what was added to them one by one.

    ``rest`` holds what counts for single windows: all values while the form is ``windows``, and records that
    came too late for some of their windows but not for all. ``marks`` keeps with each slice up to where its
    windows have been emitted, since panes of sliding windows outlive them. At a cut every subtask has
    seen the same watermark, so the highest mark among the slices loaded holds for all of them.
    """

    def __init__(self, node: ReduceNode, schema: pa.Schema, out: pa.Schema, guard: Guard, place: Place) -> None:
        super().__init__(node, schema, out, guard, place)
        assert isinstance(node.window, TimeWindow)
        self._window = node.window
        self._rest = self.new_table()
        self._marks = KeyedStore(node.name, lambda keys: [int(str(key)) for key in keys])
        self.forms = Forms(node.window) if chooses_panes(node) else None
        panes, slide = node.window.size_us // node.window.pane_us, node.window.every_us // node.window.pane_us
        long = panes >= MIN_PANES and node.memory_bytes is None
        self._sliding = Sliding(panes, slide, self._partial_of, self.new_table) if long else None
        self._keys = 0
        self._held: list[int] = []
        self._closed_us = self._marked_us = NEVER_US
        self._born_us = 0

    def stores(self) -> dict[str, Store]:
        if self._window.tumbling:
            return self.states.stores()
        return {**self.states.stores(), "rest": self._rest, "marks": self._marks}

    def restored(self, slices: list[int]) -> None:
        self._held = slices
        marks = [closed for *_, closed in self._marks.all_of("closed")]
        self._closed_us = self._marked_us = max(marks, default=NEVER_US)
        if self.forms is not None and len(self._rest) > len(self.table):
            self.forms.paned = False

    def give_away(self, slices: frozenset[int]) -> None:
        super().give_away(slices)
        self._held = [slice for slice in self._held if slice not in slices]
        self._forget_merged()

    def adopted(self, slices: frozenset[int]) -> None:
        self._held = sorted({*self._held, *slices})
        marks = [closed for *_, closed in self._marks.all_of("closed")]
        self._closed_us = max([self._closed_us, *marks])
        self._forget_merged()

    def _forget_merged(self) -> None:
        if self._sliding is not None:
            self._sliding.forget()

    @property
    def choice(self) -> Choice | None:
        """The form of the states and why, or under a memory bound their hash engine."""
        return self.forms.choice if self.forms is not None else super().choice

    def on_batch(self, port: int, batch: Batch) -> None:
        self._born_us = batch.born_us
        if batch.late is not None:
            batch = self._sort_out_late(port, batch)
        batch = without_closed(self, port, batch, self._window)
        if not batch.rows:
            return
        panes, rows_before = self.panes_of(batch.times), len(self.table)
        kept, newest = batch, int(panes.max())
        if self.forms is not None and not (held := self.forms.in_panes(panes)).all():
            self._add_to_windows(batch.where(~held), np.full(int((~held).sum()), self._closed_us))
            kept, panes = batch.where(held), panes[held]
        if kept.rows:
            self._note_change(panes)
            self._emit_early(self.states.absorb(kept.records, self.key_columns(kept.records), panes, kept.times))
        if self.forms is not None:
            self.forms.see(newest, batch.rows, kept.rows, len(self.table) - rows_before)

    def panes_of(self, times: Times) -> Times:
        return times // self._window.pane_us

    def on_partial(self, port: int, partial: pa.RecordBatch, born_us: int) -> None:
        self._born_us = born_us
        partial = partials_without_closed(self, partial, self._window)
        panes, rows_before = partial.column(0).to_numpy(), len(self.table)
        kept = partial
        if self.forms is not None and not (held := self.forms.in_panes(panes)).all():
            self._merge_into_windows(partial.filter(pa.array(~held)))
            kept = partial.filter(pa.array(held))
        if kept.num_rows:
            self._note_change(panes)
            self._emit_early(self.states.absorb_partial(kept))
        if self.forms is not None and partial.num_rows:
            self.forms.see(int(panes.max()), partial.num_rows, kept.num_rows, len(self.table) - rows_before)

    def _add_to_windows(self, batch: Batch, after: Times) -> None:
        """Add each record to those of its windows that end ``after`` a time of its own."""

        def add(at: Rows, ends: Times) -> None:
            records = batch.records.take(pa.array(at))
            self._rest.absorb(records, self.key_columns(records), ends, batch.times[at])

        self._in_each_window(batch.times, after, add)

    def _merge_into_windows(self, partial: pa.RecordBatch) -> None:
        """The same for partials: a pane lies in a window as a whole, so its first instant stands for it."""
        starts = partial.column(0).to_numpy() * self._window.pane_us

        def merge(at: Rows, ends: Times) -> None:
            self._rest.absorb_partial(_at_panes(partial.take(pa.array(at)), ends))

        self._in_each_window(starts, np.full(len(starts), self._closed_us), merge)

    def _in_each_window(self, times: Times, after: Times, do: Callable[[Rows, Times], None]) -> None:
        """Call ``do`` with positions and window ends, for a bounded number of pairs at a time."""
        every = self._window.every_us
        first, last = first_end(times, self._window), last_end(times, self._window)
        maximum = int(((last - first) // every).max(initial=-1)) + 1
        step = max(1, _ROWS_PER_CALL // max(len(times), 1))
        for start in range(0, maximum, step):
            ends = first[:, None] + every * np.arange(start, min(start + step, maximum))
            wanted = (ends <= last[:, None]) & (ends > after[:, None])
            at = np.nonzero(wanted)[0]
            if len(at):
                do(at, ends[wanted])

    def _emit_early(self, touched: Rows) -> None:
        """Keys that have reached ``at_least`` within one pane; windows of several panes tell when they end."""
        if self.early and self._window.tumbling:
            rows = self.early_rows(touched)
            for pane in np.unique(self.table.pane_of(rows)).tolist():
                of_pane = rows[self.table.pane_of(rows) == pane]
                self._emit_window(self.table, of_pane, (pane + 1) * self._window.size_us)

    def on_watermark(self, watermark_us: int) -> None:
        while (end := self._next_end()) is not None and end <= watermark_us:
            for table, rows in self._whole(end):
                self._emit_window(table, rows[self.final(table, rows)], end)
                self._keys = len(rows)
                if self.forms is not None:
                    self.forms.closed(len(rows))
            self._rest.drop(self._rest.rows_of(end))
            self._closed_us = end
            for pane in self.states.panes():
                if int(last_end(np.array([pane * self._window.pane_us]), self._window)[0]) > end:
                    break
                self.states.drop_pane(pane)

    def on_cut(self, *, end: bool) -> None:
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

    def _whole(self, end: int) -> Settled:
        """A window's states: its panes merged with what is in ``rest``, in whichever table moves fewer rows."""
        window = self._window
        panes = range((end - window.size_us) // window.pane_us, end // window.pane_us)
        own = self._rest.rows_of(end)
        if len(own) >= len(self.table) and self.node.memory_bytes is None:
            for pane in self.table.panes():
                if pane in panes:
                    rows = self.table.rows_of(pane)
                    self._rest.absorb_partial(_at_panes(self.table.export(rows), np.full(len(rows), end)))
            yield self._rest, self._rest.rows_of(end)
            return
        if self._sliding is None or _SLIDING_COST * self._keys > len(self.table):
            yield from self.states.settled(panes, self._rest.export(own) if len(own) else None)
            return
        merged = self._sliding.window(panes.start)
        if len(own):
            self._sliding.forget()  # the table may be its own
            merged.absorb_partial(at_pane_zero(self._rest.export(own)))
        yield merged, merged.rows_of(0)

    def _partial_of(self, pane: int) -> pa.RecordBatch | None:
        rows = self.table.rows_of(pane)
        return self.table.export(rows) if len(rows) else None

    def _note_change(self, panes: Times) -> None:
        """A pane below those that are merged already can only be one that a silent partition left open."""
        if self._sliding is not None and int(panes.min()) < self._sliding.upto:
            self._sliding.forget()

    def _emit_window(self, table: GroupTable, rows: Rows, end: int) -> None:
        if len(rows):
            n = len(rows)
            bounds = [timestamps(end - self._window.size_us, n), timestamps(end, n)]
            self.emit(Batch(self.results(rows, bounds, table), np.full(n, end - 1), self._born_us))

    def _sort_out_late(self, port: int, batch: Batch) -> Batch:
        """What is in time for all its windows; what is so for some of them is added to these.

        A window that has been emitted stays closed, also for a partition that was silent and whose watermark is lower.
        """
        reached = np.maximum(closed_until(self, batch), self._closed_us)
        too_late = last_end(batch.times, self._window) <= reached
        batch, reached = self.without_late(port, batch, too_late), reached[~too_late]
        some = first_end(batch.times, self._window) <= reached
        if some.any():
            self._add_to_windows(batch.where(some), reached[some])
        return batch.where(~some)


def _at_panes(partial: pa.RecordBatch, panes: Times) -> pa.RecordBatch:
    """Partials with other panes."""
    return partial.set_column(0, partial.schema.field(0), pa.array(panes))
