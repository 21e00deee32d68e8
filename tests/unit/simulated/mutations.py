"""Each rule of the protocol taken away, one at a time: what the world must notice.

A mutation changes the product's class where the rule is the product's, and the toy where it is a subtask's. Leases (24),
layers of undo (26, 27), partitions that move (14) and watermarks in marks that are lower than before (4.5) have none: they
are about time, memory or what nobody does yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from simulated.world import Faults

Patch = pytest.MonkeyPatch
STALLS = Faults(disk=0.06, stall=0.4, sink=0.05, write=0.0, lose=0.0, repeat=0.0, lay_out=0.0, chaos=0.006, chunk=0.1)
"""Drivers that stand still in the middle of something, again and again."""
DEATHS = Faults(disk=0.02, stall=0.1, sink=0.0, write=0.01, lose=0.004, repeat=0.05, lay_out=0.2, chaos=0.02)
"""Workers and drivers that die, and messages that come again."""
LOST = Faults(disk=0.02, append=0.4, stall=0.0, sink=0.0, write=0.0, lose=0.0, repeat=0.0, lay_out=0.0, chaos=0.002)
"""Appends that are answered, or are not, or late."""
SLOW = Faults(disk=0.1, stall=0.1, sink=0.5, write=0.0, lose=0.0, repeat=0.0, lay_out=0.0, chaos=0.004)
"""Sinks that fail and stall."""
AGAIN = Faults(
    disk=0.004, stall=0.0, sink=0.0, write=0.0, lose=0.0, repeat=0.6, lay_out=0.0, chaos=0.02, survive=1.0,
    only=("kill workers", "end the batch"),
)  # fmt: skip
"""Workers that are killed, and messages that come again long afterwards."""
CHANGES = Faults(
    disk=0.004, stall=0.0, sink=0.0, write=0.0, lose=0.0, repeat=0.0, lay_out=0.1, chaos=0.02,
    only=("end the batch",),
)  # fmt: skip
"""Batches that end, so that the next one begins with what is in memory."""
CALM = Faults(disk=0.01, stall=0.0, sink=0.0, write=0.0, lose=0.0, repeat=0.0, lay_out=0.0, chaos=0.002, chunk=0.1)
"""Little goes wrong, so that much is logged."""


@dataclass(frozen=True)
class Mutation:
    """``seeds``: so many worlds are tried, from ``first`` on, until one fails; few do without some rules."""

    name: str
    rule: str
    apply: Callable[[Patch], None]
    seeds: int
    faults: Faults | None
    world: dict[str, Any] = field(default_factory=dict)
    first: int = 0


MUTATIONS: dict[str, Mutation] = {}


def mutation(
    rule: str, seeds: int = 40, faults: Faults | None = None, first: int = 0, **world: Any
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def note(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        MUTATIONS[apply.__name__] = Mutation(apply.__name__, rule, apply, seeds, faults, world, first)
        return apply

    return note
