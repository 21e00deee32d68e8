"""Rules of copies, taken away: where they are, who is to have them, what is read, and what is mended.

Worlds do not go wrong without copies being fed (keepers fetch what they lack from the checkpoint), nor without a keeper keeping
what a cut to come will name: both are there for speed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.channel.keeping.keeper import Keeping
from headrace.driver import hands
from headrace.driver.protocol.members import Members
from headrace.state.copies import nearest, placement, restoring, tending
from headrace.state.copies.feeding import Copier
from headrace.state.copies.nearest import NearestStorage
from headrace.state.copies.placement import Standbys
from headrace.state.copies.tending import Tending
from simulated.mutations import CALM, Patch, mutation
from simulated.subtask import Subtask

KEPT = replace(CALM, nodes=3, chaos=0.006, moves=0.02)
"""Little goes wrong, with executors that keep copies."""
LOSING = replace(KEPT, uncopied=0.3, only=("lose a node", "kill workers"))
"""Executors are lost, and much of what goes between keepers is."""
DAMAGING = replace(KEPT, chaos=0.03, only=("damage the checkpoint", "kill workers"))
"""Bits flip in the checkpoint, and what is loaded is loaded again and again."""
COPIES = replace(DAMAGING, only=("damage a copy", "kill workers"))
"""Bits flip in copies."""


@mutation("copies: on other nodes than the owner's", faults=LOSING, seeds=60)
def copies_at_home(patch: Patch) -> None:
    patch.setattr(placement, "ring", lambda roster, owner: list(roster))


@mutation("copies: on nodes that are there", faults=LOSING, seeds=60)
def copies_on_lost_nodes(patch: Patch) -> None:
    def kept(self: Any, slice: Any, owner: Any, roster: Any) -> list[str]:
        before, copies = self._placed.get(slice, (None, ()))
        return [node for node in (before if one == owner else one for one in copies) if node not in (None, owner)]

    patch.setattr(Standbys, "_kept", kept)


@mutation("copies: who keeps them is told, until it has heard", faults=LOSING, seeds=200)
def keepers_told_once(patch: Patch) -> None:
    told = Copier._told
    patch.setattr(Copier, "_told", lambda self, at: told(self, at) or True)


@mutation("copies: who gets a slice by a move has its node hold it", faults=replace(KEPT, moves=0.1), seeds=200)
def arrivals_not_held(patch: Patch) -> None:
    patch.setattr(Subtask, "hold_also", lambda self: None)


@mutation("copies: what a keeper lacks it fetches", faults=LOSING, seeds=60)
def nothing_fetched(patch: Patch) -> None:
    patch.setattr(Tending, "_fetch", lambda self, wanted: (0, 0, False))


@mutation("copies: what is to be held for a newer attempt stays", faults=replace(LOSING, uncopied=0.6), seeds=600)
def held_for_older_attempts(patch: Patch) -> None:
    def hold(self: Any, attempt: Any, slices: Any) -> bool:
        self._held, self._attempt = slices, attempt
        return True

    patch.setattr(Keeping, "_hold", hold)


@mutation("repair: a copy that does not fit is not taken", faults=COPIES, seeds=200)
def copies_not_checked(patch: Patch) -> None:
    patch.setattr(NearestStorage, "_fits", lambda self, block, body: len(body) == block.length)


@mutation("repair: what the checkpoint has not is taken from copies", faults=DAMAGING, seeds=200)
def others_not_asked(patch: Patch) -> None:
    patch.setattr(
        NearestStorage, "_find_valid", lambda self, version, peers, others: self._find(version, (), nearest.fits)
    )
    patch.setattr(NearestStorage, "_from_own", lambda self, block, is_it: None)


@mutation("repair: what is fetched from the checkpoint is checked", faults=replace(DAMAGING, uncopied=0.5), seeds=400)
def damage_fetched(patch: Patch) -> None:
    patch.setattr(tending, "fits", lambda block, body: len(body) == block.length)


@mutation("repair: damage that was found is mended", faults=DAMAGING, seeds=400)
def nothing_mended(patch: Patch) -> None:
    patch.setattr(hands, "repair", lambda storage, broken, copies: ([], list(broken)))


@mutation("repair: it is mended with what fits", faults=DAMAGING, seeds=400)
def mended_with_anything(patch: Patch) -> None:
    patch.setattr(restoring, "_patched", lambda storage, file, found: storage.get(file))


@mutation("copies: after a move the owner before stands by", faults=replace(KEPT, moves=0.1), seeds=200)
def standbys_forget_moves(patch: Patch) -> None:
    def change(self: Any, tables: Any) -> None:
        for stage, table in tables.items():
            self.tables[stage] = table

    patch.setattr(Members, "change", change)
