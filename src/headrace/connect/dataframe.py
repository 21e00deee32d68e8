"""A user's own Spark DataFrame, streaming or batch, as a source (microbatch and batch mode)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from headrace.connect.source import Offset, Poll, Reader
from headrace.errors import ConfigError


class DataFrameSource:
    """Spark reads; Headrace gets the rows of each epoch. Only the driver holds the DataFrame."""

    def __init__(self, frame: DataFrame) -> None:
        self.frame: DataFrame | None = frame
        self.streaming = bool(frame.isStreaming)
        self._schema = pa.schema([pa.field(f.name, f.type) for f in to_arrow_schema(frame.schema, timezone="UTC")])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "frame": None}

    @property
    def bounded(self) -> bool:
        return not self.streaming

    @property
    def live(self) -> bool:
        return False

    def partitions(self, parallelism: int) -> int:
        return parallelism

    def schema(self) -> pa.Schema:
        return self._schema

    def sample(self, rows: int) -> pa.RecordBatch:
        if self.streaming or self.frame is None:
            return pa.RecordBatch.from_pylist([], schema=self._schema)
        table = self.frame.limit(rows).toArrow().cast(self._schema).combine_chunks()
        batches = table.to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=self._schema)

    def open(self, partition: int, of: int, offset: Offset | None, schema: pa.Schema, log_dir: Path) -> Reader:
        return _Fed(ended=not self.streaming)

    def describe(self) -> str:
        return f"DataFrame ({'streaming' if self.streaming else 'batch'}), columns {', '.join(self._schema.names)}"


class _Fed:
    """A reader that is fed by Spark and has nothing to poll."""

    def __init__(self, *, ended: bool) -> None:
        self.exhausted = ended

    def poll(self, max_rows: int, now_us: int) -> Poll | None:
        return None

    def offset(self) -> Offset:
        return {}

    def next_due_us(self) -> int | None:
        return None

    def close(self) -> None:
        """Nothing to close."""


def dataframe(frame: DataFrame) -> DataFrameSource:
    """A source of a Spark DataFrame's rows; for ``mode="microbatch"`` (streaming) or ``"batch"``."""
    if not isinstance(frame, DataFrame):
        raise ConfigError(f"hr.dataframe takes a Spark DataFrame, not {type(frame).__name__}")
    return DataFrameSource(frame)
