"""Stored records as a stream: as fast as possible, at a rate, or by their recorded times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.connect.duetimes import ByRate, ByRecordedTime, Schedule, Unscheduled
from headrace.connect.pace import Rate, as_pace
from headrace.connect.reading.cursors import open_cursor
from headrace.connect.reading.formats import (
    Format,
    about_rows,
    check_format,
    headless_columns,
    infer_file_schema,
    known_format,
    list_files,
)
from headrace.connect.reading.inference import as_schema
from headrace.connect.reading.lineblocks import BLOCK_BYTES, PACED_BLOCK_BYTES
from headrace.connect.reading.pieces import Cursor, Position
from headrace.connect.reading.times import column_us
from headrace.connect.source import Offset, Poll
from headrace.errors import ConfigError, HeadraceError, SchemaError, StateError
from headrace.schemas import SchemaLike, empty_batch


def replay(
    path: str | Path,
    *,
    format: str | None = None,
    rate: Rate | None = None,
    speed: float | None = None,
    time: str | None = None,
    schema: SchemaLike | None = None,
    partitions: int | None = None,
    header: bool = True,
) -> Replay:
    """A source of stored records: a JSON lines, CSV, text or Parquet file, a directory of them, or a glob.

    ``format`` is ``"jsonl"``, ``"csv"``, ``"lines"`` or ``"parquet"``; without it the suffix tells. The first line of a
    CSV file names its columns; with ``header=False`` it is a record, and ``schema`` names all columns in
    order. Files are dealt round-robin, in sorted order, to at most as many partitions as there are files.

    ``rate`` paces all partitions together (``"5000/s"``, steps, or a function, as for `generate`).
    ``speed`` replays by the column ``time``: 1.0 as recorded, 10.0 ten times as fast. That column is a
    timestamp, an ISO-8601 string, whole microseconds or floating seconds since 1970. Without either,
    records come as fast as they are taken.

    Lines that are no records (malformed, wrong type, invalid UTF-8, above 16 MB) become bad records;
    the rest is kept. An empty CSV field or missing JSON key is null.

    >>> replay("tweets.jsonl", rate="5000/s").bounded
    True
    """
    if (speed is None) != (time is None):
        raise ConfigError("replay: speed= and time= belong together: speed=1.0, time='ts'")
    if speed is not None and (rate is not None or not 0 < speed < float("inf")):
        raise ConfigError(f"replay: speed={speed!r} must be more than zero and without rate=")
    if partitions is not None and partitions < 1:
        raise ConfigError(f"replay: partitions must be at least 1, not {partitions!r}")
    if rate is not None:
        as_pace(rate)
    known = check_format(format, "replay")
    declared = as_schema(schema)
    columns = headless_columns(header, known, declared, "replay")
    return Replay(str(Path(path).absolute()), known, rate, speed, time, declared, partitions, columns)


@dataclass(frozen=True, slots=True)
class Replay:
    """Description of a replayed source; made by `replay`."""

    path: str
    format: Format | None = None
    rate: Rate | None = None
    speed: float | None = None
    time: str | None = None
    declared: pa.Schema | None = None
    partition_count: int | None = None
    columns: tuple[str, ...] | None = None
    """Those of CSV files without a header line."""

    @property
    def bounded(self) -> bool:
        return True

    @property
    def live(self) -> bool:
        return False

    def partitions(self, parallelism: int) -> int:
        return max(1, min(len(list_files(self.path)), self.partition_count or parallelism))

    def schema(self) -> pa.Schema:
        first = list_files(self.path)[0]
        schema = self.declared if self.declared is not None else infer_file_schema(first, self._format(first))
        if self.time is not None and self.time not in schema.names:
            raise SchemaError(f"replay: time={self.time!r} is not a column of {self.path}; it has {schema.names}")
        return schema

    def sample(self, rows: int) -> pa.RecordBatch:
        return self._first_rows(rows, self.schema())

    def _first_rows(self, rows: int, schema: pa.Schema) -> pa.RecordBatch:
        first = list_files(self.path)[0]
        cursor = self._open(first, schema, {}, PACED_BLOCK_BYTES)
        try:
            while (batch := cursor.pending()) is not None:
                if batch.num_rows:
                    return batch.slice(0, rows)
                cursor.take(0)
            return empty_batch(schema)
        finally:
            cursor.close()

    def open(self, partition: int, of: int, offset: Offset | None, schema: pa.Schema, log_dir: Path) -> ReplayReader:
        schedule: Schedule = Unscheduled()
        if self.rate is not None:
            schedule = ByRate(as_pace(self.rate), partition, of)
        elif self.time is not None and self.speed is not None:
            schedule = ByRecordedTime(self.time, self.speed, self._origin_us(schema))
        if offset:
            schedule.resume(offset["schedule"])
        return ReplayReader(self, list_files(self.path)[partition::of], offset, schema, schedule)

    def _origin_us(self, schema: pa.Schema) -> int:
        """The recorded time that the replay starts at: the very first record's, the same for all partitions."""
        rows = self._first_rows(1, schema)
        return int(column_us(rows.column(self.time))[0]) if rows.num_rows else 0

    def open_file(self, path: Path, schema: pa.Schema, position: Position) -> Cursor:
        """Open one of the files."""
        paced = self.rate is not None or self.speed is not None
        block_bytes = PACED_BLOCK_BYTES if paced else BLOCK_BYTES
        return self._open(path, schema, position, block_bytes)

    def _open(self, path: Path, schema: pa.Schema, position: Position, block_bytes: int) -> Cursor:
        format = self._format(path)
        return open_cursor(path, format, schema, position, block_bytes=block_bytes, columns=self.columns)

    def _format(self, path: Path) -> Format:
        return known_format(path, self.format)

    def expected_rows(self) -> int | None:
        try:
            return sum(about_rows(file, self._format(file)) for file in list_files(self.path))
        except (OSError, HeadraceError, pa.ArrowException):
            return None  # who reads it will say why

    def describe(self) -> str:
        if self.speed is not None:
            return f"replay of {self.path} by {self.time} at {self.speed:g} times its speed"
        if self.rate is not None:
            rate = self.rate if isinstance(self.rate, (str, int, float)) else "a varying rate"
            return f"replay of {self.path} at {rate}"
        return f"replay of {self.path} as fast as possible"


class ReplayReader:
    """One partition's files, one after another.

    The offset names the file (by index and name), the position in it, and where the schedule stands.
    """

    def __init__(
        self, source: Replay, files: Sequence[Path], offset: Offset | None, schema: pa.Schema, schedule: Schedule
    ) -> None:
        self._source, self._files, self._schema, self._schedule = source, files, schema, schedule
        self._at: int = offset["file"] if offset else 0
        self._cursor: Cursor | None = None
        if offset and self._name() != offset["name"]:
            raise StateError(
                f"replay of {source.path}: the checkpoint stopped in {offset['name']}, there is now {self._name()}; "
                "files of a replay must not change while a checkpoint refers to them"
            )
        self._open_next(offset["position"] if offset else {})

    def _name(self) -> str | None:
        return self._files[self._at].name if self._at < len(self._files) else None

    def _open_next(self, position: Position) -> None:
        if self._at < len(self._files):
            self._cursor = self._source.open_file(self._files[self._at], self._schema, position)

    def _pending(self) -> pa.RecordBatch | None:
        while self._cursor is not None:
            batch = self._cursor.pending()
            if batch is not None:
                return batch
            self._cursor.close()
            self._cursor = None
            self._at += 1
            self._open_next({})
        return None

    def poll(self, max_rows: int, now_us: int) -> Poll | None:
        self._schedule.start(now_us)
        batch = self._pending()
        if batch is None or self._cursor is None:
            return None
        rows, due_us = self._schedule.due(batch, now_us)
        rows = min(rows, max_rows)
        if batch.num_rows and rows <= 0:
            return None
        piece = self._cursor.take(rows)
        return Poll(piece.rows, due_us, piece.bad, self._schedule.take(rows))

    def offset(self) -> Offset:
        position = self._cursor.position() if self._cursor is not None else {}
        return {"file": self._at, "name": self._name(), "position": position, "schedule": self._schedule.state()}

    @property
    def exhausted(self) -> bool:
        return self._at >= len(self._files)

    def next_due_us(self) -> int | None:
        return None if self.exhausted else self._schedule.next_due_us()

    def close(self) -> None:
        """Close the open file; the offset can still be asked for."""
        if self._cursor is not None:
            self._cursor.close()
