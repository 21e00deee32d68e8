"""Loading slices: base plus changes, each block and the result checked against its digest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from headrace.errors import CorruptionError
from headrace.state.durable.changes import Store, digest_of, merge_chain
from headrace.state.durable.segments import read_block
from headrace.state.durable.versions import SliceVersion, Versions
from headrace.tokens import Token


def load_slices(checkpoint: Path, base: Token | None, stores: Mapping[str, tuple[Store, Sequence[int]]]) -> None:
    """Fill stores with the slices they own, as of a picked version."""
    if base is None or not stores:
        return
    versions = Versions(checkpoint)
    manifest = versions.manifest(base)
    for step, (store, slices) in stores.items():
        for slice in slices:
            version = manifest.slices.get((step, slice))
            if version is not None:
                store.load(slice, read_slice(versions.root, step, slice, version), version.digest)


def read_slice(root: Path, step: str, slice: int, version: SliceVersion) -> pa.RecordBatch:
    """A slice's rows, or CorruptionError naming the block or slice that is not what was written."""
    blocks = [read_block(root, ref, step, slice) for ref in version.blocks]
    image = merge_chain([puts for puts, _ in blocks], [deletes for _, deletes in blocks])
    if digest_of(image) != version.digest:
        names = ", ".join(ref.file for ref in version.blocks)
        raise CorruptionError(f"slice {slice} of step {step!r} does not have its digest after merging {names}")
    return image
