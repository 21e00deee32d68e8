"""Users' DataFrames as rows for stage 0."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from headrace.runtime.wire.frames import external_row
from headrace.runtime.wire.outlet import ROW_SCHEMA


@dataclass(frozen=True)
class Encode:
    """A ``mapInArrow`` function: records of one DataFrame as rows for some source subtask."""

    source: int
    subtasks: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        route = (context.partitionId() if context else 0) % self.subtasks
        for batch in batches:
            columns = [pa.array([route], pa.int32()), pa.array([external_row(self.source, batch)], pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)


def encode(frames: list[tuple[int, DataFrame]], subtasks: int) -> DataFrame:
    """All DataFrames in one, as rows of ``(route, payload)``."""
    rows = [frame.mapInArrow(Encode(number, subtasks), "route int, payload binary") for number, frame in frames]
    return reduce(DataFrame.unionAll, rows)
