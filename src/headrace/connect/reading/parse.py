"""Blocks of lines turned into records: pyarrow reads whole blocks, ``salvage`` those it refuses.

One line is one record; a newline inside a quoted CSV value is malformed input. pyarrow decides which
lines are records on both paths, so a record's fate does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.json as arrow_json

from headrace.connect.reading import salvage
from headrace.connect.reading.lineblocks import MAX_LINE_BYTES, Block
from headrace.connect.source import BadRecord
from headrace.errors import SchemaError
from headrace.schemas import empty_batch

LINES_SCHEMA = pa.schema([("line", pa.string())])


@dataclass(frozen=True, slots=True)
class Parsed:
    """Records of one block in order, and the lines that are none; ``lines`` says which of the block's they are, from 0."""

    rows: pa.RecordBatch
    bad: Sequence[BadRecord] = ()
    lines: Sequence[int] = ()


Parse = Callable[[bytes], Parsed]


def parse_block(block: Block, parse: Parse, schema: pa.Schema) -> Parsed:
    """Parse a block as it was cut; a line of more than 16 MB is not even tried."""
    if block.oversized:
        bytes_long = block.end - block.start
        reason = f"line of {bytes_long} bytes, more than the {MAX_LINE_BYTES} allowed"
        return Parsed(empty_batch(schema), (salvage.bad_record(block.data, reason),), (0,))
    return parse(block.data)


def is_utf8(data: bytes) -> bool:
    """Whether all of it decodes; ASCII, the common case, is seen ten times faster."""
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _unix_lines(data: bytes) -> bytes:
    return data.replace(b"\r\n", b"\n").removesuffix(b"\r") if b"\r" in data else data


def _count_lines(data: bytes) -> int:
    return data.count(b"\n") + (not data.endswith(b"\n"))


class CsvParser:
    """Lines under a header. An empty field is null, a quoted empty one the empty string."""

    def __init__(self, schema: pa.Schema, header: Sequence[str]) -> None:
        self.schema = schema
        self.header = list(header)
        self._typed = _csv_options({field.name: field.type for field in schema})
        try:
            self.typed(b"," * (len(self.header) - 1) + b"\n")
        except pa.ArrowNotImplementedError as error:
            raise SchemaError(f"csv cannot hold a declared column: {error}") from None
        except pa.ArrowInvalid:
            pass

    def __call__(self, data: bytes) -> Parsed:
        data = _unix_lines(data)
        if is_utf8(data) and b"\r" not in data:
            try:
                rows = self.typed(data)
            except pa.ArrowInvalid:
                pass
            else:
                # Only a quoted newline, or a quote never closed, can make one record of two lines or more.
                if b'"' not in data or (rows.num_rows == _count_lines(data) and salvage.ends_closed(data)):
                    return Parsed(rows)
        return Parsed(*salvage.salvage_csv(data, self))

    def typed(self, data: bytes) -> pa.RecordBatch:
        """Records with the schema's types. Raises ArrowInvalid when any line is malformed."""
        return _one_batch(_read_csv(data, self.header, self._typed), self.schema)

    def as_text(self, data: bytes, on_invalid: Callable[[arrow_csv.InvalidRow], str]) -> pa.Table:
        """The schema's columns as strings; rows with a wrong number of fields go to ``on_invalid``."""
        options = _csv_options({field.name: pa.string() for field in self.schema if field.name in self.header})
        return _read_csv(data, self.header, options, on_invalid)


def _csv_options(types: dict[str, pa.DataType]) -> arrow_csv.ConvertOptions:
    return arrow_csv.ConvertOptions(
        column_types=types,
        include_columns=list(types),
        include_missing_columns=True,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        check_utf8=False,
    )


def _read_csv(
    data: bytes,
    header: list[str],
    options: arrow_csv.ConvertOptions,
    on_invalid: Callable[[arrow_csv.InvalidRow], str] | None = None,
) -> pa.Table:
    return arrow_csv.read_csv(
        pa.BufferReader(data),
        read_options=arrow_csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=header),
        parse_options=arrow_csv.ParseOptions(invalid_row_handler=on_invalid),
        convert_options=options,
    )


class JsonParser:
    """One JSON object a line. A missing column is null, one outside the schema is ignored."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        for field in schema:
            if pa.types.is_date(field.type) or pa.types.is_time(field.type):
                raise SchemaError(
                    f"column {field.name!r}: jsonl has no {field.type}; declare it as 'timestamp[us]' or 'string'"
                )
        self._options = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        try:
            self.typed(b"{}\n")
        except pa.ArrowNotImplementedError as error:
            raise SchemaError(f"jsonl cannot hold a declared column: {error}") from None

    def __call__(self, data: bytes) -> Parsed:
        data = _unix_lines(data)
        if self._one_object_a_line(data) and is_utf8(data):
            try:
                rows = self.typed(data)
            except pa.ArrowInvalid:
                pass
            else:
                if rows.num_rows == _count_lines(data):
                    return Parsed(rows)
        return Parsed(*salvage.salvage_jsonl(data, self))

    @staticmethod
    def _one_object_a_line(data: bytes) -> bool:
        # pyarrow crashes the process on a leading line `null` (apache/arrow issue 47409), and takes objects
        # over several lines; with this test and the number of rows, neither gets through.
        lines = _count_lines(data)
        starts = data.startswith(b"{") + data.count(b"\n{")
        ends = data.count(b"}\n") + data.endswith(b"}")
        return starts == lines == ends

    def typed(self, data: bytes) -> pa.RecordBatch:
        """Records with the schema's types. Raises ArrowInvalid when any line is malformed."""
        options = arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        table = arrow_json.read_json(pa.BufferReader(data), read_options=options, parse_options=self._options)
        return _one_batch(table, self.schema)


def _one_batch(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    columns = [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def parse_lines(data: bytes) -> Parsed:
    """Each line as text in a column ``line``."""
    data = _unix_lines(data).removesuffix(b"\n")
    if is_utf8(data):
        return Parsed(pa.RecordBatch.from_arrays([pa.array(data.decode().split("\n"), pa.string())], ["line"]))
    lines, bad = [], {}
    for at, line in enumerate(data.split(b"\n")):
        try:
            lines.append(line.decode())
        except UnicodeDecodeError as error:
            bad[at] = salvage.bad_record(line, salvage.not_utf8(error))
    return Parsed(pa.RecordBatch.from_arrays([pa.array(lines, pa.string())], ["line"]), [*bad.values()], [*bad])
