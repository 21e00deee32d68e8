"""Operators: what a subtask hosts. They call each other directly, batch by batch, or through queues."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DataError, SchemaError
from headrace.graph.nodes import TransformNode
from headrace.graph.windows import FOREVER_US, IDLE_US, NEVER_US
from headrace.runtime.batch import Batch
from headrace.runtime.meter import StepMeter
from headrace.runtime.queues import InputQueue, Waiting
from headrace.runtime.times import event_times
from headrace.runtime.usercode import Guard
from headrace.schemas import conform, empty_batch, to_batch
from headrace.state.changes import Store

_MISFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What Arrow raises for a value that does not fit a column; SchemaError is a TypeError."""


def lowest_of(watermarks: Iterable[int]) -> int:
    """How far all inputs have come; idle ones are left out unless all are."""
    awake = [w for w in watermarks if w != IDLE_US]
    return min(awake) if awake else IDLE_US


class Receiver(Protocol):
    """Whatever a step can feed: another operator, or an edge to the next stage."""

    def receive(self, port: int, batch: Batch) -> None: ...

    def watermark(self, port: int, watermark_us: int) -> None: ...


class Operator:
    """A step in one subtask.

    Subclasses implement ``on_batch`` and, where time matters, ``on_watermark``, ``on_clock`` and
    ``on_epoch_end``; ``stores`` names the state they keep. With a ``queue`` what it receives waits there
    until the scheduler hands it to ``work`` and ``advance``.
    """

    def __init__(self, name: str, ports: int = 1) -> None:
        self.name = name
        self.outputs: list[tuple[Receiver, int]] = []
        self.meter = StepMeter(name)
        self.queue: InputQueue | None = None
        self._watermarks = [NEVER_US] * ports
        self.watermark_us = self._passed_on_us = NEVER_US

    def receive(self, port: int, batch: Batch) -> None:
        if self.queue is None:
            self.process(port, batch)
        elif batch.rows:
            self._enqueue(Waiting(port, batch, batch.born_us, batch.rows, batch.records.nbytes))

    def receive_partial(self, port: int, partial: pa.RecordBatch, born_us: int, tag_us: int | None = None) -> None:
        """Take partial aggregates; only reduce steps are sent any."""
        waiting = Waiting(port, partial, born_us, partial.num_rows, partial.nbytes, tag_us=tag_us)
        if self.queue is None:
            self.work(waiting)
        else:
            self._enqueue(waiting)

    def watermark(self, port: int, watermark_us: int) -> None:
        if self.queue is None:
            self.advance(port, watermark_us)
        else:
            self.queue.promise(port, watermark_us)

    def work(self, waiting: Waiting) -> None:
        """Process a buffer whose turn has come."""
        if waiting.began is not None:
            waiting.began(time.time_ns() // 1000)
        if isinstance(waiting.data, Batch):
            self.process(waiting.port, waiting.data)
            return
        visit = self.meter.enter(waiting.rows, waiting.tag_us)
        self.on_partial(waiting.port, waiting.data, waiting.born_us)
        self.meter.leave(visit)

    def process(self, port: int, batch: Batch) -> None:
        """Process records now."""
        if batch.rows:
            visit = self.meter.enter(batch.rows, batch.tag_us)
            self.on_batch(port, batch)
            self.meter.leave(visit)

    def _enqueue(self, waiting: Waiting) -> None:
        """Let what a step of the same subtask sent wait for its turn."""
        assert self.queue is not None
        arrived_us = time.time_ns() // 1000
        self.meter.arrived(arrived_us)
        self.queue.put(replace(waiting, began=lambda now_us: self.meter.dequeued(now_us - arrived_us)))

    def advance(self, port: int, watermark_us: int) -> None:
        """An input has come so far; it takes effect when all inputs have."""
        if watermark_us > self._watermarks[port]:
            self._watermarks[port] = watermark_us
            lowest = lowest_of(self._watermarks)
            if lowest > self.watermark_us:
                self.watermark_us = lowest
                with self.meter.aside():
                    self.on_watermark(lowest)
                self.pass_on_watermark()

    def pass_on_watermark(self) -> None:
        """Promise to all who read this step that nothing older follows."""
        promise_us = min(self.watermark_us, self.held_us())
        if promise_us > self._passed_on_us:
            self._passed_on_us = promise_us
            for target, port in self.outputs:
                target.watermark(port, promise_us)

    def held_us(self) -> int:
        """The earliest result that may still come whatever the watermark: nothing later may be promised."""
        return FOREVER_US

    def emit(self, batch: Batch) -> None:
        if batch.rows:
            if batch.tag_us is None:
                batch.tag_us = self.meter.tag_for(batch.born_us)
            started_ns = self.meter.wrote(batch.rows)
            for target, port in self.outputs:
                target.receive(port, batch)
            self.meter.inner_ns += time.perf_counter_ns() - started_ns

    def begin_epoch(self) -> None:
        """Forget watermarks: every epoch's senders promise anew, never less than before."""
        self._watermarks = [NEVER_US] * len(self._watermarks)
        self.watermark_us = self._passed_on_us = NEVER_US
        self.meter.begin_epoch()

    def on_batch(self, port: int, batch: Batch) -> None:
        raise NotImplementedError

    def on_partial(self, port: int, partial: pa.RecordBatch, born_us: int) -> None:
        raise NotImplementedError

    def on_watermark(self, watermark_us: int) -> None:
        """All input up to ``watermark_us`` has been seen."""

    def on_clock(self, now_us: int) -> None:
        """Called between buffers."""

    def next_clock_us(self) -> int | None:
        """When ``on_clock`` is wanted next."""
        return None

    def on_epoch_end(self) -> None:
        """No more input in this epoch; state is written next."""

    def stores(self) -> dict[str, Store]:
        return {}

    def restored(self, slices: list[int]) -> None:
        """The slices assigned to this subtask have been loaded."""


class Forward(Operator):
    """union, and edges that pass through a stage."""

    def __init__(self, name: str, ports: int, schema: pa.Schema) -> None:
        super().__init__(name, ports)
        self._schema = schema

    def on_batch(self, port: int, batch: Batch) -> None:
        self.emit(batch.with_records(conform(batch.records, self._schema, self.name)))


class Transform(Operator):
    """map, flat_map, filter and map_batch."""

    def __init__(
        self, node: TransformNode, schema: pa.Schema, guard: Guard, time_column: tuple[str, str | None] | None
    ) -> None:
        super().__init__(node.name)
        self._fn, self._schema, self._guard, self._time = node.fn, schema, guard, time_column
        self._declared = node.options.returns is not None
        self.on_batch = {  # type: ignore[method-assign]
            "map": self._map,
            "flat_map": self._flat_map,
            "filter": self._filter,
            "map_batch": self._map_batch,
        }[node.kind]

    def _map(self, port: int, batch: Batch) -> None:
        self._emit_rows(batch, lambda record: (self._fn(record),))

    def _flat_map(self, port: int, batch: Batch) -> None:
        self._emit_rows(batch, lambda record: self._fn(record) or ())

    def _emit_rows(self, batch: Batch, call: Any) -> None:
        rows: list[Any] = []
        origin: list[int] = []
        for i, record in enumerate(batch.records.to_pylist()):
            try:
                made = list(call(record))
            except Exception as error:
                self._guard(record, error)
                continue
            rows += made
            origin += [i] * len(made)
        records, kept = to_records(rows, self._schema, self._guard, declared=self._declared)
        self.emit(batch.take(np.array([origin[k] for k in kept], np.int64)).with_records(records))

    def _filter(self, port: int, batch: Batch) -> None:
        keep = np.zeros(batch.rows, bool)
        for i, record in enumerate(batch.records.to_pylist()):
            try:
                keep[i] = bool(self._fn(record))
            except Exception as error:
                self._guard(record, error)
        self.emit(batch if keep.all() else batch.where(keep))

    def _map_batch(self, port: int, batch: Batch) -> None:
        try:
            records = self._called(batch)
            if records.num_rows == batch.rows and self._in_order(batch, records):
                made = [batch.with_records(records)]
            elif batch.late is None and self._time is not None and records.schema.get_field_index(self._time[0]) >= 0:
                made = [self._retimed(batch, records)]
            else:
                made = [self._single(part) for part in _of_one_time(batch)]
        except Exception as error:
            self._guard({"batch_of": batch.rows, "columns": batch.records.schema.names}, error)
            return
        for part in made:
            self.emit(part)

    def _called(self, batch: Batch) -> pa.RecordBatch:
        records = self._fn(batch.records)
        if isinstance(records, pa.Table):
            records = records.combine_chunks().to_batches()[0] if records.num_rows else empty_batch(records.schema)
        if not isinstance(records, pa.RecordBatch):
            raise SchemaError(f"must return a pyarrow.RecordBatch, not {type(records).__name__}")
        return conform(records, self._schema, self.name)

    def _in_order(self, batch: Batch, records: pa.RecordBatch) -> bool:
        """False if the event-time column shows that the rows were put in another order."""
        if self._time is None or records.schema.get_field_index(self._time[0]) < 0:
            return True
        now, before = records.column(self._time[0]), batch.records.column(self._time[0])
        return bool(now.equals(before)) or not now.sort().equals(before.sort())

    def _retimed(self, batch: Batch, records: pa.RecordBatch) -> Batch:
        """Times for rows that a function added, dropped or put in another order, from their time column."""
        assert self._time is not None
        times, usable = event_times(records.column(self._time[0]), self._time[1], 2**61)
        if not usable.all():
            raise DataError("returned rows without a usable event time")
        return Batch(records, times, batch.born_us, tag_us=batch.tag_us)

    def _single(self, part: Batch) -> Batch:
        """Rows of one time and one promise: whatever the function makes of them has these too."""
        records = self._called(part)
        return part.take(np.zeros(records.num_rows, np.int64)).with_records(records)


def _of_one_time(batch: Batch) -> Iterator[Batch]:
    late = batch.late if batch.late is not None else np.zeros(batch.rows, np.int64)
    for at_us, promised_us in sorted({*zip(batch.times.tolist(), late.tolist())}):
        yield batch.where((batch.times == at_us) & (late == promised_us))


def to_records(rows: list[Any], schema: pa.Schema, guard: Guard, *, declared: bool) -> tuple[pa.RecordBatch, list[int]]:
    """Rows that a user's function made as Arrow, and which of them fit; the guard decides about the others.

    Columns that are not in the schema are a change of it, unless the user declared which ones to keep.
    """
    names = frozenset(schema.names)
    mappings = all(issubclass(kind, Mapping) for kind in {*map(type, rows)})
    if mappings and (declared or names.issuperset(set().union(*rows))):
        try:
            return to_batch(rows, schema), list(range(len(rows)))
        except _MISFIT:
            pass  # find out which
    kept = []
    for i, row in enumerate(rows):
        try:
            if not isinstance(row, Mapping):
                raise SchemaError(f"must return records (mappings), not {type(row).__name__}: {row!r:.80}")
            if not declared and not names.issuperset(row):
                raise SchemaError(f"column {min(row.keys() - names, key=str)!r} is new")
            to_batch([row], schema)
            kept.append(i)
        except _MISFIT as error:
            reason = f"does not fit the schema fixed at the start ({_columns(schema)}): {error}"
            guard(row, SchemaError(reason))
    return to_batch([rows[i] for i in kept], schema), kept


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def timestamps(times_us: Any, rows: int | None = None) -> pa.Array:
    """µs as an Arrow timestamp column in UTC; a single number is repeated ``rows`` times."""
    if rows is not None:
        times_us = np.full(rows, times_us, np.int64)
    return pc.cast(pa.array(times_us, pa.int64()), pa.timestamp("us", "UTC"))
