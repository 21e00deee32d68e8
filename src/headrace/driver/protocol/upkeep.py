"""Keeping the checkpoint small: long chains of blocks are written anew, and what nobody needs is removed.

One at a time, and garbage only between a logged cut and the next order: so a rewrite that a cut to come will name is
never taken for garbage, and nothing that is being written is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.driver.protocol.events import (
    Collected,
    CollectGarbage,
    Compact,
    Instruction,
    Mended,
    NumberedCut,
    Remove,
    Rewritten,
    Say,
)
from headrace.driver.protocol.publications import Publications
from headrace.state.durable.compaction import needs_compaction
from headrace.state.durable.manifest import Rewrite
from headrace.state.durable.segments import BlockRef
from headrace.tokens import Attempt

_COLLECT_EVERY_S = 10.0
_NAMED = 5
_COMPACT_AGAIN_S = 10.0
"""After it failed; what is in the way then is seldom gone a second later."""


@dataclass(slots=True)
class Upkeep:
    """``collecting``: no cut may be ordered. ``rewrites`` wait for the next manifest."""

    collecting: bool = False
    compacting: bool = False
    rewrites: tuple[Rewrite, ...] = ()
    _collected_s: float = float("-inf")
    _compact_s: float = float("-inf")
    _collected_last: bool = False

    def on(self, event: Rewritten | Collected | Mended, now_s: float) -> list[Instruction]:
        if isinstance(event, Collected):
            self.collecting = False
        elif isinstance(event, Rewritten) and self.compacting:
            self.compacting, self.rewrites = False, event.rewrites
        out: list[Instruction] = [Remove(event.names)] if isinstance(event, Collected) and event.names else []
        out += _mending(event) if not isinstance(event, Collected) else []
        if event.trouble is None:
            return out
        self._compact_s = now_s + _COMPACT_AGAIN_S
        return [*out, Say("upkeep", f"the checkpoint could not be tidied: {event.trouble}")]

    def take_rewrites(self) -> tuple[Rewrite, ...]:
        rewrites, self.rewrites = self.rewrites, ()
        return rewrites

    def after(self, base: NumberedCut, by: Attempt, publications: Publications, now_s: float) -> list[Instruction]:
        """What to do right after a cut was logged."""
        if self.compacting or self.collecting:
            return []
        collect = now_s - self._collected_s >= _COLLECT_EVERY_S
        compact = not self.rewrites and now_s >= self._compact_s and needs_compaction(base.manifest)
        if compact and (not collect or self._collected_last):  # in turn: where cuts are far apart both are always due
            self.compacting, self._collected_last = True, False
            return [Compact(base.manifest, by)]
        if not collect:
            return []
        self._collected_s, self.collecting, self._collected_last = now_s, True, True
        spare = frozenset(rewrite.block.file for rewrite in self.rewrites)
        unpublished = min((cut.number for cut in publications.waiting), default=base.number)
        return [CollectGarbage(by.generation, by, base.manifest.token.cut, spare, unpublished)]


def _mending(event: Rewritten | Mended) -> list[Instruction]:
    """What users are told of damage to their checkpoint."""
    out: list[Instruction] = []
    if event.mended:
        out.append(Say("mended", f"damaged in the checkpoint, taken from copies: {_named(event.mended)}", loud=True))
    if isinstance(event, Mended) and event.lost:
        out.append(Say("damaged", f"damaged in the checkpoint, and in no copy: {_named(event.lost)}", loud=True))
    return out


def _named(blocks: Sequence[BlockRef]) -> str:
    first = ", ".join(f"{block.file} at {block.offset}" for block in blocks[:_NAMED])
    return f"{len(blocks)} blocks ({first}{', …' if len(blocks) > _NAMED else ''})"
