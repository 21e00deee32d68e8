"""What travels between operators: records with their times."""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Times = npt.NDArray[np.int64]
TIME, LATE = "__time", "__late"


@dataclass(slots=True)
class Batch:
    """Records, their event times (µs), and for out-of-order ones their source's watermark.

    ``late[i]`` is the watermark that the record's own source partition had reached before it. A
    window that ended by then is closed for the record. Whether a record is late is thus decided
    where it enters, by its partition's own order: the answer is the same in every mode, for every
    interleaving and after every restart. ``late`` is None when all records are on time.
    ``born_us`` is when the oldest record was due or read; ``tag_us`` when one was that was drawn at
    random, for measuring. A step's results have the tag of what made it emit them (None until then).
    ``held_us`` is the mean age of its records when they were read.
    """

    records: pa.RecordBatch
    times: Times
    born_us: int
    late: Times | None = None
    tag_us: int | None = None
    held_us: int = 0

    @property
    def rows(self) -> int:
        count: int = self.records.num_rows
        return count

    def take(self, positions: Times) -> Batch:
        return Batch(
            self.records.take(pa.array(positions)),
            self.times[positions],
            self.born_us,
            self.late[positions] if self.late is not None else None,
            self.tag_us,
            self.held_us,
        )

    def where(self, mask: npt.NDArray[np.bool_]) -> Batch:
        return Batch(
            self.records.filter(pa.array(mask)),
            self.times[mask],
            self.born_us,
            self.late[mask] if self.late is not None else None,
            self.tag_us,
            self.held_us,
        )

    def with_records(self, records: pa.RecordBatch) -> Batch:
        """Other columns for the same rows."""
        return Batch(records, self.times, self.born_us, self.late, self.tag_us, self.held_us)


def wire_schema(schema: pa.Schema, *, late: bool) -> pa.Schema:
    """The columns of a batch inside a buffer."""
    extra = [pa.field(TIME, pa.int64())] + ([pa.field(LATE, pa.int64())] if late else [])
    return pa.schema([*schema, *extra])


def to_wire(batch: Batch) -> pa.RecordBatch:
    columns = [*batch.records.columns, pa.array(batch.times)]
    if batch.late is not None:
        columns.append(pa.array(batch.late))
    return pa.RecordBatch.from_arrays(columns, schema=wire_schema(batch.records.schema, late=batch.late is not None))


def from_wire(records: pa.RecordBatch, schema: pa.Schema, born_us: int, tag_us: int | None = None) -> Batch:
    width = len(schema)
    times = records.column(width).to_numpy()
    late = records.column(width + 1).to_numpy() if records.num_columns > width + 1 else None
    return Batch(pa.RecordBatch.from_arrays(records.columns[:width], schema=schema), times, born_us, late, tag_us)


def concat(batches: list[Batch]) -> Batch:
    """Batches of one schema as one; all with ``late`` or none."""
    if len(batches) == 1:
        return batches[0]
    late = [b.late for b in batches if b.late is not None]
    return Batch(
        pa.concat_batches([b.records for b in batches]),
        np.concatenate([b.times for b in batches]),
        min(b.born_us for b in batches),
        np.concatenate(late) if late else None,
        _drawn_tag(batches),
    )


def _drawn_tag(batches: list[Batch]) -> int | None:
    """The tag of a batch drawn by its share of the records: again that of a record drawn from them all."""
    ends = list(accumulate(batch.rows for batch in batches))
    return batches[bisect_right(ends, random.randrange(ends[-1]))].tag_us if ends[-1] else batches[0].tag_us
