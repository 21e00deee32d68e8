"""What a step has stored, row by row, in words that people use: times as times, users' values as values.

How rows lie in a checkpoint follows from the kind of the step: entries of names, keys and sub-keys (sources and process
steps), or columns with a pane, keys and accumulators (reduces and joins). What a pane is follows from its window.
"""

from __future__ import annotations

import json
import re
from ast import literal_eval
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import gcd, isfinite
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connect.source import Offset
from headrace.driver.identity import Step
from headrace.errors import HeadraceError
from headrace.runtime.operators.positions import POSITION, set_of
from headrace.state.durable.changes import ID_COLUMNS, PANE
from headrace.state.plain import unpack
from headrace.state.stores.expiry import date_of, undated

_ENTRY_COLUMNS = {"name", "key", "sub", "value", "place"}
_INTERNAL = {*ID_COLUMNS, "__slice", "__reach"}
_TIMES = {"__end": "last_at", "__time": "time"}
_STAMP = pa.timestamp("us", "UTC")
_LAST_US = 2**61
"""Beyond this a time stands for none: that of an input which has none yet, or has ended."""
_SPANS = re.compile(r"([0-9.e+]+) s every ([0-9.e+]+) s")


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One entry of a source or process step. ``sub`` is a place in a queue, ``(item,)`` of a mapping, or a timer's tag."""

    name: str
    stored_key: bytes
    key: Any
    sub: Any
    value: Any
    set_at_us: int | None

    @property
    def timer(self) -> str | None:
        """Of a timer: its clock."""
        return self.name[1:] if self.name in ("#event", "#processing") else None


def holds_entries(image: pa.RecordBatch) -> bool:
    return set(image.schema.names) >= _ENTRY_COLUMNS


def entries(image: pa.RecordBatch) -> Iterator[StoredEntry]:
    """The entries of a slice, each name and key's in their order."""
    rows = sorted(image.to_pylist(), key=lambda row: row["place"])
    for row in rows:
        value = _unpacked(undated(row["value"]))
        key, sub = _unpacked(row["key"]), _unpacked(row["sub"])
        yield StoredEntry(row["name"], row["key"], key, sub, value, date_of(row["value"]))


def offsets(found: Iterable[StoredEntry]) -> dict[int, Offset]:
    """The offsets of a source's partitions, their sets as sorted lists."""
    places: dict[int, Offset] = {}
    for entry in found:
        if entry.name == POSITION:
            places.setdefault(entry.key, {}).update(entry.value["offset"])
        elif (name := set_of(entry.name)) is not None:
            places.setdefault(entry.key, {}).setdefault(name, set()).add(entry.sub[0])
    return {
        partition: {name: sorted(value, key=str) if isinstance(value, set) else value for name, value in place.items()}
        for partition, place in places.items()
    }


def readable(step: Step | None, part: str, image: pa.RecordBatch) -> pa.Table:
    """The rows of a reduce or join: keys and what they belong to, results as far as they have come."""
    columns: dict[str, pa.Array] = {}
    stored = [name for name in image.schema.names if name not in _INTERNAL]
    results = _results(step)
    owners = [name.rpartition(".")[0] for name in stored]
    for name, owner in zip(stored, owners):
        column = image.column(name)
        if name == PANE:
            columns |= _named(_pane(step, part), column)
        elif name in _TIMES:
            columns[_TIMES[name]] = pc.cast(column, _STAMP)
        elif owner in results and owners.count(owner) == 1:
            columns[owner] = typed([_unpacked(v) for v in column.to_pylist()]) if name.endswith(".state") else column
        else:
            columns[name.removeprefix("__") if name.removeprefix("__") not in stored else name] = column
    return pa.table(columns)


def typed(values: list[Any]) -> pa.Array:
    """Values as a column: of the type that they have in common, or as JSON text."""
    if not any(_has_dict(value) for value in values):
        try:
            column = pa.array(values)
            return column.cast(pa.string()) if pa.types.is_null(column.type) else column
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
            pass
    return pa.array([None if value is None else as_json(value) for value in values], pa.string())


def as_json(value: Any) -> str:
    """A user's value as JSON text: sets as lists, keys and what JSON has no word for as Python writes them."""
    return json.dumps(_plain(value), ensure_ascii=False)


def moment(at_us: int) -> str:
    """A time for people, in UTC."""
    return pc.cast(pa.array([at_us]), _STAMP)[0].as_py().isoformat() if abs(at_us) < _LAST_US else "none yet"


def _pane(step: Step | None, part: str) -> tuple[str, int] | None:
    """What a pane's number is called, and how many µs it counts; None if it says nothing."""
    window = step.facts.get("window", "") if step is not None else ""
    if step is not None and step.kind == "panes":
        return "pane_start", round(float(step.facts["pane length"].removesuffix(" s")) * 1e6)
    if window.startswith("sessions"):
        return "session_start", 1
    if (spans := _SPANS.match(window)) is None:
        return None
    size, every = (round(float(span) * 1e6) for span in spans.groups())
    if step is not None and step.facts.get("combining") == "on" and part != "rest":
        return "pane_start", gcd(size, every)
    return "window_end", 1


def _named(pane: tuple[str, int] | None, column: pa.Array) -> dict[str, pa.Array]:
    return {} if pane is None else {pane[0]: pc.cast(pc.multiply(column, pane[1]), _STAMP)}


def _results(step: Step | None) -> set[str]:
    facts = step.facts if step is not None else {}
    return {str(literal_eval(fact.removeprefix("result "))) for fact in facts if fact.startswith("result ")}


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {key if isinstance(key, str) else str(key): _plain(item) for key, item in value.items()}
        case list() | tuple() | deque():
            return [_plain(item) for item in value]
        case set() | frozenset():
            return sorted((_plain(item) for item in value), key=str)
        case float() if not isfinite(value):
            return None
        case str() | bool() | int() | float() | None:
            return value
        case bytes():
            return value.hex()
        case _:
            return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _has_dict(value: Any) -> bool:
    """Arrow would make a column of every key there is."""
    if isinstance(value, list | tuple):
        return any(map(_has_dict, value))
    return isinstance(value, dict)


def _unpacked(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return unpack(value)
    except (TypeError, ValueError, HeadraceError, msgpack.UnpackException):
        return value
