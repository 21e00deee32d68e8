"""Which executors keep a copy of which slice (ChronoStream, C5: chained backup).

The paper puts copy l of an owner's m-th slice on peer ``(m + l) % N``, m and l from 1. Index 0 occurs, so peers are
numbered from 0. Peers are taken in ring order from the owner on, which gives every node the same share. Slices that have
their copies keep them: m shifts with each move, and placing all anew would copy everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

Slice = TypeVar("Slice")
StageSlice = tuple[int, int]
"""A stage, and the number of a slice, or of a source's partition, in it."""


class CopyNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An executor that keeps copies: its name, and where its keeper listens, with the keeper's public key."""

    name: str
    endpoint: str
    public: str


def chained(slices: Sequence[Slice], peers: Sequence[str], factor: int) -> dict[Slice, tuple[str, ...]]:
    """Where the copies of one owner's slices go; as many for each as there are peers, if ``factor`` is more.

    >>> chained(["S4", "S5", "S6"], ["node1", "node3"], 1)
    {'S4': ('node1',), 'S5': ('node3',), 'S6': ('node1',)}
    """
    count = len(peers)
    copies = range(1, min(factor, count) + 1)
    return {slice: tuple(peers[(m + copy) % count] for copy in copies) for m, slice in enumerate(slices, start=1)}


def ring(roster: Sequence[str], owner: str | None) -> list[str]:
    """The other nodes, in order from the owner's place on.

    >>> ring(["a", "b", "c"], "b")
    ['c', 'a']
    """
    at = roster.index(owner) + 1 if owner in roster else 0
    return [node for node in (*roster[at:], *roster[:at]) if node != owner]


class Standbys:
    """Remembers from attempt to attempt which nodes keep copies of which slice."""

    def __init__(self) -> None:
        self._placed: dict[StageSlice, tuple[str | None, tuple[str, ...]]] = {}

    def holders(self) -> dict[StageSlice, tuple[str, ...]]:
        """The nodes that have a slice, as far as is known: its owner's, and those that keep copies."""
        return {
            slice: tuple(dict.fromkeys(copies if owner is None else (owner, *copies)))
            for slice, (owner, copies) in self._placed.items()
        }

    def place(
        self, owners: Mapping[StageSlice, str | None], roster: Sequence[str], factor: int
    ) -> dict[StageSlice, tuple[str, ...]]:
        """The nodes that keep copies of each slice now that ``owners`` are its owners' nodes.

        A copy stays where it is while its node is there. If that node has become the owner's, the one before stands by
        for it, without a transfer: it has all of the slice.
        """
        kept = {slice: self._kept(slice, owner, roster) for slice, owner in owners.items()}
        placed: dict[StageSlice, tuple[str, ...]] = {}
        for owner in dict.fromkeys(owners.values()):
            peers = ring(roster, owner)
            wanted = min(factor, len(peers))
            mine = [slice for slice, its in owners.items() if its == owner]
            new = chained([slice for slice in mine if len(kept[slice]) < wanted], peers, len(peers))
            for slice in mine:
                placed[slice] = tuple(dict.fromkeys((*kept[slice], *new.get(slice, ()))))[:wanted]
        self._placed = {slice: (owners[slice], placed[slice]) for slice in owners}
        return placed

    def _kept(self, slice: StageSlice, owner: str | None, roster: Iterable[str]) -> list[str]:
        before, copies = self._placed.get(slice, (None, ()))
        stand_by = [before if node == owner else node for node in copies]
        return [node for node in stand_by if node is not None and node != owner and node in roster]
