"""A keyed step's slices as their user sees them: who owns each, how large and how busy it is, where copies are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.runtime.ownership import Table
from headrace.state.durable.manifest import Manifest
from headrace.state.durable.segments import segment_token


@dataclass(frozen=True, slots=True)
class SliceFigures:
    """``owner`` is a subtask of the step's stage. ``bytes`` and ``rows`` are those of the blocks it is stored in,
    ``changed_cuts`` ago it was last stored; None if it has no state yet. ``records`` came lately, per interval between cuts.
    ``backups`` are the nodes with copies.
    """

    step: str
    slice: int
    owner: int
    bytes: int
    rows: int
    changed_cuts: int | None
    records: float
    backups: tuple[str, ...]


def slice_figures(
    step: str, table: Table, manifest: Manifest | None, loads: Mapping[int, float], backups: Sequence[tuple[str, ...]]
) -> list[SliceFigures]:
    """All slices of a step, as of the newest version."""
    return [
        SliceFigures(step, slice, owner, *_stored(step, slice, manifest), loads.get(slice, 0.0), copies)
        for (slice, owner), copies in zip(enumerate(table), backups, strict=True)
    ]


def _stored(step: str, slice: int, manifest: Manifest | None) -> tuple[int, int, int | None]:
    if manifest is None:
        return 0, 0, None
    versions = [v for (store, at), v in manifest.slices.items() if at == slice and store.partition("#")[0] == step]
    blocks = [block for version in versions for block in version.blocks]
    cuts = [token.cut for block in blocks if (token := segment_token(block.file)) is not None]
    since = manifest.token.cut - max(cuts) if cuts else None
    return sum(block.length for block in blocks), sum(block.rows for block in blocks), since
