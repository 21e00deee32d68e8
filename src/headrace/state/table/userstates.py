"""A user's reducer as an accumulator: one Python object per row, stored as msgpack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import SchemaError
from headrace.graph.reduction import UserReducer
from headrace.schemas import to_array
from headrace.state.plain import pack, unpack

Rows = npt.NDArray[np.int64]
Guard = Callable[[dict[str, Any], Exception], None]
"""Told of a user function's exception and its record; raises unless the record may be skipped."""
_OBJECT_BYTES = 33
"""What Python adds to the bytes of a packed state."""

_UNSEEN = object()


class UserState:
    """Each row's state is a Python object; ``packed``, it rests as bytes, so that its size is known."""

    varies = True
    row_bytes = 8

    def __init__(
        self, name: str, reducer: UserReducer, guard: Guard, result: pa.DataType | None, *, packed: bool = False
    ) -> None:
        self._reducer, self._guard, self._name = reducer, guard, name
        self.fields = [pa.field(f"{name}.state", pa.binary())]
        self.result = result if result is not None else pa.null()
        self._states: list[Any] = []
        self._packed, self._packed_bytes = packed, 0

    @property
    def nbytes(self) -> int:
        """Exact for packed states; those that are not are for tables without a bound."""
        return self.row_bytes * len(self._states) + self._packed_bytes

    def grow(self, capacity: int) -> None:
        self._states.extend([_UNSEEN] * (capacity - len(self._states)))

    def reset(self, rows: Rows) -> None:
        for row in rows.tolist():
            if self._packed and self._states[row] is not _UNSEEN:
                self._packed_bytes -= len(self._states[row]) + _OBJECT_BYTES
            self._states[row] = _UNSEEN

    def add(self, rows: Rows, batch: pa.RecordBatch, times: Rows) -> None:
        with self._awake(rows):
            self._add(rows, batch)

    def _add(self, rows: Rows, batch: pa.RecordBatch) -> None:
        states, update, init = self._states, self._reducer.update, self._reducer.init
        for row, record in zip(rows.tolist(), batch.to_pylist()):
            state = states[row]
            try:
                states[row] = update(init() if state is _UNSEEN else state, record)
            except Exception as error:
                self._guard(record, error)

    def merge(self, rows: Rows, partial: list[pa.Array]) -> None:
        with self._awake(rows):
            self._merge(rows, partial)

    def _merge(self, rows: Rows, partial: list[pa.Array]) -> None:
        states, combine = self._states, self._reducer.combine
        for row, packed in zip(rows.tolist(), partial[0].to_pylist()):
            if packed is None:
                continue
            other = unpack(packed)
            if states[row] is _UNSEEN:
                states[row] = other
            elif combine is not None:
                try:
                    states[row] = combine(states[row], other)
                except Exception as error:
                    self._guard({"combine": [states[row], other]}, error)

    def export(self, rows: Rows) -> list[pa.Array]:
        states = [self._states[row] for row in rows.tolist()]
        packed = [None if state is _UNSEEN else state if self._packed else self._pack(state) for state in states]
        return [pa.array(packed, pa.binary())]

    @contextmanager
    def _awake(self, rows: Rows) -> Iterator[None]:
        """Packed states of rows are objects within, and bytes again afterwards."""
        if not self._packed:
            yield
            return
        states, touched = self._states, np.unique(rows).tolist()
        for row in touched:
            if states[row] is not _UNSEEN:
                self._packed_bytes -= len(states[row]) + _OBJECT_BYTES
                states[row] = unpack(states[row])
        yield
        for row in touched:
            if states[row] is not _UNSEEN:
                states[row] = self._pack(states[row])
                self._packed_bytes += len(states[row]) + _OBJECT_BYTES

    def _pack(self, state: Any) -> bytes:
        return pack(state, f"reducer {self._name!r}")

    def _state(self, row: int) -> Any:
        state = self._states[row]
        return unpack(state) if self._packed and state is not _UNSEEN else state

    def values(self, rows: Rows) -> list[Any]:
        """The rows' results as Python values."""
        finalize, values = self._reducer.finalize, []
        for row in rows.tolist():
            state = self._state(row)
            value = None
            if state is not _UNSEEN:
                try:
                    value = finalize(state) if finalize is not None else state
                except Exception as error:
                    self._guard({"finalize": state}, error)
            values.append(value)
        return values

    def finalize(self, rows: Rows) -> pa.Array:
        values = self.values(rows)
        try:
            return to_array(values, self.result)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return to_array([self._fitting(value) for value in values], self.result)

    def _fitting(self, value: Any) -> Any:
        try:
            to_array([value], self.result)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            reason = f"reducer {self._name!r} gave a value that does not fit its type {self.result}: {error}"
            self._guard({self._name: value}, SchemaError(reason))
            return None
        return value

    def early(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which rows' results are wanted before the window ends."""
        wanted = np.zeros(len(rows), dtype=bool)
        early = self._reducer.early
        if early is not None:
            for i, row in enumerate(rows.tolist()):
                state = self._state(row)
                if state is not _UNSEEN:
                    try:
                        wanted[i] = bool(early(state))
                    except Exception as error:
                        self._guard({"early": state}, error)
        return wanted
