"""A directory that grows: each finished file is read once."""

from __future__ import annotations

import fnmatch
import stat
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.connect.reading.cursors import open_cursor
from headrace.connect.reading.formats import (
    Format,
    check_format,
    format_of,
    headless_columns,
    infer_file_schema,
    is_unfinished,
    known_format,
)
from headrace.connect.reading.inference import as_schema
from headrace.connect.reading.lineblocks import PACED_BLOCK_BYTES
from headrace.connect.reading.pieces import Cursor
from headrace.connect.source import BadRecord, Offset, Poll
from headrace.errors import ConfigError, DataError, SchemaError
from headrace.schemas import SchemaLike, empty_batch

_LISTING_US = 200_000


def files(
    directory: str | Path,
    *,
    format: str | None = None,
    pattern: str = "*",
    schema: SchemaLike | None = None,
    partitions: int = 1,
    until_empty: bool = False,
    header: bool = True,
) -> Files:
    """A source of files that others put into ``directory``, oldest first, looked for every 0.2 s.

    Write a file under a name that ends in ``.tmp`` or ``.part`` (or starts with ``.`` or ``_``) and
    rename it when it is complete: it is then read once, and must not change any more. A file may be
    removed after it was read; a new file of the same name then counts as new. ``format`` and ``header`` are as
    for `replay`; a file of unknown format becomes one bad record. ``until_empty`` ends the stream as soon
    as all files there are have been read.

    >>> files("inbox/", format="jsonl", schema={"ts": "int64"}).live
    True
    """
    if partitions < 1:
        raise ConfigError(f"files: partitions must be at least 1, not {partitions!r}")
    where = str(Path(directory).absolute())
    known, declared = check_format(format, "files"), as_schema(schema)
    columns = headless_columns(header, known, declared, "files")
    return Files(where, known, pattern, declared, partitions, until_empty, columns)


@dataclass(frozen=True, slots=True)
class Files:
    """Description of a growing directory; made by `files`."""

    directory: str
    format: Format | None = None
    pattern: str = "*"
    declared: pa.Schema | None = None
    partition_count: int = 1
    until_empty: bool = False
    columns: tuple[str, ...] | None = None
    """Those of CSV files without a header line."""

    @property
    def bounded(self) -> bool:
        return self.until_empty

    @property
    def live(self) -> bool:
        return True

    def partitions(self, parallelism: int) -> int:
        return self.partition_count

    def schema(self) -> pa.Schema:
        if self.declared is not None:
            return self.declared
        for path in self.ready():
            known = format_of(path, self.format)
            if known is not None and path.stat().st_size:
                return infer_file_schema(path, known)
        raise SchemaError(
            f"files: {self.directory} has no file to infer a schema from yet; declare it: schema={{'ts': 'int64', …}}"
        )

    def sample(self, rows: int) -> pa.RecordBatch:
        schema = self.schema()
        for path in self.ready():
            known = format_of(path, self.format)
            if known is None:
                continue
            cursor = open_cursor(path, known, schema, {}, block_bytes=PACED_BLOCK_BYTES, columns=self.columns)
            try:
                batch = cursor.pending()
            finally:
                cursor.close()
            if batch is not None and batch.num_rows:
                return batch.slice(0, rows)
        return empty_batch(schema)

    def names(self) -> list[str]:
        """The names of finished files. Raises ConfigError when there is no such directory."""
        try:
            names = [path.name for path in Path(self.directory).iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            raise ConfigError(f"files: no such directory: {self.directory}; create it before the job starts") from None
        return [name for name in names if fnmatch.fnmatchcase(name, self.pattern) and not is_unfinished(name)]

    def oldest_first(self, names: Iterable[str]) -> list[Path]:
        """Those of the names that are regular files, by time of change."""
        found = []
        for path in (Path(self.directory, name) for name in names):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode):
                found.append((status.st_mtime_ns, path))
        return [path for _, path in sorted(found)]

    def ready(self) -> list[Path]:
        """All finished files, oldest first."""
        return self.oldest_first(self.names())

    def open(self, partition: int, of: int, offset: Offset | None, schema: pa.Schema, log_dir: Path) -> FilesReader:
        return FilesReader(self, partition, of, offset, schema)

    def describe(self) -> str:
        return f"files {self.pattern} arriving in {self.directory}"


def partition_of(name: str, of: int) -> int:
    """The partition that a file belongs to: the same in every process."""
    return zlib.crc32(name.encode("utf-8", "surrogateescape")) % of


class FilesReader:
    """One partition's files. The offset holds the names read, the file being read and the position in it."""

    def __init__(self, source: Files, partition: int, of: int, offset: Offset | None, schema: pa.Schema) -> None:
        self._source, self._partition, self._of, self._schema = source, partition, of, schema
        self._done: set[str] = set(offset["done"]) if offset else set()
        self._waiting: list[Path] = []
        self._next_listing_us = 0
        self._exhausted = False
        self._current: str | None = None
        self._cursor: Cursor | None = None
        if offset and offset["current"] is not None:
            path = Path(source.directory) / offset["current"]
            if not path.is_file():
                raise DataError(f"files: {path} is gone, but the checkpoint stopped in the middle of it; put it back")
            known = known_format(path, source.format)
            self._cursor = open_cursor(path, known, schema, offset["pos"], columns=source.columns)
            self._current = path.name

    def _open(self, path: Path) -> Sequence[BadRecord]:
        """Start on a file; one that cannot be read at all is done, and a bad record."""
        known = format_of(path, self._source.format)
        try:
            if known is None:
                raise DataError("unknown format: give files() a format= or a pattern=")
            self._cursor = open_cursor(path, known, self._schema, {}, columns=self._source.columns)
            self._current = path.name
            return ()
        except FileNotFoundError:
            return ()
        except (DataError, SchemaError, OSError) as error:
            self._done.add(path.name)
            return (BadRecord(str(path)[-200:], str(error)[:200], str(path)),)

    def poll(self, max_rows: int, now_us: int) -> Poll | None:
        while True:
            if self._cursor is not None:
                batch = self._cursor.pending()
                if batch is not None:
                    piece = self._cursor.take(min(max_rows, batch.num_rows))
                    return Poll(piece.rows, bad=piece.bad)
                self._finish()
            if not self._waiting and not self._look(now_us):
                return None
            bad = self._open(self._waiting.pop(0))
            if bad:
                return Poll(empty_batch(self._schema), bad=bad)

    def _finish(self) -> None:
        assert self._cursor is not None and self._current is not None
        self._cursor.close()
        self._done.add(self._current)
        self._cursor, self._current = None, None

    def _look(self, now_us: int) -> bool:
        """List the directory, if that is due; whether there is something to read."""
        if now_us < self._next_listing_us:
            return False
        self._next_listing_us = now_us + _LISTING_US
        present = {name for name in self._source.names() if partition_of(name, self._of) == self._partition}
        self._done &= present
        self._waiting = self._source.oldest_first(present - self._done)
        self._exhausted = self._source.until_empty and not self._waiting
        return bool(self._waiting)

    def offset(self) -> Offset:
        position = self._cursor.position() if self._cursor is not None else {}
        return {"done": set(self._done), "current": self._current, "pos": position}

    @property
    def exhausted(self) -> bool:
        return self._exhausted

    def next_due_us(self) -> int | None:
        """When to look again, if nothing is known to wait."""
        return None if self._cursor is not None or self._waiting else self._next_listing_us or None

    def close(self) -> None:
        """Close the file being read; the offset can still be asked for."""
        if self._cursor is not None:
            self._cursor.close()
