"""Panes that several windowed reduce steps share: each record is added once (C-MR, section 2.6)."""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.graph.nodes import ReduceNode
from headrace.graph.windowing import TimeWindow
from headrace.runtime.batch import Batch, Times
from headrace.runtime.clock import now_us
from headrace.runtime.operators.operator import Operator
from headrace.runtime.operators.usercode import Guard
from headrace.runtime.reduce.reduce import PaneReduce, Place


class SharedPanes(PaneReduce):
    """The reduce of a ``PaneNode``: hands each pane's aggregates on to the steps that share it, once it has ended.

    What is not in time for its pane is handed on at once and as it is: which of their windows it is too late for
    is for the steps to say.
    """

    def __init__(
        self, node: ReduceNode, schema: pa.Schema, guard: Guard, place: Place, readers: Iterable[ReduceNode]
    ) -> None:
        super().__init__(node, schema, pa.schema([]), guard, place)
        assert isinstance(node.window, TimeWindow)
        self._pane_us = node.window.size_us
        self._born_us = 0
        self._views = {reader.name: self._view(reader) for reader in readers}

    def on_batch(self, port: int, batch: Batch) -> None:
        self._born_us = batch.born_us
        if batch.late is not None:
            self.emit(batch)
            return
        ended = self._ended(batch.times // self._pane_us)
        if ended.any():
            self.emit(batch.where(ended))
            batch = batch.where(~ended)
        if batch.rows:
            panes = batch.times // self._pane_us
            self.states.absorb(batch.records, self.key_columns(batch.records), panes, batch.times)

    def on_partial(self, port: int, partial: pa.RecordBatch, born_us: int) -> None:
        self._born_us = born_us
        ended = self._ended(partial.column(0).to_numpy())
        if ended.any():
            self._hand_on(partial.filter(pa.array(ended)))
            partial = partial.filter(pa.array(~ended))
        self.states.absorb_partial(partial)

    def on_watermark(self, watermark_us: int) -> None:
        """Hand on all panes that have ended, in one piece, before the steps hear of the watermark."""
        panes = np.array(self.states.panes(), np.int64)
        ended = panes[self._ended(panes)].tolist()
        if ended:
            rows = np.concatenate([self.table.rows_of(pane) for pane in ended])
            self._hand_on(self.table.export(rows))
            self.table.drop(rows)

    def _ended(self, panes: Times) -> npt.NDArray[np.bool_]:
        return (panes + 1) * self._pane_us <= self.watermark_us

    def _hand_on(self, partial: pa.RecordBatch) -> None:
        tag_us = self.meter.tag_for(self._born_us)
        born_us = self._born_us if tag_us is not None else now_us()
        started_ns = self.meter.wrote(partial.num_rows)
        for target, port in self.outputs:
            assert isinstance(target, Operator), "panes go to steps of the same subtask only"
            target.receive_partial(port, self._for(target, partial), born_us, tag_us)
        self.meter.inner_ns += time.perf_counter_ns() - started_ns

    def _view(self, reader: ReduceNode) -> tuple[int, list[int]]:
        """How long the panes of a step are that reads these, and which columns after the pane are of its reducers."""
        assert isinstance(reader.window, TimeWindow) and reader.pane_columns is not None
        widths = [len(accumulator.fields) for accumulator in self.table.accumulators]
        starts = 1 + len(self.node.keys) + np.cumsum([0, *widths])
        names = [name for name, _ in self.node.reducers]
        columns = list(range(1, 1 + len(self.node.keys)))
        for at in map(names.index, reader.pane_columns):
            columns += range(starts[at], starts[at + 1])
        return reader.window.pane_us, columns

    def _for(self, target: Operator, partial: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of a step's own reducers, by its own panes: these are multiples of ours."""
        pane_us, wanted = self._views[target.name]
        panes = pa.array(partial.column(0).to_numpy() * self._pane_us // pane_us)
        columns = [panes, *(partial.column(at) for at in wanted)]
        return pa.RecordBatch.from_arrays(columns, schema=target.combined_schema)
