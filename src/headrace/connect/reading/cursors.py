"""One file (or log) read from a position on: parsed rows are kept until they are taken.

A cursor's position is exact at any row: for text the start of a block and the rows taken from it, for
Parquet the row group and the rows taken from it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from headrace.connect.reading.formats import Format, read_start
from headrace.connect.reading.lineblocks import BLOCK_BYTES, Block, BlockCutter, ReadAt
from headrace.connect.reading.parse import CsvParser, JsonParser, Parse, Parsed, parse_block, parse_lines
from headrace.connect.reading.pieces import Cursor, KeptRows, Position
from headrace.connect.reading.rowgroups import ParquetCursor
from headrace.errors import CorruptionError, SchemaError


def _nothing() -> None:
    """A text that needs no closing."""


class TextCursor:
    """Lines read through ``read(pos, size)``, a block at a time; ``file`` is what they are a file of."""

    def __init__(
        self,
        read: ReadAt,
        parse: Parse,
        schema: pa.Schema,
        position: Position,
        *,
        block_bytes: int = BLOCK_BYTES,
        complete: bool = True,
        file: Path | None = None,
        close: Callable[[], None] = _nothing,
    ) -> None:
        self._read, self._file = read, file
        self._counted = (0, 0)
        self._cutter = BlockCutter(read, position["pos"], block_bytes=block_bytes, complete=complete)
        self._parse = parse
        self._schema = schema
        self._skip: int = position.get("rows", 0)
        self._start: int = position["pos"]
        self._kept: KeptRows | None = None
        self._close = close

    def pending(self) -> pa.RecordBatch | None:
        while self._kept is None or self._kept.used_up:
            block = self._cutter.next()
            if block is None:
                return None
            self._kept = KeptRows(self._placed(block, parse_block(block, self._parse, self._schema)), self._skip)
            self._start = block.start
            self._skip -= self._kept.taken
        return self._kept.rest()

    def _placed(self, block: Block, parsed: Parsed) -> Parsed:
        """With the numbers that malformed lines have in their file."""
        if self._file is None or not parsed.bad:
            return parsed
        before = self._lines_before(block.start) + 1
        where = (f"{self._file}, line {before + at}" for at in parsed.lines)
        return replace(parsed, bad=[replace(bad, where=each) for bad, each in zip(parsed.bad, where, strict=True)])

    def _lines_before(self, pos: int) -> int:
        """How many lines end before a position: read again, since only malformed lines are asked about, and forwards."""
        at, lines = self._counted
        while at < pos and (data := self._read(at, min(BLOCK_BYTES, pos - at))):
            at, lines = at + len(data), lines + data.count(b"\n")
        self._counted = at, lines
        return lines

    def take(self, rows: int) -> Parsed:
        assert self._kept is not None
        return self._kept.take(rows)

    def position(self) -> Position:
        if self._kept is None:
            return {"pos": self._start, "rows": self._skip}
        if self._kept.used_up:
            return {"pos": self._cutter.pos, "rows": self._skip}
        return {"pos": self._start, "rows": self._kept.taken}

    def close(self) -> None:
        self._close()
        self._close = _nothing


def parser_of(format: Format, schema: pa.Schema, header: list[str] | None = None) -> Parse:
    """The parser of a text format. Raises SchemaError when the format cannot hold the schema."""
    if format == "csv":
        assert header is not None
        return CsvParser(schema, header)
    if format == "jsonl":
        return JsonParser(schema)
    if schema.names != ["line"] or not pa.types.is_string(schema.field("line").type):
        raise SchemaError(f"format 'lines' has one column, line: string; the schema declares {schema.names}")
    return parse_lines


def open_cursor(
    path: Path,
    format: Format,
    schema: pa.Schema,
    position: Position,
    *,
    block_bytes: int = BLOCK_BYTES,
    columns: Sequence[str] | None = None,
) -> Cursor:
    """Open a file at a position (``{}``: at its start); ``columns`` are those of a CSV file without a header line."""
    if format == "parquet":
        return ParquetCursor(path, schema, position)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        start, header = read_start(path, descriptor, format, columns)
        if header and not set(header) & set(schema.names):
            raise SchemaError(
                f"{path} has none of the columns {schema.names}; its first line must name columns, it is {header}; "
                f"if that is a record already, give header=False"
            )
        size = os.fstat(descriptor).st_size
        position = {"pos": start, **position}
        if position["pos"] > size:
            raise CorruptionError(f"{path} ends at byte {size}, before the offset {position['pos']}: it was changed")
        return TextCursor(
            lambda at, size: os.pread(descriptor, size, at),
            parser_of(format, schema, header),
            schema,
            position,
            block_bytes=block_bytes,
            file=path,
            close=lambda: os.close(descriptor),
        )
    except BaseException:
        os.close(descriptor)
        raise
