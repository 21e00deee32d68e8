"""Read a checkpoint as data: versions, slices with their rows as text, offsets of sources."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import typer

from headrace.driver.identity import Identity, known_identity
from headrace.errors import CorruptionError, HeadraceError
from headrace.state.durable.changes import ID_COLUMNS
from headrace.state.durable.loading import read_slice
from headrace.state.durable.manifest import Manifest, SliceVersion
from headrace.state.durable.segments import segment_token
from headrace.state.durable.storage import LocalStorage, Storage
from headrace.state.durable.versionlog import VersionLog
from headrace.state.plain import unpack

_SUBTASK = re.compile(r"-s\d\d-(\d{4})-")
"""In a segment's name: the subtask that wrote it."""
_KEYED_COLUMNS = {"key", "sub", "value"}
"""The columns of ``state.stores.keyvalues`` that hold packed values; ``name`` says whose they are."""
_PACKED_SUFFIX = ".state"
"""Ends the column names of users' reducers, which are packed values too."""


@dataclass(frozen=True, slots=True)
class SliceState:
    """One slice as it is stored; ``error`` says what is wrong with it. ``subtask`` described it last, ``cut`` is when it was
    last written.
    """

    step: str
    slice: int
    blocks: int
    bytes: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None
    subtask: int | None = None
    cut: int | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that is only looked at: no lock is taken and nothing is written."""

    storage: Storage
    identity: Identity

    @property
    def log(self) -> VersionLog:
        return VersionLog(self.storage)


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a directory; a usage error if there is none, StateError if it is too old to be read."""
    storage = LocalStorage(path / "headrace")
    entries = VersionLog(storage).numbers()
    identity = known_identity(path)
    if identity is None:
        if entries:
            raise CorruptionError(f"{path} has versions, but does not say of which job: its file 'job' is missing")
        raise typer.BadParameter(f"{path} is not the checkpoint of a Headrace job")
    return Checkpoint(storage, identity)


def versions_of(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """The versions that the log still has, oldest first, as plain data."""
    versions = []
    for number, entry in checkpoint.log.cuts():
        manifest = entry.manifest
        blocks = [block for version in manifest.slices.values() for block in version.blocks]
        versions.append(
            {
                "cut": manifest.token.cut,
                "version": str(manifest.token),
                "attempt": str(manifest.token.by),
                "entry": number,
                "slices": len(manifest.slices),
                "blocks": len(blocks),
                "bytes": sum(block.length for block in blocks),
                "rows": sum(block.rows for block in blocks),
                "age_s": time.time() - manifest.at_us / 1e6,
                "exhausted": manifest.exhausted,
                "batch": manifest.batch,
                "offsets": offsets_of(checkpoint, manifest),
            }
        )
    return versions


def offsets_of(checkpoint: Checkpoint, manifest: Manifest) -> dict[str, dict[int, Any]]:
    """Where each source's partitions go on; a partition that cannot be read has its error instead."""
    offsets: dict[str, dict[int, Any]] = {}
    for (step, number), version in sorted(manifest.slices.items()):
        if checkpoint.identity.partitions(step) is None:
            continue
        try:
            rows = decoded(read_slice(checkpoint.storage, step, number, version))
            offset: Any = next((row["value"]["offset"] for row in rows if row["name"] == "position"), None)
        except (HeadraceError, LookupError, TypeError) as error:
            offset = str(error)
        offsets.setdefault(step, {})[number] = offset
    return offsets


def slices_of(storage: Storage, manifest: Manifest, step: str | None, slice: int | None) -> list[SliceState]:
    """The slices of a version, each read and checked; ``step`` and ``slice`` choose some of them."""
    found = []
    for (name, number), version in sorted(manifest.slices.items()):
        if (step is not None and name.partition("#")[0] != step) or (slice is not None and number != slice):
            continue
        size = sum(block.length for block in version.blocks)
        try:
            rows, error = decoded(read_slice(storage, name, number, version)), None
        except CorruptionError as broken:
            rows, error = [], str(broken)
        found.append(SliceState(name, number, len(version.blocks), size, rows, error, *_last_written(version)))
    return found


def _last_written(version: SliceVersion) -> tuple[int | None, int | None]:
    """The subtask that last described a slice, and at which cut; a rewrite says only when."""
    names = [block.file for block in version.blocks]
    written = [(token.cut, name) for name in names if (token := segment_token(name)) is not None]
    by = [(cut, match) for cut, name in written if (match := _SUBTASK.search(name)) is not None]
    return (int(max(by)[1][1]) if by else None), (max(written)[0] if written else None)


def decoded(image: pa.RecordBatch) -> list[dict[str, Any]]:
    """A slice's rows with packed values unpacked and identities left out."""
    names = [name for name in image.schema.names if name not in ID_COLUMNS]
    keyed = _KEYED_COLUMNS if _KEYED_COLUMNS | {"name"} <= set(names) else set()
    packed = {name for name in names if name in keyed or name.endswith(_PACKED_SUFFIX)}
    rows: list[dict[str, Any]] = image.select(names).to_pylist()
    return [{name: _unpacked(v) if name in packed else v for name, v in row.items()} for row in rows]


def _unpacked(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return unpack(value)
    except (TypeError, ValueError, HeadraceError, msgpack.UnpackException):
        return value
