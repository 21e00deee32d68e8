"""Copies of segments in directories of one node: in memory (a file system in memory) first, then on disk.

A copy is a file of the segment's size with the blocks that are kept at their own places, and holes between them, which
take no room. So a block is read as in the checkpoint, and who reads tells a copy from a hole or from damage by its
checksum. Nothing is synced: after a crash of the host the checkpoint has everything.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.state.durable.segments import SEGMENTS

Origin = Literal["memory", "node", "peer", "checkpoint"]
"""Where a block was found, nearest first."""
ORIGINS: tuple[Origin, ...] = ("memory", "node", "peer", "checkpoint")
Extent = tuple[int, bytes]
"""Where in a segment some bytes belong, and the bytes."""
_MAX_SEGMENT_BYTES = 1 << 36
_SEGMENT = re.compile(SEGMENTS + r"/(c\d{10,18}-g\d{6,18}-a\d{4,18}-[a-z0-9-]{1,64}\.seg)")
_COUNTED_S = 1.0
"""How long a count of what is used holds: several processes write."""


@dataclass(frozen=True, slots=True)
class Tier:
    """A directory for copies, and how much of it may be used."""

    origin: Origin
    root: Path
    limit_bytes: int


class NodeStore:
    """Reads and writes the copies of one node; several processes may do so at the same time."""

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self._tiers = tiers
        self._counted: dict[Origin, tuple[float, int]] = {}

    def put(self, file: str, size: int, extents: Sequence[Extent]) -> bool:
        """Keep some of a segment's bytes; False if there is no room for them, or they are no segment's."""
        name = _name_of(file)
        if name is None or not _are_within(size, extents):
            return False
        wanted = sum(len(body) for _, body in extents)
        for tier in self._tiers:
            path = tier.root / name
            if self._used(tier) + wanted > tier.limit_bytes:
                continue
            try:
                _write(path, size, extents)
            except OSError:
                path.unlink(missing_ok=True)
                continue
            at_s, used = self._counted.get(tier.origin, (0.0, 0))
            self._counted[tier.origin] = (at_s, used + wanted)
            return True
        return False

    def find(self, file: str, offset: int, length: int) -> Iterator[tuple[Origin, bytes]]:
        """What copies have in place of a block, nearest first; whether it is the block, its checksum tells."""
        name = _name_of(file)
        if name is None:
            return
        for tier in self._tiers:
            try:
                descriptor = os.open(tier.root / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError:
                continue
            try:
                body = os.pread(descriptor, length, offset)
            finally:
                os.close(descriptor)
            if not is_hole(body):
                yield tier.origin, body

    def files(self) -> frozenset[str]:
        """The segments of which something is kept."""
        names = {entry.name for tier in self._tiers for entry in _entries(tier.root)}
        return frozenset(f"{SEGMENTS}/{name}" for name in names if _SEGMENT.fullmatch(f"{SEGMENTS}/{name}"))

    def drop(self, file: str) -> None:
        name = _name_of(file)
        if name is None:
            return
        for tier in self._tiers:
            (tier.root / name).unlink(missing_ok=True)

    def _used(self, tier: Tier) -> int:
        at_s, used = self._counted.get(tier.origin, (0.0, 0))
        now_s = time.monotonic()
        if not at_s or now_s - at_s > _COUNTED_S:
            used = _allocated(tier.root)
            self._counted[tier.origin] = (now_s, used)
        return used


def is_hole(body: bytes) -> bool:
    """Whether nothing was ever written there: a block begins with the length of its header, which is not 0."""
    return not any(body[:4])


def _name_of(file: str) -> str | None:
    """A segment's own name, which leads nowhere else; None for what is not the name of one."""
    found = _SEGMENT.fullmatch(file)
    return found[1] if found is not None else None


def _are_within(size: int, extents: Sequence[Extent]) -> bool:
    return 0 < size <= _MAX_SEGMENT_BYTES and all(0 <= at <= at + len(body) <= size for at, body in extents)


def _write(path: Path, size: int, extents: Sequence[Extent]) -> None:
    """Into a new file, which appears whole, or into the holes of one that is there."""
    is_new = not path.exists()
    target = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp") if is_new else path
    flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT | os.O_EXCL if is_new else 0)
    descriptor = os.open(target, flags, 0o600)
    try:
        if is_new:
            os.ftruncate(descriptor, size)
        for at, body in extents:
            _write_all(descriptor, body, at)
        if is_new:
            target.rename(path)
    except OSError:
        target.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, body: bytes, at: int) -> None:
    rest = memoryview(body)
    while rest:
        done = os.pwrite(descriptor, rest, at)
        rest, at = rest[done:], at + done


def _entries(root: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(root) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _allocated(root: Path) -> int:
    total = 0
    for entry in _entries(root):
        try:
            total += entry.stat(follow_symlinks=False).st_blocks * 512
        except FileNotFoundError:
            continue
    return total
