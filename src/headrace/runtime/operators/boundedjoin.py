"""Interval join in bounded memory: the records whose times are earliest wait on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.graph.nodes import JoinNode
from headrace.runtime.batch import Batch
from headrace.runtime.clock import now_us
from headrace.runtime.operators.intervaljoin import SIDES, IntervalJoin
from headrace.state.allocator import give_back_freed
from headrace.state.compiled import U64
from headrace.state.durable.changes import Store
from headrace.state.spill.bounds import TABLE_SHARE, Bound
from headrace.state.spill.diskrows import spill_home
from headrace.state.spill.farrows import FarRows
from headrace.state.stores.timedrows import Mask, Newcomers

_SETTLE_US = 5_000_000
"""How often those that wait for rows on disk are answered, at cuts: each time all that they may meet is read."""
_BUCKETS = 16
"""Few: each run has a file in each, and a bucket need not fit in memory."""
_RUNS = 8
"""Into which the rows that leave memory are divided: what is unmatched comes when all of its run has passed."""


class BoundedIntervalJoin(IntervalJoin):
    """Pairs of records that are in memory come at once. Who may meet rows on disk too is answered within seconds, and comes
    by itself only then.
    """

    def __init__(
        self,
        node: JoinNode,
        schemas: tuple[pa.Schema, pa.Schema],
        out: pa.Schema,
        slices: int,
        spill: Path | None = None,
    ) -> None:
        super().__init__(node, schemas, out, slices)
        assert node.memory_bytes is not None
        give_back_freed()
        self._near_bytes = int(node.memory_bytes * TABLE_SHARE)
        bound = Bound(node.memory_bytes, "inc", spill or spill_home(), slices, buckets=_BUCKETS)
        self._far = [
            FarRows(port, (schemas[port], schemas[1 - port]), node.keys, self._interval, bound, noting=node.outer(port))
            for port in (0, 1)
        ]
        self._settled_us = now_us()

    def stores(self) -> dict[str, Store]:
        far = {name: store for side, rows in zip(SIDES, self._far) for name, store in rows.stores(side).items()}
        return super().stores() | far

    def restored(self, slices: list[int]) -> None:
        for far in self._far:
            far.restored()

    def close(self) -> None:
        for far in self._far:
            far.close()

    def held_us(self) -> int:
        near = [side.held_us for port, side in enumerate(self._sides) if self._has_asked(port)]
        return min(*(far.held_us for far in self._far), *near, super().held_us())

    def on_watermark(self, watermark_us: int) -> None:
        if any(far.passed(watermark_us) for far in self._far):
            self._settle()
        for port, side in enumerate(self._sides):
            if not (side.noting and self._has_asked(port)):  # else it may yet turn out to be matched
                self._emit_alone(port, side.expire(watermark_us))
            if self._far[port].passed(watermark_us):
                self._emit_alone(port, self._far[port].expire(watermark_us))

    def on_cut(self, *, end: bool) -> None:
        if end or now_us() - self._settled_us >= _SETTLE_US:
            self._settle()
            self.on_watermark(self.watermark_us)
        self.pass_on_watermark()

    def _keep(self, port: int, new: Newcomers, matched: Mask) -> None:
        kept = self._sides[port].add(new, matched)
        self._far[1 - port].ask(kept)
        while sum(side.nbytes for side in self._sides) > self._near_bytes and any(map(len, self._sides)):
            self._settle()
            largest = max((0, 1), key=lambda of: len(self._sides[of]) and self._sides[of].nbytes)
            for run in self._sides[largest].leave(_RUNS):
                self._far[largest].put(run)

    def _has_asked(self, port: int) -> bool:
        """Whether records of a side wait for rows of the other."""
        return self._far[1 - port].waiting

    def _settle(self) -> None:
        """Answer all who asked."""
        self._settled_us = now_us()
        for port, far in enumerate(self._far):
            if not far.waiting:
                continue
            asking, met = self._sides[1 - port], list[tuple[U64, U64]]()
            for answer in far.answers():
                self.emit(Batch(self._pairs(port, answer.rows, answer.records), answer.times, self._born_us))
                met += [answer.met] if asking.noting else []
            if met:
                hashes, counters = (np.concatenate(parts) for parts in zip(*met))
                asking.match_kept(hashes, counters)
