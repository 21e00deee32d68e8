"""Where records enter: a source as an operator, with a reader for each partition that the subtask owns."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.connect.source import Poll, Reader
from headrace.graph.nodes import SourceNode
from headrace.graph.windowing import FOREVER_US, IDLE_US, NEVER_US
from headrace.runtime.batch import Batch, Times
from headrace.runtime.clock import now_us
from headrace.runtime.operators.eventtimes import event_times, own_watermarks
from headrace.runtime.operators.operator import Operator
from headrace.runtime.operators.positions import Positions
from headrace.runtime.operators.progress import Progress
from headrace.runtime.operators.usercode import Guard
from headrace.schemas import conform
from headrace.state.durable.changes import Store
from headrace.state.stores.keyvalues import KeyedStore


@dataclass(slots=True)
class Partition:
    """One partition of a source in this subtask: its reader, and how far its time has come.

    ``heard_us``: when a poll last found something. ``held_us``: the newest time that counts until ``held_until_us``,
    while others who woke with it are heard.
    """

    number: int
    reader: Reader
    newest_us: int = NEVER_US
    heard_us: int | None = None
    idle: bool = False
    held_us: int = NEVER_US
    held_until_us: int = NEVER_US
    frozen_us: int = NEVER_US

    def found_nothing(self, now_us: int, idle_us: int) -> None:
        """Only polls tell that a source is silent: a subtask that was busy has not looked."""
        self.heard_us = now_us if self.heard_us is None else self.heard_us
        self.idle = self.idle or now_us - self.heard_us > idle_us

    def found(self, now_us: int, waits_us: int) -> None:
        """It speaks. If it had fallen silent, its time moves on when it has waited for others."""
        if self.idle:
            self.held_us, self.held_until_us = self.newest_us, now_us + waits_us
        self.heard_us, self.idle = now_us, False

    def watermark(self, node: SourceNode, now_us: int) -> int:
        if self.reader.exhausted:
            return FOREVER_US
        newest_us = self.held_us if now_us < self.held_until_us else self.newest_us
        return newest_us - node.lateness_us if node.event_time is not None and newest_us > NEVER_US else NEVER_US


class SourceOperator(Operator):
    """Polls its partitions' readers; offsets and times are slices of state, one per partition.

    A partition of a live source that is silent for ``idle`` stands still and no longer holds others back; unless it is
    ``alone``, its time moves on ``idle`` after it has come back, so that others who come back with it are heard first.
    """

    polled = True

    def __init__(
        self,
        node: SourceNode,
        schema: pa.Schema,
        guard: Guard,
        partitions: int,
        logs: Path,
        idle_us: int,
        *,
        eager: bool,
        alone: bool = False,
    ) -> None:
        super().__init__(node.name)
        self._eager = eager
        self.node, self._schema, self._guard = node, schema, guard
        self._of, self._logs = partitions, logs
        self._idle_us = node.idle_us if node.idle_us is not None else idle_us
        self._waits_us = self._idle_us if eager and not alone else 0
        self._store = KeyedStore(node.name, lambda keys: [int(str(key)) for key in keys])
        self._positions = Positions(self._store)
        self._partitions: list[Partition] = []
        self._turn = 0

    def stores(self) -> dict[str, Store]:
        return {"": self._store}

    def parts(self, slices: int) -> range:
        return range(self._of)

    def restored(self, slices: list[int]) -> None:
        self.close()
        for number in slices:
            offset, newest_us = self._positions.of(number)
            logs = self._logs / self.node.name / f"{number:05d}"
            reader = self.node.source.open(number, self._of, offset, self._schema, logs)
            self._partitions.append(Partition(number, reader, newest_us))

    def begin(self) -> None:
        super().begin()
        self.inputs = Progress(partition.number for partition in self._partitions)
        for partition in self._partitions:
            partition.frozen_us = partition.newest_us

    @property
    def exhausted(self) -> bool:
        return all(p.reader.exhausted for p in self._partitions)

    def poll(self, max_rows: int, now_us: int) -> int:
        """Read each partition once, the next one first, until there are enough rows; returns how many there were."""
        n, left = len(self._partitions), max_rows
        for step in range(n):
            partition = self._partitions[(self._turn + step) % n]
            poll = None if partition.reader.exhausted else partition.reader.poll(left, now_us)
            if poll is None or not (poll.records.num_rows or poll.bad):
                if self.node.source.live:
                    partition.found_nothing(now_us, self._idle_us)
                continue
            self._take(partition, poll, now_us)
            left -= poll.records.num_rows + len(poll.bad)
            if left <= 0:
                self._turn = (self._turn + step + 1) % n
                break
        return max_rows - left

    def take_external(self, records: pa.RecordBatch, now_us: int) -> None:
        """Records that Spark itself read (a user's DataFrame), as those of this subtask's partition.

        Their order within a batch means nothing, so they are late only against earlier batches.
        """
        partition = self._partitions[0]
        before = partition.newest_us
        partition.newest_us = partition.frozen_us
        self._take(partition, Poll(records), now_us, ordered=False)
        partition.newest_us = max(before, partition.newest_us)

    def next_due_us(self) -> int | None:
        due = [p.reader.next_due_us() for p in self._partitions if not p.reader.exhausted]
        known = [d for d in due if d is not None]
        return min(known) if known and len(known) == len(due) else None

    def on_clock(self, now_us: int) -> None:
        """Pass on how far time has come."""
        if not self._partitions:
            self.inputs.hear(0, FOREVER_US)
        for partition in self._partitions:
            watermark_us = partition.watermark(self.node, now_us)
            self.inputs.hear(partition.number, watermark_us)
            if partition.idle and watermark_us < FOREVER_US:
                self.inputs.hear(partition.number, IDLE_US)
        self.catch_up()

    def on_cut(self, *, end: bool) -> None:
        # A partition without data so far must not hold the others back where batches are all there is,
        # unless data is sure to come: then windows would close before it, in this mode only.
        for partition in self._partitions if end else ():
            unheard = partition.newest_us == NEVER_US and partition.reader.next_due_us() is None
            partition.idle = partition.idle or (unheard and not self.node.source.bounded)
        if self._partitions and not self._eager:
            self.on_clock(now_us())
        for partition in self._partitions:
            self._positions.note(partition.number, partition.reader.offset(), partition.newest_us)

    def close(self) -> None:
        for partition in self._partitions:
            partition.reader.close()
        self._partitions = []

    def _take(self, partition: Partition, poll: Poll, now_us: int, *, ordered: bool = True) -> None:
        partition.found(now_us, self._waits_us)
        for bad in poll.bad:
            self._guard.bad_input(bad.text, bad.reason, bad.where)
        records = conform(poll.records, self._schema, self.name)
        if not records.num_rows:
            return
        self.meter.items_in += records.num_rows
        born_us = poll.due_us if poll.due_us is not None else now_us
        last_us = poll.last_due_us if poll.last_due_us is not None else born_us
        tag_us = random.randint(born_us, last_us)
        if self.node.event_time is None:
            times = np.full(records.num_rows, now_us)
            self.emit(Batch(records, times, born_us, None, tag_us, _age_us(born_us, last_us)))
            return
        times, usable = event_times(records.column(self.node.event_time), self.node.time_unit, now_us)
        if not usable.all():
            records, times = self._without_bad_times(records, times, usable)
        if not len(times):
            return
        if ordered:
            late, partition.newest_us = own_watermarks(times, partition.newest_us, self.node.lateness_us)
        else:
            late = np.full(len(times), partition.newest_us - self.node.lateness_us)
            partition.newest_us = max(partition.newest_us, int(times.max()))
            late = late if np.any(times < late) else None
        batch = Batch(records, times, born_us, late, tag_us, _age_us(born_us, last_us))
        if late is None:
            self.emit(batch)
        else:
            behind = times < late
            on_time = batch.where(~behind)
            on_time.late = None
            self.emit(on_time)
            self.emit(batch.where(behind))

    def _without_bad_times(
        self, records: pa.RecordBatch, times: Times, usable: npt.NDArray[np.bool_]
    ) -> tuple[pa.RecordBatch, Times]:
        for record in records.filter(pa.array(~usable)).to_pylist():
            value = record.get(self.node.event_time or "")
            self._guard.bad_input(repr(record), f"event time {self.node.event_time!r} = {value!r} is not a usable time")
        return records.filter(pa.array(usable)), times[usable]


def _age_us(born_us: int, last_us: int) -> int:
    """Mean age of the records when read."""
    return max(time.time_ns() // 1000 - (born_us + last_us) // 2, 0)
