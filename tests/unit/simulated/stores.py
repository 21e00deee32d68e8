"""A toy subtask's state: slices of entries with order-free digests, and how blocks of changes make them up again."""

from __future__ import annotations

import marshal
from collections.abc import Callable
from typing import Any, Protocol

from headrace.driver.protocol.events import Compact
from headrace.errors import CorruptionError
from headrace.runtime.cutmaking.arrivals import Image
from headrace.state.copies.nearest import fits
from headrace.state.durable.changes import Digest
from headrace.state.durable.compaction import long_chains, run_of
from headrace.state.durable.manifest import Rewrite, SliceVersion
from headrace.state.durable.segments import SEGMENTS, BlockRef, StoredChange, checksum
from headrace.state.durable.storage import Storage
from simulated.lanes import Violation

_MASK = 2**64 - 1
Block = tuple[str, int, dict[Any, Any], list[Any]]
"""Step, slice, what was put and what was deleted."""
Swapped = Callable[[], list[tuple[Block, Digest, Digest]]]


class Blocks(Protocol):
    """Where blocks are read."""

    def get_range(self, name: str, offset: int, length: int) -> bytes: ...


def stamp(key: Any, value: Any) -> int:
    return hash((key, value)) & _MASK


def digest_of(contents: dict[Any, Any]) -> Digest:
    return sum(stamp(key, value) for key, value in contents.items()) & _MASK, 0


class ToyStore:
    """One step's slices in one subtask."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.slices: dict[int, dict[Any, Any]] = {}
        self.digests: dict[int, int] = {}
        self.dirty: dict[int, tuple[int, set[Any]]] = {}

    def put(self, slice: int, key: Any, value: Any) -> None:
        """Change an entry; None deletes it."""
        entries = self.slices.setdefault(slice, {})
        digest = self.digests.get(slice, 0)
        if slice not in self.dirty:
            self.dirty[slice] = (digest, set())
        self.dirty[slice][1].add(key)
        old = entries.get(key)
        if old is not None:
            digest -= stamp(key, old)
        if value is None:
            del entries[key]
        else:
            entries[key] = value
            digest += stamp(key, value)
        self.digests[slice] = digest & _MASK

    def load(self, slice: int, contents: dict[Any, Any], digest: Digest) -> None:
        """A slice that is not here: the product's stores would add it to what they have."""
        if slice in self.slices:
            raise Violation(f"slice {slice} of {self.step} is loaded, but was here before")
        self.slices[slice], self.digests[slice] = contents, digest[0]

    def give_away(self, slices: frozenset[int]) -> None:
        """They are another's now."""
        for slice in slices:
            self.slices.pop(slice, None)
            self.digests.pop(slice, None)
            self.dirty.pop(slice, None)

    def swap(self) -> Swapped:
        """What changed since the last call, copied; it is put together later."""
        copied = self._copied()
        self.dirty = {}
        return lambda: copied

    def _copied(self) -> list[tuple[Block, Digest, Digest]]:
        blocks = []
        for slice, (parent, keys) in self.dirty.items():
            entries = self.slices[slice]
            puts = {key: entries[key] for key in keys if key in entries}
            gone = [key for key in keys if key not in entries]
            blocks.append(((self.step, slice, puts, gone), (parent, 0), (self.digests[slice], 0)))
        return blocks


def write_blocks(
    storage: Storage, name: str, changes: list[tuple[Block, Digest, Digest]], *, full: bool = False
) -> list[StoredChange]:
    """As ``write_segment``: all in one file, durable when this returns."""
    stored, bodies, at = [], [], 0
    for block, parent, digest in changes:
        body = marshal.dumps(block)
        ref = BlockRef(name, at, len(body), checksum(body), len(block[2]), full)
        stored.append(StoredChange(block[0], block[1], parent, digest, ref))
        bodies.append(body)
        at += len(body)
    storage.put(name, b"".join(bodies))
    return stored


def read_one(storage: Blocks, ref: BlockRef) -> Block:
    """As ``read_block``."""
    try:
        body = storage.get_range(ref.file, ref.offset, ref.length)
    except FileNotFoundError as error:
        raise CorruptionError(f"{ref} cannot be read: {error}") from error
    if not fits(ref, body):
        raise CorruptionError(f"{ref} is not what was written")
    block: Block = marshal.loads(body)
    return block


def read_contents(
    storage: Blocks, step: str, slice: int, version: SliceVersion, known: Image[dict[Any, Any]] | None = None
) -> dict[Any, Any]:
    """As ``read_slice`` and ``read_slice_from``: a slice's entries, checked."""
    since = version.since(known.version) if known is not None else None
    contents: dict[Any, Any] = {} if known is None or since is None else dict(known.rows)
    for ref in version.blocks if since is None else since:
        of_step, of_slice, puts, gone = read_one(storage, ref)
        assert (of_step, of_slice) == (step, slice)
        for key in gone:
            contents.pop(key, None)
        contents.update(puts)
    if digest_of(contents) != version.digest:
        raise CorruptionError(f"slice {slice} of {step} does not have its digest")
    return contents


def compact_blocks(storage: Storage, wanted: Compact, serial: int) -> tuple[Rewrite, ...]:
    """As ``compact``: the real choice of what to merge, and names as there."""
    manifest, rewrites = wanted.manifest, []
    for kind in ("bases", "changes"):
        merged = []
        for step, slice in long_chains(manifest):
            version = manifest.slices[step, slice]
            run = run_of(version)
            if (len(run) == len(version.blocks)) == (kind == "bases"):
                puts, gone = _merged(storage, run, keep_gone=kind == "changes")
                merged.append(((step, slice, puts, gone), version.digest, version.digest))
        if merged:
            stem = f"{SEGMENTS}/{wanted.by.cut(manifest.token.cut)}-rewrite-{serial:06d}"
            rewrites += [
                Rewrite(one.step, one.slice, run_of(manifest.slices[one.step, one.slice]), one.block)
                for one in write_blocks(storage, f"{stem}-{kind}.seg", merged, full=kind == "bases")
            ]
    return tuple(rewrites)


def _merged(storage: Storage, run: tuple[BlockRef, ...], *, keep_gone: bool) -> tuple[dict[Any, Any], list[Any]]:
    puts: dict[Any, Any] = {}
    gone: set[Any] = set()
    for ref in run:
        _, _, more, deleted = read_one(storage, ref)
        for key in deleted:
            puts.pop(key, None)
        gone.update(deleted)
        puts.update(more)
    return puts, sorted(gone) if keep_gone else []
