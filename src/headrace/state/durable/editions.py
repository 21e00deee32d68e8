"""Editions: tables to look records up in, as they were when they were read.

A version names the edition of each, so whoever goes on from it looks records up in the same rows, whatever has become of
the file or database that they came from. A name tells who made it, which columns it has, and what its bytes must be.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import pyarrow as pa

from headrace.errors import CorruptionError, HeadraceError
from headrace.state.durable.segments import checksum
from headrace.state.durable.storage import Storage

EDITIONS = "editions"
_NAME = re.compile(rf"{EDITIONS}/g(?P<generation>\d+)-\d+-(?P<columns>\w+)-(?P<sum>\w+)")


@dataclass(frozen=True, slots=True)
class ReadEdition:
    """Read the table of a lookup and store it, with a name that begins with ``stem``, unless it is as ``known``
    → EditionRead. What drivers before ``generation`` left is removed, but for what is ``needed``.
    """

    step: str
    stem: str
    known: str | None
    generation: int
    needed: frozenset[str]


@dataclass(frozen=True, slots=True)
class EditionRead:
    """The table of a lookup was read; ``edition`` is the one with its rows, ``error`` why there is none."""

    step: str
    edition: str | None = None
    error: HeadraceError | None = None


def edition_stem(generation: int, serial: int, columns: pa.Schema) -> str:
    """The beginning of a name that no other edition has."""
    return f"{EDITIONS}/g{generation:06d}-{serial:06d}-{_columns_id(columns)}"


def has_columns(name: str, columns: pa.Schema) -> bool:
    """Whether an edition has just these columns."""
    found = _NAME.fullmatch(name)
    return found is not None and found["columns"] == _columns_id(columns)


def put_edition(storage: Storage, stem: str, rows: pa.RecordBatch, known: str | None) -> str:
    """Store an edition, durably; returns its name, which is ``known`` if that one has the same rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    body = sink.getvalue()
    sum = checksum(body)
    before = _NAME.fullmatch(known) if known is not None else None
    if known is not None and before is not None and before["sum"] == sum and has_columns(known, rows.schema):
        return known
    name = f"{stem}-{sum}"
    storage.put(name, body.to_pybytes())
    return name


def get_edition(storage: Storage, name: str) -> pa.RecordBatch:
    """The rows of an edition; CorruptionError if its bytes are not those that were written."""
    found, data = _NAME.fullmatch(name), storage.get(name)
    if found is None or checksum(data) != found["sum"]:
        raise CorruptionError(f"{name} of the checkpoint has changed since it was written (its checksum differs)")
    with pa.ipc.open_stream(data) as reader:
        rows: pa.RecordBatch = reader.read_next_batch()
    return rows


def left_behind(storage: Storage, generation: int, needed: AbstractSet[str]) -> list[str]:
    """Editions that drivers before this ``generation`` made, and no version names."""
    found = [(name, _NAME.fullmatch(name)) for name in storage.names(EDITIONS) if name not in needed]
    return [name for name, known in found if known is not None and int(known["generation"]) < generation]


def _columns_id(columns: pa.Schema) -> str:
    return checksum(columns.remove_metadata().serialize())[:12]
