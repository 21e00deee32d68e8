"""Blocks with malformed lines: every record in them is kept, every other line named with a reason.

Flaws are looked for a column at a time; what seems sound goes back to pyarrow in one piece, and only
if that still fails is it halved until the bad lines stand alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connect.source import BadRecord
from headrace.schemas import empty_batch

_TEXT_CHARS = 200
_ISO_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_ISO_START = re.compile(_ISO_DAY)
# Atomic groups: an unclosed quote must not be found closed by going back.
_CSV_FIELD = rb'(?>"(?:[^"]|"")*+"[^,]*+|[^",][^,]*+|)'
_CSV_LINE = re.compile(_CSV_FIELD + rb"(?:," + _CSV_FIELD + rb")*+")

Flaws = dict[int, str]
Salvaged = tuple[pa.RecordBatch, Sequence[BadRecord], Sequence[int]]
"""Records, and the malformed lines with their places among all."""


class BlockParser(Protocol):
    """What both parsers offer to salvage: records if all lines are sound."""

    schema: pa.Schema

    def typed(self, data: bytes) -> pa.RecordBatch: ...


class CsvBlockParser(BlockParser, Protocol):
    """CSV also offers its fields as text."""

    def as_text(self, data: bytes, on_invalid: Callable[[Any], str]) -> pa.Table: ...


def bad_record(line: bytes, reason: str) -> BadRecord:
    """A malformed line, cut to 200 characters."""
    return BadRecord(line[: 4 * _TEXT_CHARS].decode("utf-8", "replace")[:_TEXT_CHARS], reason[:_TEXT_CHARS])


def not_utf8(error: UnicodeDecodeError) -> str:
    """The reason for a line that does not decode."""
    return f"invalid UTF-8: {error.reason} at byte {error.start}"


def salvage_jsonl(data: bytes, parser: BlockParser) -> Salvaged:
    """Records and malformed lines of a JSON block, each in order."""
    lines = [line.strip() for line in data.split(b"\n")]
    flaws: Flaws = {}
    records = _decode_objects(lines, flaws)
    places = list(records)
    for field in parser.schema:
        values = [record.get(field.name) for record in records.values()]
        for row, value in _misfits(values, field.type):
            flaws[places[row]] = f"column {field.name!r}: {json.dumps(value)[:80]} is not {field.type}"
    return _rejoin(lines, flaws, parser)


def _decode_objects(lines: Sequence[bytes], flaws: Flaws) -> dict[int, dict[str, Any]]:
    decode = json.JSONDecoder().raw_decode
    records: dict[int, dict[str, Any]] = {}
    for at, line in enumerate(lines):
        if not line:
            continue
        try:
            text = line.decode()
            record, end = decode(text)
            if end < len(text):
                flaws[at] = f"not JSON: more than one value on the line, at character {end}"
            elif not isinstance(record, dict):
                flaws[at] = f"not a JSON object but {type(record).__name__}"
            else:
                records[at] = record
        except UnicodeDecodeError as error:
            flaws[at] = not_utf8(error)
        except (ValueError, RecursionError) as error:
            # pyarrow takes these two, Python does not: leave the line to pyarrow, as in any other block.
            if not (line.startswith(b"{") and (b"Inf" in line or b"-NaN" in line)):
                flaws[at] = f"not JSON: {error}"
    return records


def _misfits(values: Sequence[Any], kind: pa.DataType) -> list[tuple[int, Any]]:
    """Values that cannot have the type, with their places; others may still turn out not to."""
    types = {type(None), *_python_types(kind)}
    if len(types) == 1:
        return []
    if pa.types.is_timestamp(kind):
        return [
            (row, value)
            for row, value in enumerate(values)
            if value is not None and not (isinstance(value, str) and _ISO_START.match(value))
        ]
    if set(map(type, values)) <= types:
        return []
    return [(row, value) for row, value in enumerate(values) if type(value) not in types]


def _python_types(kind: pa.DataType) -> tuple[type, ...]:
    if pa.types.is_integer(kind):
        return (int,)
    if pa.types.is_floating(kind):
        return (int, float)
    if pa.types.is_boolean(kind):
        return (bool,)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_timestamp(kind):
        return (str,)
    return ()


def salvage_csv(data: bytes, parser: CsvBlockParser) -> Salvaged:
    """Records and malformed lines of a CSV block, each in order."""
    lines = data.split(b"\n")
    flaws: Flaws = {}
    if not data.isascii() or b'"' in data or b"\r" in data:
        for at, line in enumerate(lines):
            if not line.isascii() or b'"' in line or b"\r" in line:
                _check_csv_line(at, line, flaws)
    sound = [at for at, line in enumerate(lines) if line and at not in flaws]
    if sound:
        text = _check_widths(lines, sound, flaws, parser)
        _check_types(text, [at for at in sound if at not in flaws], flaws, parser.schema)
    return _rejoin(lines, flaws, parser)


def ends_closed(data: bytes) -> bool:
    """Whether every quote on the last line is closed."""
    data = data.removesuffix(b"\n")
    return _CSV_LINE.fullmatch(data, data.rfind(b"\n") + 1) is not None


def _check_csv_line(at: int, line: bytes, flaws: Flaws) -> None:
    if b"\r" in line:
        flaws[at] = "a carriage return inside the line"
    elif b'"' in line and _CSV_LINE.fullmatch(line) is None:
        flaws[at] = "a quoted value is not closed on its line"
    try:
        line.decode()
    except UnicodeDecodeError as error:
        flaws[at] = not_utf8(error)


def _check_widths(lines: Sequence[bytes], sound: Sequence[int], flaws: Flaws, parser: CsvBlockParser) -> pa.Table:
    """The fields of the lines that have as many as the header."""

    def on_invalid(row: Any) -> str:
        flaws[sound[row.number - 1]] = f"{row.actual_columns} fields, expected {row.expected_columns}"
        return "skip"

    return parser.as_text(_join(lines[at] for at in sound), on_invalid)


def _check_types(text: pa.Table, rows: Sequence[int], flaws: Flaws, schema: pa.Schema) -> None:
    for name in text.column_names:
        kind = schema.field(name).type
        pattern = _csv_pattern(kind)
        if pattern is not None:
            sound = pc.fill_null(pc.match_substring_regex(text[name], f"^(?:{pattern})$"), True)
            for row in pc.indices_nonzero(pc.invert(sound)).to_pylist():
                flaws.setdefault(rows[row], f"column {name!r}: {text[name][row].as_py()[:80]!r} is not {kind}")


def _csv_pattern(kind: pa.DataType) -> str | None:
    """What a field of the type looks like; may match too much, never too little."""
    if pa.types.is_integer(kind):
        return r"[ \t]*(-?[0-9]+|0[xX][0-9a-fA-F]+)[ \t]*"
    if pa.types.is_floating(kind):
        number = r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
        return rf"[ \t]*[+-]?({number}|(?i:nan.*|inf|infinity))[ \t]*"
    if pa.types.is_boolean(kind):
        return "0|1|true|True|TRUE|false|False|FALSE"
    if pa.types.is_timestamp(kind):
        return _ISO_DAY + (r"[ T][0-9:.]+(Z|[+-][0-9:]+)" if kind.tz else r"([ T][0-9:.]+)?")
    return None


def _rejoin(lines: Sequence[bytes], flaws: Flaws, parser: BlockParser) -> Salvaged:
    sound = [at for at, line in enumerate(lines) if line and at not in flaws]
    batches = _parse_or_halve(lines, sound, flaws, parser)
    rows = pa.concat_batches(batches) if batches else empty_batch(parser.schema)
    places = sorted(flaws)
    return rows, [bad_record(lines[at], flaws[at]) for at in places], places


def _parse_or_halve(
    lines: Sequence[bytes], sound: Sequence[int], flaws: Flaws, parser: BlockParser
) -> list[pa.RecordBatch]:
    if not sound:
        return []
    try:
        rows = parser.typed(_join(lines[at] for at in sound))
        if rows.num_rows == len(sound):
            return [rows]
        reason = f"{rows.num_rows} records on one line"
    except pa.ArrowInvalid as error:
        reason = str(error)
    if len(sound) == 1:
        flaws[sound[0]] = reason
        return []
    half = len(sound) // 2
    return _parse_or_halve(lines, sound[:half], flaws, parser) + _parse_or_halve(lines, sound[half:], flaws, parser)


def _join(lines: Iterable[bytes]) -> bytes:
    return b"\n".join(lines) + b"\n"
