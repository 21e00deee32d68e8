"""An open-loop source for stock Spark, in Python: the same clock that our own sources have."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Rows = Callable[[npt.NDArray[np.int64]], pa.RecordBatch]


def paced_source(name: str, schema: str, start_us: int, count_due: Callable[[int], int], rows: Rows) -> Any:
    """A streaming data source to register: ``count_due`` tells how many records are due so long (µs) after the start,
    ``rows`` makes records from their numbers. Each micro-batch is read in two partitions.
    """
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class Span(InputPartition):  # type: ignore[misc]
        def __init__(self, start: int, end: int) -> None:
            super().__init__((start, end))
            self.start, self.end = start, end

    class StockReader(DataSourceStreamReader):  # type: ignore[misc]
        def initialOffset(self) -> dict[str, int]:
            return {"n": 0}

        def latestOffset(self) -> dict[str, int]:
            elapsed_us = time.time_ns() // 1000 - start_us
            return {"n": count_due(elapsed_us) if elapsed_us > 0 else 0}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            half = (start["n"] + end["n"]) // 2
            return [Span(start["n"], half), Span(half, end["n"])]

        def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
            yield rows(np.arange(partition.start, partition.end))

    class StockSource(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return schema

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return StockReader()

    return StockSource
