"""Records made by a function of their sequence numbers, on an open-loop clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.connect.pace import Ints, Pace, Rate, as_pace
from headrace.connect.reading.inference import INFER_ROWS, as_schema
from headrace.connect.source import Offset, Poll
from headrace.errors import ConfigError, SchemaError
from headrace.schemas import SchemaLike

Make = Callable[[Ints], Mapping[str, Any] | pa.RecordBatch]


def generate(
    make: Make,
    *,
    rate: Rate | None = None,
    total: int | None = None,
    partitions: int | None = None,
    due: str | None = None,
    schema: SchemaLike | None = None,
) -> Generate:
    """A source of made-up records, for demos, tests and benchmarks.

    ``make`` is given an array of record numbers and returns their columns; it must be a pure
    function, because after a restart it is asked again. Partition ``p`` of ``P`` owns the numbers
    ``p, p + P, p + 2P, …``.

    ``rate`` is the total over all partitions: ``"2000/s"``, steps ``[("9 s", "500/s"), ("1 s", "5000/s")]``
    that repeat forever, or a function of the seconds since the start. Without it records come as fast
    as they are taken. The clock does not wait: records that could not be taken in time stay due.
    ``total`` ends the stream after so many records. ``due`` names a column to add, with the time
    at which each record was due (microseconds since 1970).

    >>> source = generate(lambda n: {"n": n, "key": n % 3}, rate="2000/s", total=10_000)
    >>> source.schema().names
    ['n', 'key']
    """
    for name, value in (("total", total), ("partitions", partitions)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ConfigError(f"generate: {name} must be a whole number of at least 1, not {value!r}")
    if rate is not None:
        as_pace(rate)
    return Generate(make, rate, total, partitions, due, as_schema(schema))


@dataclass(frozen=True, slots=True)
class Generate:
    """Description of a generated source; made by `generate`."""

    make: Make
    rate: Rate | None = None
    total: int | None = None
    partition_count: int | None = None
    due: str | None = None
    declared: pa.Schema | None = None

    @property
    def bounded(self) -> bool:
        return self.total is not None

    @property
    def live(self) -> bool:
        return False

    def partitions(self, parallelism: int) -> int:
        return self.partition_count or parallelism

    def schema(self) -> pa.Schema:
        made = self.declared
        if made is None:
            rows = min(INFER_ROWS, self.total or INFER_ROWS)
            made = as_batch(self.make(np.arange(rows, dtype=np.int64)), rows, None).schema
        if self.due is None or (self.declared is not None and self.due in made.names):
            return made
        if self.due in made.names:
            raise ConfigError(f"generate: make already returns a column {self.due!r}; give due= another name")
        return made.append(pa.field(self.due, pa.int64()))

    def sample(self, rows: int) -> pa.RecordBatch:
        numbers = np.arange(min(rows, self.total or rows), dtype=np.int64)
        due_us = np.full(len(numbers), time.time_ns() // 1000, dtype=np.int64)
        return self.batch(numbers, due_us, self.schema())

    def batch(self, numbers: Ints, due_us: Ints, schema: pa.Schema) -> pa.RecordBatch:
        """Make the records with these numbers."""
        if self.due is None or self.due not in schema.names:
            return as_batch(self.make(numbers), len(numbers), schema)
        at = schema.get_field_index(self.due)
        made = as_batch(self.make(numbers), len(numbers), schema.remove(at))
        columns = [*made.columns[:at], pa.array(due_us), *made.columns[at:]]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def open(self, partition: int, of: int, offset: Offset | None, schema: pa.Schema, log_dir: Path) -> GenerateReader:
        return GenerateReader(self, partition, of, offset, schema)

    def expected_rows(self) -> int | None:
        return self.total

    def describe(self) -> str:
        how = f"at {self.rate}" if isinstance(self.rate, (str, int, float)) else "at a varying rate"
        how = "as fast as possible" if self.rate is None else how
        return f"generated {how}" + (f", {self.total} records" if self.total else "")


def as_batch(made: Mapping[str, Any] | pa.RecordBatch, rows: int, schema: pa.Schema | None) -> pa.RecordBatch:
    """What a user's ``make`` returned, as a batch of the schema. Raises SchemaError when it does not fit."""
    if isinstance(made, pa.RecordBatch):
        made = dict(zip(made.schema.names, made.columns))
    if not isinstance(made, Mapping):
        raise SchemaError(f"generate: make must return columns {{name: array}}, not {type(made).__name__}")
    names = schema.names if schema is not None else list(made)
    columns = []
    for name in names:
        if name not in made:
            raise SchemaError(f"generate: make returned no column {name!r}; it returned {', '.join(made) or 'none'}")
        kind = schema.field(name).type if schema is not None else None
        columns.append(_as_array(name, made[name], kind, rows))
    return pa.RecordBatch.from_arrays(columns, schema=schema) if schema else pa.RecordBatch.from_arrays(columns, names)


def _as_array(name: str, values: Any, kind: pa.DataType | None, rows: int) -> pa.Array:
    try:
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        array = values if isinstance(values, pa.Array) else pa.array(values, kind)
        if kind is not None and array.type != kind:
            array = array.cast(kind)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaError(f"generate: column {name!r} is not {kind or 'an array'}: {error}") from error
    if len(array) != rows:
        raise SchemaError(f"generate: column {name!r} has {len(array)} values for {rows} record numbers")
    return array


class GenerateReader:
    """One partition of a generated source. Its offset holds the schedule's start and the next number."""

    def __init__(self, source: Generate, partition: int, of: int, offset: Offset | None, schema: pa.Schema) -> None:
        self._source = source
        self._of = of
        self._schema = schema
        self._pace: Pace | None = as_pace(source.rate) if source.rate is not None else None
        self._next: int = offset["next"] if offset else partition
        self._start_us: int | None = offset["start_us"] if offset else None

    def poll(self, max_rows: int, now_us: int) -> Poll | None:
        if self._start_us is None:
            self._start_us = now_us
        rows = min(max_rows, self._rows_due(now_us - self._start_us, max_rows))
        if rows <= 0:
            return None
        numbers = np.arange(self._next, self._next + rows * self._of, self._of, dtype=np.int64)
        if self._pace is None:
            due_us = np.full(rows if self._source.due else 1, now_us, dtype=np.int64)
        else:
            due_us = self._start_us + self._pace.due_us(numbers if self._source.due else numbers[[0, -1]])
        batch = self._source.batch(numbers, due_us, self._schema)
        self._next += rows * self._of
        if self._pace is None:
            return Poll(batch)
        return Poll(batch, int(due_us[0]), last_due_us=int(due_us[-1]))

    def _rows_due(self, elapsed_us: int, max_rows: int) -> int:
        due = self._next + max_rows * self._of if self._pace is None else self._pace.count_due(elapsed_us)
        if self._source.total is not None:
            due = min(due, self._source.total)
        return -((self._next - due) // self._of)

    def offset(self) -> Offset:
        return {"start_us": self._start_us, "next": self._next}

    @property
    def exhausted(self) -> bool:
        return self._source.total is not None and self._next >= self._source.total

    def next_due_us(self) -> int | None:
        if self._pace is None or self._start_us is None or self.exhausted:
            return None
        return self._start_us + int(self._pace.due_us(np.array([self._next]))[0])

    def close(self) -> None:
        """Nothing is held open."""
