"""Finding blocks of a checkpoint that are not what was written, and putting them right from copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.errors import CorruptionError
from headrace.state.copies.nearest import fits
from headrace.state.copies.nodestore import NodeStore, Tier
from headrace.state.durable.loading import read_slice
from headrace.state.durable.manifest import Manifest, SliceKey, SliceVersion
from headrace.state.durable.segments import SEGMENTS, BlockRef
from headrace.state.durable.storage import Storage
from headrace.state.durable.versionlog import VersionLog
from headrace.tokens import Token


class Copy(Protocol):
    """Something that may have copies of blocks."""

    def bodies(self, block: BlockRef) -> Iterator[bytes]:
        """What is there in place of a block."""
        ...


@dataclass(frozen=True, slots=True)
class Damage:
    """What is wrong with a slice of some versions; ``block`` is None if all blocks are right but not what they make."""

    step: str
    slice: int
    versions: tuple[Token, ...]
    block: BlockRef | None
    what: str


@dataclass(frozen=True, slots=True)
class Findings:
    """What was looked at: versions, oldest first, how many different blocks they have, and what is wrong."""

    versions: tuple[Token, ...]
    blocks: int
    damage: tuple[Damage, ...]

    @property
    def broken(self) -> tuple[BlockRef, ...]:
        """The blocks that are not what was written."""
        return tuple(one.block for one in self.damage if one.block is not None)

    @property
    def whole(self) -> tuple[Token, ...]:
        """The versions that nothing is wrong with."""
        broken = {version for one in self.damage for version in one.versions}
        return tuple(version for version in self.versions if version not in broken)


class Directory:
    """Copies in a directory: of a node, another checkpoint, or wherever segments lie."""

    def __init__(self, root: Path) -> None:
        roots = [root, root / SEGMENTS, root / "headrace" / SEGMENTS]
        self._store = NodeStore([Tier("node", one, 0) for one in roots if one.is_dir()])

    def bodies(self, block: BlockRef) -> Iterator[bytes]:
        yield from (body for _, body in self._store.find(block.file, block.offset, block.length))


def examine(storage: Storage) -> Findings:
    """Read every block of the last two versions, and check what they make. A job may go on meanwhile."""
    log = VersionLog(storage)
    manifests = [cut.manifest for _, cut in log.last_cuts(2)]
    damage = _by_block(one for found in _slices(manifests).items() for one in _examine_slice(storage, *found))
    if damage:
        named = {block for cut in log.last_cuts(2) for block in _blocks([cut[1].manifest])}
        damage = [one for one in damage if one.block is None or one.block in named]
    return Findings(tuple(one.token for one in manifests), len(_blocks(manifests)), tuple(damage))


def broken_blocks(storage: Storage, manifest: Manifest) -> list[BlockRef]:
    """The blocks of a version that the storage has not as they were written."""
    return [block for block in _blocks([manifest]) if _wrong_with(storage, block) is not None]


def repair(
    storage: Storage, broken: Iterable[BlockRef], copies: Sequence[Copy]
) -> tuple[list[BlockRef], list[BlockRef]]:
    """Take blocks from copies and rewrite their segments, each as a whole.

    Returns the blocks that are right again, and those that no copy has.
    """
    by_file: dict[str, list[BlockRef]] = {}
    for block in dict.fromkeys(broken):
        by_file.setdefault(block.file, []).append(block)
    mended: list[BlockRef] = []
    for file, blocks in by_file.items():
        found = {block: body for block in blocks if (body := _found(block, copies)) is not None}
        if found:
            storage.put(file, _patched(storage, file, found))
            mended += found
    return mended, [block for blocks in by_file.values() for block in blocks if block not in mended]


def _slices(manifests: Iterable[Manifest]) -> dict[tuple[SliceKey, SliceVersion], list[Token]]:
    """What has to be looked at: each slice once for each content it has, with the versions that have it."""
    found: dict[tuple[SliceKey, SliceVersion], list[Token]] = {}
    for manifest in manifests:
        for key, version in manifest.slices.items():
            found.setdefault((key, version), []).append(manifest.token)
    return found


def _blocks(manifests: Iterable[Manifest]) -> set[BlockRef]:
    return {block for manifest in manifests for version in manifest.slices.values() for block in version.blocks}


def _by_block(damage: Iterable[Damage]) -> list[Damage]:
    """Each block once, with all versions that have it."""
    found: dict[tuple[str, int, BlockRef | None, str], list[Token]] = {}
    for one in damage:
        found.setdefault((one.step, one.slice, one.block, one.what), []).extend(one.versions)
    return [
        Damage(step, slice, tuple(sorted(set(tokens))), block, what)
        for (step, slice, block, what), tokens in found.items()
    ]


def _examine_slice(storage: Storage, what: tuple[SliceKey, SliceVersion], tokens: Sequence[Token]) -> list[Damage]:
    (step, slice), version = what
    versions = tuple(tokens)
    wrong = {block: said for block in version.blocks if (said := _wrong_with(storage, block)) is not None}
    if wrong:
        return [Damage(step, slice, versions, block, said) for block, said in wrong.items()]
    try:
        read_slice(storage, step, slice, version)
    except CorruptionError as error:
        return [Damage(step, slice, versions, None, str(error))]
    return []


def _wrong_with(storage: Storage, block: BlockRef) -> str | None:
    try:
        body = storage.get_range(block.file, block.offset, block.length)
    except FileNotFoundError:
        return "its segment is missing"
    if len(body) != block.length:
        return f"it is cut off: {len(body)} of {block.length} bytes"
    return None if fits(block, body) else "it has changed since it was written (checksum differs)"


def _found(block: BlockRef, copies: Iterable[Copy]) -> bytes | None:
    return next((body for copy in copies for body in copy.bodies(block) if fits(block, body)), None)


def _patched(storage: Storage, file: str, found: Mapping[BlockRef, bytes]) -> bytes:
    """The segment as it should be, as far as it is known: bytes that no version names do not matter."""
    try:
        data = bytearray(storage.get(file))
    except FileNotFoundError:
        data = bytearray()
    end = max(block.offset + block.length for block in found)
    data.extend(bytes(max(end - len(data), 0)))
    for block, body in found.items():
        data[block.offset : block.offset + block.length] = body
    return bytes(data)
