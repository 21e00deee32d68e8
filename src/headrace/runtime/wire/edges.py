"""Edges to the next stage: output buffers, flushed by size or deadline, routed by slice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.graph.stages import Edge
from headrace.graph.windowing import IDLE_US, NEVER_US, TimeWindow
from headrace.runtime.batch import Batch, concat, to_wire
from headrace.runtime.clock import now_us
from headrace.runtime.ownership import Table
from headrace.runtime.wire.channelmeter import Stamp
from headrace.runtime.wire.frames import Frame, Kind, sender_id
from headrace.state.grouping import Rows
from headrace.state.hashing import slices_of
from headrace.state.table.rowtable import Partials

_COMBINE_GAIN = 1.3
"""Records per group from which combining before the shuffle pays; below it rows go as they are."""
_RETRY_AFTER = 64
_SMALL_SLICE = np.zeros(1, np.uint16)


@dataclass(slots=True)
class Combiner:
    """Aggregates a buffer's records before they are shipped, where the receiving step can merge.

    ``window`` is the receiver's; its panes are the groups, next to the keys.
    """

    partials: Partials
    keys: tuple[str, ...]
    window: TimeWindow | None
    resting: int = 0

    def combine(self, batch: Batch) -> pa.RecordBatch | None:
        """The batch as partials, or None when it would hardly get smaller."""
        if self.resting:
            self.resting -= 1
            return None
        panes: Rows | int = batch.times // self.window.pane_us if self.window is not None else 0
        partial = self.partials.of(batch.records, [batch.records.column(key) for key in self.keys], panes, batch.times)
        if batch.rows < _COMBINE_GAIN * partial.num_rows:
            self.resting = _RETRY_AFTER
        return partial


@dataclass(slots=True, eq=False)
class EdgeWriter:
    """The sending end of one edge in one subtask: at most one open buffer.

    ``shuffled``: it reaches all ``receivers``, otherwise only the one with its own index. ``hop`` is the stage within
    its leg that sends along an edge inside the leg. ``begin`` says which subtask it is this time, and ``table`` where
    each slice is. A spread edge gives the first ``active`` receivers records in turn. ``since_us``: when the clock of
    what is to be sent began; it leaves after ``deadline_us`` or with ``limit_bytes``, whatever is first.
    ``sent`` and ``put`` count items shipped and records put in since the last cut: for the audit.
    ``entered_us`` is the sum over the pending rows of when each came: with it a row's mean wait is known when the
    buffer is flushed; what a source let wait, in place of the buffer, counts too. It is the open buffer's;
    each receiver's part is given the buffer's mean.
    """

    edge: Edge
    receivers: int
    slices: int
    stamp: Stamp
    shuffled: bool = True
    combiner: Combiner | None = None
    hop: int | None = None
    deadline_us: int = 0
    limit_bytes: int = 0
    sender: int = field(init=False)
    targets: range = field(init=False)
    table: npt.NDArray[np.int64] = field(init=False)
    active: int = field(init=False)
    turn: int = field(init=False)
    since_us: int = field(init=False)
    pending: list[Batch] = field(init=False)
    pending_late: list[Batch] = field(init=False)
    pending_bytes: int = field(init=False)
    opened_us: int = field(init=False)
    pending_rows: int = field(init=False)
    entered_us: int = field(init=False)
    watermark_us: int = field(init=False)
    told_us: int = field(init=False)
    idle: bool = field(init=False)
    told_idle: bool = field(init=False)
    sequences: list[int] = field(init=False)
    sent: npt.NDArray[np.int64] = field(init=False)
    put: int = field(init=False)

    def begin(self, index: int, table: Table, active: int) -> None:
        """A new attempt: nothing is open, sequences and audit counts start anew.

        ``index`` is the subtask's, ``table`` says who owns the receiving stage's slices, ``active`` how many receivers a
        spread edge begins with.
        """
        self.sender = index if self.hop is None else sender_id(self.hop, index)
        self.targets = range(self.receivers) if self.shuffled else range(index, index + 1)
        self.active, self.turn = active, index
        self.route(table)
        if self.combiner is not None:
            self.combiner.resting = 0
        self._empty()
        self.watermark_us = self.told_us = NEVER_US
        self.idle = self.told_idle = False
        self.sequences = [0] * self.receivers
        self._count_anew()

    def route(self, table: Table) -> None:
        """From now on slices are where a table says; what was put in before must have left."""
        self.table = np.array(table if self.edge.keyed else (0,), np.int64)

    def take_counts(self) -> tuple[list[int], int]:
        """Items per slice that were sent, and records that were put in, since this was last asked."""
        sent, put = self.sent.tolist(), self.put
        self._count_anew()
        return sent, put

    def _count_anew(self) -> None:
        self.sent, self.put = np.zeros(self.slices if self.edge.keyed else 1, np.int64), 0

    def _empty(self) -> None:
        self.pending, self.pending_late = [], []
        self.pending_bytes = self.pending_rows = self.opened_us = self.entered_us = self.since_us = 0

    def receive(self, port: int, batch: Batch) -> None:
        now = now_us()
        self.opened_us = self.opened_us or now
        self.pending_rows += batch.rows
        self.put += batch.rows
        self.entered_us += batch.rows * (now - batch.held_us)
        (self.pending if batch.late is None else self.pending_late).append(batch)
        self.pending_bytes += batch.records.nbytes

    def watermark(self, port: int, watermark_us: int) -> None:
        self.idle = watermark_us == IDLE_US
        if not self.idle:
            self.watermark_us = max(self.watermark_us, watermark_us)

    @property
    def news(self) -> bool:
        return bool(self.opened_us) or self.watermark_us > self.told_us or self.idle != self.told_idle

    @property
    def due_us(self) -> int:
        return self.since_us + self.deadline_us

    @property
    def full(self) -> bool:
        return self.pending_bytes >= self.limit_bytes

    def flush(self, rows: list[list[bytes]]) -> None:
        """Append this edge's frames to each receiver's row: data first, then the watermark."""
        shipped_us = now_us()
        if self.pending:
            batch = concat(self.pending)
            partial = self.combiner.combine(batch) if self.combiner is not None else None
            if partial is not None:
                keys = partial.columns[1 : 1 + len(self.edge.keys)]
                self._ship(Kind.PARTIAL, partial, keys, batch, shipped_us, rows)
                self.put -= 0 if partial.num_rows else batch.rows  # all of them were skipped: none will arrive
            else:
                self._ship_batch(Kind.DATA, batch, shipped_us, rows)
        if self.pending_late:
            self._ship_batch(Kind.LATE, concat(self.pending_late), shipped_us, rows)
        self._empty()
        moved = self.watermark_us > self.told_us
        if moved or (self.told_idle and not self.idle):
            self.told_us = self.watermark_us
            self._tell(self.told_us, rows)
        if self.idle and (moved or not self.told_idle):
            self._tell(IDLE_US, rows)
        self.told_idle = self.idle

    @property
    def marked_us(self) -> int:
        """What a cut's mark says of it: the watermark that was last told."""
        return IDLE_US if self.told_idle else self.told_us

    def _tell(self, watermark_us: int, rows: list[list[bytes]]) -> None:
        for receiver in self.targets:
            sequence = self.sequences[receiver]
            told = Frame(Kind.WATERMARK, self.edge.id, self.sender, sequence, watermark_us=watermark_us)
            rows[receiver].append(told.encode())

    def _ship_batch(self, kind: Kind, batch: Batch, shipped_us: int, rows: list[list[bytes]]) -> None:
        keys = [batch.records.column(key) for key in self.edge.keys]
        self._ship(kind, to_wire(batch), keys, batch, shipped_us, rows)

    def _ship(
        self, kind: Kind, records: pa.RecordBatch, keys: list[pa.Array], batch: Batch, shipped_us: int,
        rows: list[list[bytes]],
    ) -> None:  # fmt: skip
        combined = batch.rows if kind is Kind.PARTIAL else None
        if not self.edge.keyed:
            for receiver, part in self._shares(records):
                total = np.array([part.num_rows], np.uint32)
                frame = self._data(kind, receiver, part, _SMALL_SLICE, total, batch, shipped_us, combined)
                rows[receiver].append(frame.encode())
                combined = None if combined is None else 0
            self.sent[0] += records.num_rows
            return
        slices = slices_of(keys, self.slices)
        counts = np.bincount(slices, minlength=self.slices)
        self.sent += counts
        routes = self.table[slices]
        for receiver in np.unique(self.table[counts > 0]).tolist():
            mine = np.flatnonzero(routes == receiver)
            part = records.take(pa.array(mine)) if len(mine) < records.num_rows else records
            held = np.flatnonzero((counts > 0) & (self.table == receiver)).astype(np.uint16)
            frame = self._data(kind, receiver, part, held, counts[held].astype(np.uint32), batch, shipped_us, combined)
            rows[receiver].append(frame.encode())
            combined = None if combined is None else 0

    def _shares(self, records: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Who gets which of the records: all stay on one subtask, or every active one gets as many."""
        if not self.edge.spread:
            yield self.targets[self.sender % len(self.targets)], records
            return
        share = -(-records.num_rows // self.active)
        for start in range(0, records.num_rows, share):
            self.turn = (self.turn + 1) % self.active
            yield self.targets[self.turn], records.slice(start, share)

    def _data(
        self, kind: Kind, receiver: int, records: pa.RecordBatch, slices: npt.NDArray[np.uint16],
        counts: npt.NDArray[np.uint32], batch: Batch, shipped_us: int, combined: int | None,
    ) -> Frame:  # fmt: skip
        self.sequences[receiver] += 1
        items, ahead = records.num_rows, self.stamp.offset_us
        return Frame(
            kind, self.edge.id, self.sender, self.sequences[receiver], items, batch.born_us + ahead,
            self.opened_us + ahead, shipped_us + ahead, 0, slices, counts, records.serialize(),
            tagged_us=batch.tag_us + ahead if batch.tag_us is not None else 0,
            waited_us=items * (self.pending_rows * shipped_us - self.entered_us) // self.pending_rows,
            settings=self.stamp.version, stands=items if combined is None else combined,
        )  # fmt: skip
