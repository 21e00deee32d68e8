"""Interval join by key: records of two streams meet when their times are near; pairs are emitted as they meet."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from headrace.graph.nodes import JoinNode
from headrace.graph.windowing import Interval
from headrace.runtime.batch import Batch, Times
from headrace.runtime.operators.joins import check_sides
from headrace.runtime.operators.operator import Operator
from headrace.state.durable.changes import Store
from headrace.state.stores.timedrows import Mask, Newcomers, TimedRows, equal_keys

SIDES = ("left", "right")


class IntervalJoin(Operator):
    """Inner, left, right and full outer joins of equal keys whose times are within an interval.

    A record may meet others until the watermark is further past its time than the interval reaches; it is kept that
    long, and then emitted by itself if it met none and its side is an outer one. One that comes when that has passed by
    its own watermark is dropped and counted. Of two records that meet, none had passed by the other's own watermark:
    so it does not matter who comes first, nor how subtasks interleave.

    A pair's time is the later one of the two, that of a record by itself when it had passed: neither is behind the
    watermark.
    """

    def __init__(self, node: JoinNode, schemas: tuple[pa.Schema, pa.Schema], out: pa.Schema, slices: int) -> None:
        super().__init__(node.name, ports=2)
        assert isinstance(node.window, Interval)
        check_sides(node, schemas)
        self._node, self._interval, self._schemas, self._out = node, node.window, schemas, out
        pane_us = self._interval.before_us + self._interval.after_us + 1
        self._sides = [
            TimedRows(schema, node.keys, self._interval.reach_us(port), pane_us, slices, noting=node.outer(port))
            for port, schema in enumerate(schemas)
        ]
        self._born_us = 0

    def stores(self) -> dict[str, Store]:
        return dict(zip(SIDES, self._sides))

    def on_batch(self, port: int, batch: Batch) -> None:
        self._born_us = batch.born_us
        new = self._in_time(port, batch)
        if not len(new.times):
            return
        matched = np.zeros(len(new.times), bool)
        ahead_us, back_us = self._interval.reach_us(port), self._interval.reach_us(1 - port)
        other = self._sides[1 - port]
        for at, rows in other.meeting(new, back_us, ahead_us):
            met, here = new.records.take(pa.array(at)), other.records(rows)
            equal = equal_keys(met, here, self._node.keys)
            if equal is not None:
                at, rows, met, here = at[equal], rows[equal], met.filter(pa.array(equal)), here.filter(pa.array(equal))
            matched[at] = True
            if other.noting:
                other.match(rows)
            times = np.maximum(new.knowns[at], other.knowns(rows))
            self.emit(Batch(self._pairs(port, met, here), times, batch.born_us))
        self._keep(port, new, matched)

    def on_watermark(self, watermark_us: int) -> None:
        for port, side in enumerate(self._sides):
            self._emit_alone(port, side.expire(watermark_us))

    def _keep(self, port: int, new: Newcomers, matched: Mask) -> None:
        self._sides[port].add(new, matched)

    def _in_time(self, port: int, batch: Batch) -> Newcomers:
        """The records that may still meet others, each with the watermark by which it came.

        That of the step is later only for a source that was silent and comes back with old records.
        """
        knowns = np.maximum(batch.times, self.watermark_us)
        if batch.late is not None:
            knowns = np.maximum(knowns, batch.late)
        passed = knowns > batch.times + self._interval.reach_us(port)
        batch, knowns = self.without_late(port, batch, passed), knowns[~passed]
        return Newcomers.of(batch.records, self._node.keys, np.array(batch.times), knowns)

    def _pairs(self, port: int, met: pa.RecordBatch, here: pa.RecordBatch) -> pa.RecordBatch:
        left, right = (here, met) if port else (met, here)
        more = [right.column(name) for name in right.schema.names if name not in self._node.keys]
        return pa.RecordBatch.from_arrays([*left.columns, *more], schema=self._out)

    def _emit_alone(self, port: int, passed: Iterable[tuple[pa.RecordBatch, Times]]) -> None:
        """Records that met none, each at the time when it had passed."""
        for records, times in passed:
            at = times + self._interval.reach_us(port)
            self.emit(Batch(self._by_itself(port, records), at, self._born_us))

    def _by_itself(self, port: int, records: pa.RecordBatch) -> pa.RecordBatch:
        """Records of one side; the other side's columns are null, the keys their own."""
        keys = self._node.keys
        names = self._schemas[0].names, [name for name in self._schemas[1].names if name not in keys]
        mine = [name in keys or side == port for side in (0, 1) for name in names[side]]
        columns = [
            records.column(name) if own else pa.nulls(records.num_rows, field.type)
            for name, own, field in zip((*names[0], *names[1]), mine, self._out)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._out)
