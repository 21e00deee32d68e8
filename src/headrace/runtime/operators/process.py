"""Keyed processing: a user's function with its key's state and timers."""

from __future__ import annotations

import heapq
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from headrace.errors import SchemaError, StateError
from headrace.graph.nodes import DeclaredState, ProcessNode, StateKind
from headrace.graph.windowing import FOREVER_US, NEVER_US
from headrace.runtime.batch import Batch
from headrace.runtime.operators.operator import Operator
from headrace.runtime.operators.transforms import to_records
from headrace.runtime.operators.usercode import Guard
from headrace.state.durable.changes import Store
from headrace.state.grouping import Key, check_key_type, key_arrays, key_codes
from headrace.state.hashing import slices_of
from headrace.state.stores.keyvalues import KeyedStore
from headrace.units import Duration, duration_us

ClockKind = Literal["event", "processing"]
_CLOCKS: tuple[ClockKind, ...] = ("event", "processing")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNDER_WAY_US = 10_000_000
"""Records that were read so long ago have come, so state that had expired by then is not looked for any more."""


@dataclass(frozen=True, slots=True)
class Timer:
    """What ``on_timer`` is called with."""

    key: Any
    at: datetime
    tag: str
    clock: ClockKind


class Value:
    """One value per key."""

    def __init__(self, store: KeyedStore, name: str, key: Key) -> None:
        self._store, self._name, self._key = store, name, key

    def get(self, default: Any = None) -> Any:
        return self._store.get(self._name, self._key, None, default)

    def set(self, value: Any) -> None:
        self._store.set(self._name, self._key, None, value)

    def delete(self) -> bool:
        return self._store.delete(self._name, self._key)


class Queue:
    """First in, first out; an append stores one element, however long the queue is."""

    def __init__(self, store: KeyedStore, name: str, key: Key) -> None:
        self._store, self._name, self._key = store, name, key

    def append(self, value: Any) -> None:
        last = self._store.last_sub(self._name, self._key)
        self._store.set(self._name, self._key, 0 if last is None else last + 1, value)

    def popleft(self) -> Any:
        first = self._store.first_sub(self._name, self._key)
        if first is None:
            raise IndexError(f"pop from empty queue {self._name!r}")
        value = self._store.get(self._name, self._key, first)
        self._store.delete(self._name, self._key, first)
        return value

    def peek(self, default: Any = None) -> Any:
        first = self._store.first_sub(self._name, self._key)
        return default if first is None else self._store.get(self._name, self._key, first)

    def clear(self) -> None:
        for sub in self._store.subs(self._name, self._key):
            self._store.delete(self._name, self._key, sub)

    def __len__(self) -> int:
        return self._store.count(self._name, self._key)

    def __iter__(self) -> Iterator[Any]:
        for sub in self._store.subs(self._name, self._key):
            yield self._store.get(self._name, self._key, sub)


class MappingState:
    """A dictionary per key; each item is stored by itself. ``1``, ``1.0`` and ``True`` are three items."""

    def __init__(self, store: KeyedStore, name: str, key: Key) -> None:
        self._store, self._name, self._key = store, name, key

    def get(self, item: Any, default: Any = None) -> Any:
        return self._store.get(self._name, self._key, (item,), default)

    def set(self, item: Any, value: Any) -> None:
        self._store.set(self._name, self._key, (item,), value)

    def delete(self, item: Any) -> bool:
        return self._store.delete(self._name, self._key, (item,))

    def items(self) -> list[tuple[Any, Any]]:
        subs = self._store.subs(self._name, self._key)
        return [(sub[0], self._store.get(self._name, self._key, sub)) for sub in subs]

    def __len__(self) -> int:
        return self._store.count(self._name, self._key)

    def __contains__(self, item: Any) -> bool:
        return self._store.get(self._name, self._key, (item,), self) is not self


_KINDS: dict[StateKind, type[Value] | type[Queue] | type[MappingState]] = {
    "value": Value,
    "queue": Queue,
    "mapping": MappingState,
}


class KeyState:
    """What a user's function gets as ``state``: the declared states of the current key, and timers."""

    def __init__(self, operator: Process) -> None:
        self._operator = operator
        self.key: Any = None
        self.time: datetime = _EPOCH
        self.late = False

    def __getitem__(self, name: str) -> Any:
        operator = self._operator
        declared = operator.declared.get(name)
        if declared is None:
            raise StateError(
                f"step {operator.name!r} has no state {name!r}; declare it: state={{{name!r}: hr.value()}}"
            )
        return _KINDS[declared.kind](operator.store, name, self.key)

    def timer(
        self,
        *,
        at: datetime | None = None,
        after: Duration | None = None,
        tag: str = "",
        clock: ClockKind = "event",
    ) -> None:
        """Ask for ``on_timer`` at a time, or after a while from now; the same tag again moves it."""
        if (at is None) == (after is None):
            raise StateError("timer(...) takes exactly one of at= and after=")
        if not (at is None or isinstance(at, datetime)):
            raise StateError(f"timer(at=…) takes a datetime, such as state.time plus a timedelta, not {at!r}")
        if not self._operator.rings:
            raise StateError(f"step {self._operator.name!r} sets a timer but has no on_timer=, which it would call")
        if at is not None:
            at_us = _us(at)
        elif clock == "event":
            at_us = _us(self.time) + duration_us(after or 0)
        else:
            at_us = self._operator.now_us + duration_us(after or 0)
        self._operator.set_timer(clock, self.key, tag, at_us)

    def cancel(self, tag: str = "", *, clock: ClockKind = "event") -> bool:
        """Drop a timer; False if there was none."""
        return self._operator.store.delete(f"#{clock}", self.key, tag)


class Process(Operator):
    """Calls the user's function record by record, in the order of arrival.

    State that has a time to live expires by the time of records and event timers. ``timeless``: no source has an event
    time, so a record's time is when it was read, and time goes on although no watermark says so.
    """

    def __init__(
        self,
        node: ProcessNode,
        schema: pa.Schema,
        out: pa.Schema,
        guard: Guard,
        slices: int,
        *,
        debug: bool,
        timeless: bool = False,
    ) -> None:
        super().__init__(node.name)
        for key in node.keys:
            if schema.get_field_index(key) < 0:
                raise SchemaError(f"step {node.name!r}: key column {key!r} is not among {', '.join(schema.names)}")
            check_key_type(key, schema.field(key).type, node.name)
        self._node, self._out, self._guard = node, out, guard
        self._timeless = timeless
        self.declared: Mapping[str, DeclaredState] = dict(node.state)
        fields = [schema.field(key) for key in node.keys]
        self.store = KeyedStore(
            node.name,
            lambda keys: slices_of(key_arrays(keys, fields), slices).tolist(),
            ttl_us={name: declared.ttl_us for name, declared in node.state if declared.ttl_us is not None},
            debug=debug,
        )
        self._expiry = self.store.expiry
        self._expiring = False
        self._timers: dict[ClockKind, list[tuple[int, str, int, Key, int]]] = {"event": [], "processing": []}
        self._serial, self._slices = 0, slices
        self._state = KeyState(self)
        self._rows: list[dict[str, Any]] = []
        self.now_us = time.time_ns() // 1000

    def stores(self) -> dict[str, Store]:
        return {"": self.store}

    @property
    def rings(self) -> bool:
        """Whether there is somebody whom timers call."""
        return self._node.on_timer is not None

    def restored(self, slices: list[int]) -> None:
        for clock in _CLOCKS:
            self._timers[clock] = []
            for slice, key, tag, at_us in self.store.all_of(f"#{clock}"):
                self._push(clock, key, tag, at_us, slice)

    def adopted(self, slices: frozenset[int]) -> None:
        for clock in _CLOCKS:
            for slice, key, tag, at_us in self.store.all_in(f"#{clock}", slices):
                self._push(clock, key, tag, at_us, slice)

    def on_batch(self, port: int, batch: Batch) -> None:
        columns = [batch.records.column(key) for key in self._node.keys]
        codes, keys = key_codes(columns)
        slices = slices_of(columns, self._slices).tolist()
        rows = zip(batch.records.to_pylist(), codes.tolist(), batch.times.tolist(), slices)
        state, fn, out = self._state, self._node.fn, self._rows.append
        late, expiry = batch.late, self._expiry
        origin: list[int] = []
        for i, (record, code, at_us, slice) in enumerate(rows):
            self.store.focus(keys[code], slice)
            state.key, state.time = keys[code], _EPOCH + timedelta(microseconds=at_us)
            reached_us = int(late[i]) if late is not None else at_us
            state.late = at_us < reached_us
            expiry.at(max(at_us, reached_us))
            before = len(self._rows)
            try:
                _check_nothing(fn(record, state, out))
            except Exception as error:
                del self._rows[before:]
                self._guard(record, error)
            origin += [i] * (len(self._rows) - before)
        if self._rows:
            at = np.array(origin, np.int64)
            self._emit(batch.times[at], batch.born_us, late[at] if late is not None else None)

    def on_watermark(self, watermark_us: int) -> None:
        self._fire("event", watermark_us)
        if watermark_us >= FOREVER_US:
            self._fire("processing", FOREVER_US)
        self._expire(watermark_us)

    def on_clock(self, now_us: int) -> None:
        self.now_us = now_us
        self._fire("processing", now_us)
        self._expire(now_us - _UNDER_WAY_US if self._timeless else self.watermark_us)

    def next_clock_us(self) -> int | None:
        timers = self._timers["processing"]
        if self._expiring:
            return self.now_us
        return timers[0][0] if timers else None

    def set_timer(self, clock: ClockKind, key: Key, tag: str, at_us: int) -> None:
        self.store.set(f"#{clock}", key, tag, at_us)
        self._push(clock, key, tag, at_us, self.store.slice)

    def _push(self, clock: ClockKind, key: Key, tag: str, at_us: int, slice: int) -> None:
        self._serial += 1  # keys need not be comparable
        heapq.heappush(self._timers[clock], (at_us, tag, self._serial, key, slice))

    def _expire(self, until_us: int) -> None:
        """Delete some of what nobody may see after all that was due until then has been done."""
        self._expiry.reach(until_us)
        self._expiring = self.store.expire()

    def _fire(self, clock: ClockKind, until_us: int) -> None:
        timers = self._timers[clock]
        if until_us >= FOREVER_US:  # the input has ended: what on_timer sets now is never due
            timers, self._timers[clock] = self._timers[clock], []
        while timers and timers[0][0] <= until_us:
            at_us, tag, _, key, slice = heapq.heappop(timers)
            self.store.focus(key, slice)
            if self.store.get(f"#{clock}", key, tag) != at_us:
                continue  # moved or cancelled since
            self.store.delete(f"#{clock}", key, tag)
            if self._node.on_timer is None:
                continue
            at = _EPOCH + timedelta(microseconds=at_us)
            self._state.key, self._state.time, self._state.late = key, at, False
            self._expiry.at(at_us if clock == "event" or self._timeless else NEVER_US)
            try:
                _check_nothing(self._node.on_timer(Timer(key, at, tag, clock), self._state, self._rows.append))
            except Exception as error:
                self._rows.clear()
                self._guard({"timer": tag, "key": key, "at": at.isoformat()}, error)
            if self._rows:
                self._emit(np.full(len(self._rows), at_us), self.now_us, None)

    def _emit(self, times: Any, born_us: int, late: Any) -> None:
        rows, self._rows = self._rows, []
        self.emit_rows(rows, times, born_us, late)

    def emit_rows(self, rows: list[dict[str, Any]], times: Any, born_us: int, late: Any) -> None:
        """Emit rows as records of the step's schema."""
        records, kept = to_records(rows, self._out, self._guard, declared=self._node.options.returns is not None)
        at = np.array(kept, np.int64)
        self.emit(Batch(records, times[at], born_us, late[at] if late is not None else None))


def _check_nothing(returned: Any) -> None:
    """Rows that a function returns would be in no result: a lambda may give what ``out`` gave, but no records."""
    if returned is not None and isinstance(returned, dict | list | Generator):
        what = "yields" if isinstance(returned, Generator) else "returns"
        raise StateError(f"the function {what} rows, which nobody takes: give each to out(row)")


def _us(at: datetime) -> int:
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return (at - _EPOCH) // timedelta(microseconds=1)
