"""Parquet files read from a position on, a row group at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.connect.reading.parse import Parsed
from headrace.connect.reading.pieces import KeptRows, Position
from headrace.connect.source import BadRecord
from headrace.schemas import empty_batch

_READ_ROWS = 65_536


class ParquetCursor:
    """Row groups of a Parquet file. What cannot be read is one bad record for each group (or the file).

    Its position is the group with the rows taken from it and the bad records told of it: batches without a
    sound row tell some and hand over none.
    """

    def __init__(self, path: Path, schema: pa.Schema, position: Position) -> None:
        self._path = path
        self._schema = schema
        self._group: int = position.get("group", 0)
        self._rows: int = position.get("rows", 0)
        self._bad: int = position.get("bad", 0)
        self._skip, self._skip_bad = self._rows, self._bad
        self._kept: KeptRows | None = None
        self._batches: Any = None
        self._file: pq.ParquetFile | None = None
        self._broken = ""
        try:
            self._file = pq.ParquetFile(path)
            self._groups: int = self._file.num_row_groups
        except (pa.ArrowException, OSError) as error:
            self._groups, self._broken = 1, f"not a Parquet file: {error}"

    def pending(self) -> pa.RecordBatch | None:
        while self._kept is None or self._kept.used_up:
            if self._group >= self._groups:
                return None
            parsed = self._next_batch()
            if parsed is None:
                self._leave_group()
            else:
                told = min(self._skip_bad, len(parsed.bad))
                self._kept = KeptRows(Parsed(parsed.rows, parsed.bad[told:]), self._skip)
                self._skip, self._skip_bad = self._skip - self._kept.taken, self._skip_bad - told
        return self._kept.rest()

    def _leave_group(self) -> None:
        self._group, self._kept, self._batches = self._group + 1, None, None
        self._rows = self._bad = self._skip = self._skip_bad = 0

    def _next_batch(self) -> Parsed | None:
        if self._batches is None:
            if self._file is None:
                return self._unreadable(self._broken)
            names = [name for name in self._schema.names if name in self._file.schema_arrow.names]
            self._batches = self._file.iter_batches(_READ_ROWS, row_groups=[self._group], columns=names)
        try:
            batch = next(self._batches, None)
        except (pa.ArrowException, OSError) as error:
            return self._unreadable(f"row group {self._group}: {error}")
        if batch is None:
            return None
        parsed, where = fitting_rows(batch, self._schema), f"{self._path}, row group {self._group}"
        return replace(parsed, bad=[replace(bad, where=where) for bad in parsed.bad]) if parsed.bad else parsed

    def _unreadable(self, reason: str) -> Parsed:
        self._batches = iter(())
        bad = BadRecord(str(self._path)[-200:], reason[:200], str(self._path))
        return Parsed(empty_batch(self._schema), (bad,))

    def take(self, rows: int) -> Parsed:
        assert self._kept is not None
        piece = self._kept.take(rows)
        self._rows += piece.rows.num_rows
        self._bad += len(piece.bad)
        return piece

    def position(self) -> Position:
        return {"group": self._group, "rows": self._rows, "bad": self._bad}

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def fitting_rows(batch: pa.RecordBatch, schema: pa.Schema) -> Parsed:
    """A batch in the schema's columns and types; rows with values that do not fit are bad records."""
    try:
        columns = [
            batch.column(field.name).cast(field.type)
            if field.name in batch.schema.names
            else pa.nulls(batch.num_rows, field.type)
            for field in schema
        ]
        return Parsed(pa.RecordBatch.from_arrays(columns, schema=schema))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if batch.num_rows == 1:
            return Parsed(empty_batch(schema), (BadRecord(str(batch.to_pylist()[0])[:200], str(error)[:200]),))
    half = batch.num_rows // 2
    left, right = fitting_rows(batch.slice(0, half), schema), fitting_rows(batch.slice(half), schema)
    return Parsed(pa.concat_batches([left.rows, right.rows]), [*left.bad, *right.bad])
