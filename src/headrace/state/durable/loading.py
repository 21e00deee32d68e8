"""Loading slices: base plus changes, each block and the result checked against its digest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pyarrow as pa

from headrace.errors import CorruptionError
from headrace.state.durable.changes import Store, digest_of, merge_chain, no_ids
from headrace.state.durable.manifest import Manifest, SliceVersion
from headrace.state.durable.segments import read_block
from headrace.state.durable.storage import Storage
from headrace.state.durable.versionlog import CutEntry, VersionLog
from headrace.tokens import Token

Reader = Callable[[str, int, SliceVersion], pa.RecordBatch]
"""Gives the rows of a step's slice."""


def load_slices(
    storage: Storage,
    entry: int,
    base: Token | None,
    stores: Mapping[str, tuple[Store, Sequence[int]]],
    read: Reader | None = None,
) -> None:
    """Fill stores with the slices they own, as of version ``base``, which is at number ``entry`` of the log.

    ``read`` may find their blocks elsewhere than in the storage.
    """
    if base is None or not stores:
        return
    manifest = read_manifest(storage, entry, base)
    read = read if read is not None else partial(read_slice, storage)
    for step, (store, slices) in stores.items():
        versions = {slice: found for slice in slices if (found := manifest.slices.get((step, slice))) is not None}
        store.expect(
            sum(max(block.rows for block in version.blocks) for version in versions.values() if version.blocks)
        )
        for slice, version in versions.items():
            store.load(slice, read(step, slice, version), version.digest)


def read_manifest(storage: Storage, entry: int, version: Token) -> Manifest:
    """The manifest of a version, or CorruptionError if the log does not have it at that number."""
    try:
        found = VersionLog(storage).read(entry)
    except FileNotFoundError as error:
        raise CorruptionError(f"entry {entry} of the version log, that of {version}, is missing") from error
    if not isinstance(found, CutEntry) or found.manifest.token != version:
        holds = found.manifest.token if isinstance(found, CutEntry) else f"the opening by generation {found.generation}"
        raise CorruptionError(f"entry {entry} of the version log is not that of {version}, but {holds}")
    return found.manifest


def read_slice(storage: Storage, step: str, slice: int, version: SliceVersion) -> pa.RecordBatch:
    """A slice's rows, or CorruptionError naming the block or slice that is not what was written."""
    blocks = [read_block(storage, ref, step, slice) for ref in version.blocks]
    return _merged(step, slice, version, [puts for puts, _ in blocks], [deletes for _, deletes in blocks])


def read_slice_from(
    storage: Storage, step: str, slice: int, known: SliceVersion, image: pa.RecordBatch, version: SliceVersion
) -> pa.RecordBatch:
    """The same where an earlier version's ``image`` is at hand: only what came after it is read, if it was only added to."""
    since = version.since(known)
    if since is None:
        return read_slice(storage, step, slice, version)
    if version == known:
        return image
    blocks = [read_block(storage, ref, step, slice) for ref in since]
    puts, deletes = [image, *(puts for puts, _ in blocks)], [no_ids(), *(deletes for _, deletes in blocks)]
    return _merged(step, slice, version, puts, deletes)


def _merged(
    step: str, slice: int, version: SliceVersion, puts: list[pa.RecordBatch], deletes: list[pa.RecordBatch]
) -> pa.RecordBatch:
    image = merge_chain(puts, deletes)
    if digest_of(image) != version.digest:
        names = ", ".join(ref.file for ref in version.blocks)
        raise CorruptionError(f"slice {slice} of step {step!r} does not have its digest after merging {names}")
    return image
