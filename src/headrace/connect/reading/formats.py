"""Which files a path means, in which format, and what their first records look like."""

from __future__ import annotations

import csv
import glob
import json
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.connect.reading.inference import INFER_ROWS, guess_value, schema_of_records
from headrace.connect.reading.lineblocks import MAX_LINE_BYTES, BlockCutter
from headrace.connect.reading.parse import LINES_SCHEMA
from headrace.errors import ConfigError, DataError, SchemaError

Format = Literal["jsonl", "csv", "lines", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)

_SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet", ".pq": "parquet",
    ".txt": "lines", ".log": "lines",
}  # fmt: skip
_BOM = b"\xef\xbb\xbf"
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}")
_SAMPLE_BLOCK_BYTES = 2**20


def check_format(format: str | None, where: str) -> Format | None:
    """A format that a user named. Raises ConfigError for an unknown one."""
    if format is not None and format not in FORMATS:
        raise ConfigError(f"{where}: format {format!r} is not one of {', '.join(FORMATS)}")
    return format


def format_of(path: Path, format: Format | None) -> Format | None:
    """The format named by the user, or else by the file's suffix."""
    return format or _SUFFIXES.get(path.suffix.lower())


def is_unfinished(name: str) -> bool:
    """Whether a name says that the file is hidden or still being written."""
    return name.startswith((".", "_")) or name.endswith((".tmp", ".part"))


def list_files(path: str, where: str = "replay") -> list[Path]:
    """The files that a path, glob or directory means, sorted. Raises ConfigError when there are none."""
    found = Path(path)
    if found.is_dir():
        files = sorted(file for file in found.iterdir() if file.is_file() and not is_unfinished(file.name))
    elif found.is_file():
        files = [found]
    else:
        files = sorted(Path(name) for name in glob.glob(path, recursive=True) if Path(name).is_file())  # noqa: PTH207
    if not files:
        what = "no files in directory" if found.is_dir() else "no such file:"
        raise ConfigError(f"{where}: {what} {path}; give an existing file, a directory of files or a glob")
    return files


def known_format(path: Path, format: Format | None) -> Format:
    """Like `format_of`, but raises ConfigError when nothing tells the format."""
    known = format_of(path, format)
    if known is None:
        raise ConfigError(f"cannot tell the format of {path}; give format= one of {', '.join(FORMATS)}")
    return known


def about_rows(path: Path, format: Format) -> int:
    """About how many records a file has: as a Parquet file says, or by the length of a text file's first lines."""
    if format == "parquet":
        return int(pq.read_metadata(path).num_rows)
    with path.open("rb") as file:
        head = file.read(_SAMPLE_BLOCK_BYTES)
    lines = head.count(b"\n")
    return round(path.stat().st_size * lines / len(head)) if lines else int(bool(head))


def headless_columns(
    header: bool, format: Format | None, schema: pa.Schema | None, where: str
) -> tuple[str, ...] | None:
    """The columns of CSV files without a header line, which only a schema can name; ``None`` if they have one."""
    if header:
        return None
    if format not in (None, "csv"):
        raise ConfigError(f"{where}: header=False is about CSV files, but format is {format!r}; leave one out")
    if schema is None:
        raise ConfigError(
            f"{where}: without a header line nothing names the columns; declare all, in the order they stand in: "
            f"schema={{'ts': 'int64', …}}"
        )
    if len(set(schema.names)) < len(schema.names):
        raise SchemaError(f"{where}: a column is declared twice: {schema.names}")
    return tuple(schema.names)


def read_start(
    path: Path, descriptor: int, format: Format, columns: Sequence[str] | None = None
) -> tuple[int, list[str] | None]:
    """Where the records of a text file start, and the column names of a CSV file: ``columns``, or its first line."""
    start = len(_BOM) if os.pread(descriptor, len(_BOM), 0) == _BOM else 0
    if format != "csv":
        return start, None
    if columns is not None:
        return start, list(columns)
    line, size = b"", 64 * 2**10
    while b"\n" not in line and len(line) <= MAX_LINE_BYTES:
        more = os.pread(descriptor, size, start + len(line))
        line += more
        if len(more) < size:
            break
    line, newline, _ = line.partition(b"\n")
    try:
        header = next(csv.reader([line.decode().removesuffix("\r")]), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: the first line must name the columns, but cannot be read: {error}") from None
    if len(set(header)) < len(header):
        raise SchemaError(
            f"{path}: a column is named twice in the first line: {header}; if that is a record already, give header=False"
        )
    return start + len(line) + len(newline), header


def infer_file_schema(path: Path, format: Format) -> pa.Schema:
    """The schema of a file's first 1000 records."""
    if format == "lines":
        return LINES_SCHEMA
    if format == "parquet":
        try:
            return pq.read_schema(path).remove_metadata()
        except (pa.ArrowException, OSError) as error:
            raise SchemaError(f"{path} is not a Parquet file: {error}") from None
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        start, header = read_start(path, descriptor, format)
        _doubt_header(path, header or ())
        cutter = BlockCutter(lambda at, size: os.pread(descriptor, size, at), start, block_bytes=_SAMPLE_BLOCK_BYTES)
        rows = [row for row, _ in zip(_read_rows(cutter, header), range(INFER_ROWS))]
    finally:
        os.close(descriptor)
    return schema_of_records(rows, str(path))


def _doubt_header(path: Path, header: Sequence[str]) -> None:
    """Warn of columns that are named by numbers or times: then the first line is a record, most likely."""
    odd = next((name for name in header if name and (guess_value(name) != name or _TIME.match(name))), None)
    if odd is not None:
        warnings.warn(
            f"{path}: its first line names the columns, and {odd!r} looks like a value; if that line is a record already, "
            f"give header=False and declare all columns: schema={{'ts': 'int64', …}}",
            stacklevel=2,
        )


def _read_rows(cutter: BlockCutter, header: list[str] | None) -> Iterator[dict[str, Any]]:
    while block := cutter.next():
        for line in block.data.split(b"\n"):
            row = _read_row(line, header)
            if row is not None and not block.oversized:
                yield row


def _read_row(line: bytes, header: list[str] | None) -> dict[str, Any] | None:
    """One sound line as a record; malformed ones tell nothing about the schema."""
    try:
        text = line.decode().strip("\r\n")
        if header is None:
            row = json.loads(text)
            return row if isinstance(row, dict) else None
        fields = next(csv.reader([text]), [])
    except (ValueError, RecursionError, csv.Error):
        return None
    return dict(zip(header, map(guess_value, fields))) if len(fields) == len(header) else None
