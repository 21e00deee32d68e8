"""Read a checkpoint as data: epochs, slices with their rows as text, offsets of sources."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import typer

from headrace.errors import CorruptionError, HeadraceError
from headrace.state.durable.changes import ID_COLUMNS
from headrace.state.durable.loading import read_slice
from headrace.state.durable.versions import Manifest, Versions
from headrace.state.plain import unpack

_KEYED_COLUMNS = {"key", "sub", "value"}
"""The columns of ``state.stores.keyvalues`` that hold packed values; ``name`` says whose they are."""
_PACKED_SUFFIX = ".state"
"""Ends the column names of users' reducers, which are packed values too."""


@dataclass(frozen=True, slots=True)
class SliceState:
    """One slice as it is stored; ``error`` says what is wrong with it."""

    step: str
    slice: int
    blocks: int
    bytes: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None


def open_checkpoint(path: Path) -> Versions:
    """The versions in a checkpoint; a usage error if it is none. Takes no lock and writes nothing."""
    if not (path / "headrace" / "job.json").is_file():
        raise typer.BadParameter(f"{path} is not the checkpoint of a Headrace job")
    return Versions(path)


def epochs_of(versions: Versions) -> list[dict[str, Any]]:
    """The picked epochs, oldest first, as plain data."""
    epochs = []
    for token in versions.picks():
        manifest = versions.manifest(token)
        blocks = [block for version in manifest.slices.values() for block in version.blocks]
        pick = versions.root / "picks" / f"{token.epoch:08d}"
        epochs.append(
            {
                "epoch": token.epoch,
                "attempt": str(token),
                "slices": len(manifest.slices),
                "blocks": len(blocks),
                "bytes": sum(block.length for block in blocks),
                "rows": sum(block.rows for block in blocks),
                "age_s": time.time() - pick.stat().st_mtime,
                "finished": manifest.finished,
                "offsets": offsets_of(versions, manifest),
            }
        )
    return epochs


def offsets_of(versions: Versions, manifest: Manifest) -> dict[str, dict[int, Any]]:
    """Where each source's partitions go on; a partition that cannot be read has its error instead."""
    offsets: dict[str, dict[int, Any]] = {}
    for (step, number), version in sorted(manifest.slices.items()):
        if step not in _sources(versions):
            continue
        try:
            rows = decoded(read_slice(versions.root, step, number, version))
            offset: Any = next((row["value"]["offset"] for row in rows if row["name"] == "position"), None)
        except (HeadraceError, LookupError, TypeError) as error:
            offset = str(error)
        offsets.setdefault(step, {})[number] = offset
    return offsets


def slices_of(versions: Versions, manifest: Manifest, step: str | None, slice: int | None) -> list[SliceState]:
    """The slices of a version, each read and checked; ``step`` and ``slice`` choose some of them."""
    found = []
    for (name, number), version in sorted(manifest.slices.items()):
        if (step is not None and name.partition("#")[0] != step) or (slice is not None and number != slice):
            continue
        size = sum(block.length for block in version.blocks)
        try:
            rows, error = decoded(read_slice(versions.root, name, number, version)), None
        except CorruptionError as broken:
            rows, error = [], str(broken)
        found.append(SliceState(name, number, len(version.blocks), size, rows, error))
    return found


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


def _sources(versions: Versions) -> set[str]:
    return set(json.loads((versions.root / "job.json").read_text()).get("partitions", {}))
