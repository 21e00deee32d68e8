"""What a version is made of: every slice's blocks, the watermarks, and what sinks have staged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from headrace.connect.sink import Staged
from headrace.errors import ProtocolError
from headrace.state.durable.changes import ZERO_DIGEST, Digest
from headrace.state.durable.segments import BlockRef, StoredChange
from headrace.tokens import Token

SliceKey = tuple[str, int]
"""A store's name (a step's, with ``#part`` if it has several) and a slice number."""


class SliceVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One slice at one version: its digest, and the blocks it is made of, base first."""

    digest: Digest
    blocks: tuple[BlockRef, ...]

    def since(self, known: SliceVersion) -> tuple[BlockRef, ...] | None:
        """The blocks that came after an earlier version; None if that was not only added to, but written anew."""
        upto = len(known.blocks)
        return self.blocks[upto:] if self.blocks[:upto] == known.blocks else None


_EMPTY = SliceVersion(ZERO_DIGEST, ())


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Some blocks of a slice that follow each other, written anew as one: ``block`` stands for ``chain``."""

    step: str
    slice: int
    chain: tuple[BlockRef, ...]
    block: BlockRef


@dataclass(frozen=True, slots=True)
class Manifest:
    """The whole state after a cut, and what was staged between ``base``, the cut before it, and this one.

    ``watermarks`` are how far the edges have come that arrive at a stage, by ``"step → step:port"``: what they have closed is
    closed in every attempt that starts here. ``exhausted``: no source will read more. ``end``: the cut was a batch's last,
    of the user's streaming query that batch of Spark's, if there is one. ``at_us`` is the driver's time. ``editions`` are
    those in which lookups look up what comes after it, by step.
    """

    token: Token
    base: Token | None
    slices: dict[SliceKey, SliceVersion] = field(default_factory=dict)
    staged: tuple[Staged, ...] = ()
    watermarks: dict[str, int] = field(default_factory=dict)
    exhausted: bool = False
    end: bool = False
    batch: int | None = None
    at_us: int = 0
    editions: dict[str, str] = field(default_factory=dict)

    @property
    def files(self) -> frozenset[str]:
        """The segments that the version is made of."""
        return frozenset(block.file for version in self.slices.values() for block in version.blocks)


def next_manifest(
    base: Manifest | None,
    token: Token,
    changes: Iterable[StoredChange],
    staged: Iterable[Staged],
    rewrites: Iterable[Rewrite] = (),
    *,
    watermarks: Mapping[str, int],
    exhausted: bool,
    end: bool,
    batch: int | None,
    at_us: int,
    editions: Mapping[str, str] | None = None,
) -> Manifest:
    """The manifest of the cut after ``base``.

    ``changes`` are those of the interval, of each slice oldest first. A rewrite counts if what it stands for is still
    there: after a failure the slice may have gone on differently. Raises ProtocolError if the cut is not the next one, or
    if a change was not made to the state before it.
    """
    follows = base.token.cut + 1 if base is not None else 1
    if token.cut != follows:
        raise ProtocolError(f"{token} does not follow {base.token if base is not None else 'an empty state'}")
    slices = changed_slices(base.slices if base is not None else {}, changes, token)
    for rewrite in rewrites:
        key = (rewrite.step, rewrite.slice)
        if key in slices:
            slices[key] = _rewritten(slices[key], rewrite)
    return Manifest(
        token,
        base.token if base is not None else None,
        slices,
        tuple(staged),
        dict(watermarks),
        exhausted,
        end,
        batch,
        at_us,
        dict(editions or {}),
    )


def changed_slices(
    slices: Mapping[SliceKey, SliceVersion], changes: Iterable[StoredChange], token: Token
) -> dict[SliceKey, SliceVersion]:
    """Slices after the changes of an interval, of each slice oldest first; ProtocolError if one was not made to them."""
    after = dict(slices)
    for change in changes:
        key = (change.step, change.slice)
        after[key] = _changed(after.get(key, _EMPTY), change, token)
    return after


def _changed(version: SliceVersion, change: StoredChange, token: Token) -> SliceVersion:
    if change.parent != version.digest:
        raise ProtocolError(
            f"{token}: the change of step {change.step!r}, slice {change.slice} in {change.block.file} does not follow "
            f"the state before it (digest {_hex(change.parent)}, not {_hex(version.digest)})"
        )
    before = () if change.block.full else version.blocks
    return SliceVersion(change.digest, (*before, change.block))


def _rewritten(version: SliceVersion, rewrite: Rewrite) -> SliceVersion:
    blocks, chain = version.blocks, rewrite.chain
    start = blocks.index(chain[0]) if chain[0] in blocks else len(blocks)
    if blocks[start : start + len(chain)] != chain:
        return version
    return SliceVersion(version.digest, (*blocks[:start], rewrite.block, *blocks[start + len(chain) :]))


def _hex(digest: Digest) -> str:
    return f"{digest[0]:016x}{digest[1]:016x}"
