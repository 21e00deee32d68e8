"""Keeping chains short: the newest blocks of a slice are merged into one when there are too many of them.

ChronoStream, section 6(a), rewrites a slice as a whole when its changes outweigh half of its base, or after ten epochs.
With a cut each second the second rule would write all state every ten seconds. So the blocks that are merged are a
run at the chain's end whose first block is at most twice as heavy as the rest (as in a log-structured merge
tree): a chain has about logarithmically many blocks, and a byte is rewritten about logarithmically often. Of such runs it
is the shortest that makes the chain half as long as it may be, or else the longest: a light block before heavy ones
is no reason to write those anew. A run that reaches back to the base is the papers' first rule, and makes a new base.

The rewrite takes its run's place in a later manifest (``manifest.next_manifest``), if that run is still there. Until then
it is a file like any other that no version names: garbage collection has to spare it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from headrace.state.durable.changes import Change, merge_chain, no_ids
from headrace.state.durable.loading import read_slice
from headrace.state.durable.manifest import Manifest, Rewrite, SliceKey, SliceVersion
from headrace.state.durable.segments import SEGMENTS, BlockRef, read_block, write_segment
from headrace.state.durable.storage import Storage
from headrace.tokens import Attempt

_MAX_BLOCKS = 16
"""Loading a slice reads each of its blocks, and every manifest names them all."""
_WORTHWHILE = 4
"""Blocks in a run; merging fewer shortens the chain too little for the work."""
_SLICES_PER_TURN = 64
"""Bounds how long a turn takes; those with the longest chains come first."""


def run_of(version: SliceVersion) -> tuple[BlockRef, ...]:
    """The blocks to be merged: a run at the end whose first is at most twice as heavy as the rest, and no longer than it
    takes to make the chain half as long as it may be.
    """
    blocks, rest_bytes = version.blocks, 0
    start, enough = len(blocks), max(len(blocks) - _MAX_BLOCKS // 2, _MAX_BLOCKS // 2)
    for at in range(len(blocks) - 1, -1, -1):
        if len(blocks) - start > enough:
            break
        if blocks[at].length <= 2 * rest_bytes:
            start = at
        rest_bytes += blocks[at].length
    return blocks[start:]


def is_long(version: SliceVersion) -> bool:
    """Whether a slice has many blocks, and merging the newest of them is worthwhile."""
    return len(version.blocks) > _MAX_BLOCKS and len(run_of(version)) >= _WORTHWHILE


def long_chains(manifest: Manifest) -> list[SliceKey]:
    """The slices to be worked on in one turn, longest chain first."""
    long = [key for key, version in manifest.slices.items() if is_long(version)]
    return sorted(long, key=lambda key: (-len(manifest.slices[key].blocks), key))[:_SLICES_PER_TURN]


def needs_compaction(manifest: Manifest) -> bool:
    """Whether there is anything to merge."""
    return any(is_long(version) for version in manifest.slices.values())


def compact(storage: Storage, manifest: Manifest, by: Attempt, serial: int) -> tuple[Rewrite, ...]:
    """Merge the newest blocks of a version's longest chains; durable when it returns.

    ``by`` is the driver's running attempt and ``serial`` different each time: another driver, one that stalls and comes
    back, may be at the same version and must not write the same file.
    """
    stem = f"{SEGMENTS}/{by.cut(manifest.token.cut)}-rewrite-{serial:06d}"
    runs = {key: run_of(manifest.slices[key]) for key in long_chains(manifest)}

    def merged(*, whole: bool) -> Iterator[tuple[str, Change]]:
        for (step, slice), run in runs.items():
            version = manifest.slices[step, slice]
            if (len(run) == len(version.blocks)) != whole:
                continue
            puts, deletes = (
                (read_slice(storage, step, slice, version), no_ids()) if whole else merge_run(storage, step, slice, run)
            )
            yield step, Change(slice, puts, deletes, version.digest, version.digest)

    stored = write_segment(storage, f"{stem}-bases.seg", merged(whole=True), full=True)
    stored += write_segment(storage, f"{stem}-changes.seg", merged(whole=False))
    return tuple(Rewrite(one.step, one.slice, runs[one.step, one.slice], one.block) for one in stored)


def merge_run(
    storage: Storage, step: str, slice: int, run: Sequence[BlockRef]
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The puts and deletes of changes as one change's: deletes come first there, so all may stay, for what is before."""
    blocks = [read_block(storage, ref, step, slice) for ref in run]
    puts, deletes = [puts for puts, _ in blocks], [deletes for _, deletes in blocks]
    return merge_chain(puts, deletes), pa.concat_batches(deletes)
