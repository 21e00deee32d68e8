"""Read a checkpoint as data: versions, slices with their rows as text, offsets of sources."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import typer

from headrace.connect.source import Offset
from headrace.driver.identity import Step
from headrace.driver.inspection import checkpointview
from headrace.driver.inspection.checkpointview import Checkpoint
from headrace.driver.inspection.storedrows import StoredEntry, entries, holds_entries, moment, readable
from headrace.driver.inspection.storedrows import offsets as places_of
from headrace.errors import ConfigError, CorruptionError, HeadraceError
from headrace.runtime.operators.positions import POSITION, set_of
from headrace.state.durable.loading import read_slice
from headrace.state.durable.manifest import Manifest, SliceVersion
from headrace.state.durable.segments import segment_token

_SUBTASK = re.compile(r"-s\d\d-(\d{4})-")
"""In a segment's name: the subtask that wrote it."""


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


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a directory; a usage error if there is none, StateError if it is too old to be read."""
    with refused_as_usage():
        return checkpointview.open_checkpoint(path)


@contextmanager
def refused_as_usage() -> Iterator[None]:
    """What a user named and is not there is a usage error of the command."""
    try:
        yield
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None


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
            offset: Any = places_of(entries(read_slice(checkpoint.storage, step, number, version))).get(number)
        except (HeadraceError, LookupError, TypeError) as error:
            offset = str(error)
        offsets.setdefault(step, {})[number] = offset
    return offsets


def slices_of(checkpoint: Checkpoint, manifest: Manifest, step: str | None, slice: int | None) -> list[SliceState]:
    """The slices of a version, each read and checked; ``step`` and ``slice`` choose some of them."""
    found = []
    for (name, number), version in sorted(manifest.slices.items()):
        if (step is not None and name.partition("#")[0] != step) or (slice is not None and number != slice):
            continue
        size = sum(block.length for block in version.blocks)
        try:
            image, (owner, _, part) = read_slice(checkpoint.storage, name, number, version), name.partition("#")
            rows, error = decoded(checkpoint.identity.known(owner), part, image), None
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


def decoded(step: Step | None, part: str, image: pa.RecordBatch) -> list[dict[str, Any]]:
    """A slice's rows, with times as times and users' values as values."""
    if holds_entries(image):
        found = list(entries(image))
        places = places_of(found) if step is not None and step.kind == "source" else {}
        return [_entry(entry, places) for entry in found if set_of(entry.name) is None or not places]
    rows: list[dict[str, Any]] = readable(step, part, image).to_pylist()
    return rows


def _entry(entry: StoredEntry, places: dict[int, Offset]) -> dict[str, Any]:
    if entry.timer is not None:
        return {"timer": entry.timer, "key": entry.key, "tag": entry.sub, "at": moment(entry.value)}
    row = {"name": entry.name, "key": entry.key}
    if entry.sub is not None:
        row["item"] = entry.sub[0] if isinstance(entry.sub, tuple) else entry.sub
    row["value"] = entry.value
    if entry.name == POSITION and entry.key in places:
        row["value"] = {"offset": places[entry.key], "newest": moment(entry.value["newest_us"])}
    elif entry.name == "closed":
        row["value"] = moment(entry.value)
    if entry.set_at_us is not None:
        row["set_at"] = moment(entry.set_at_us)
    return row
