"""Thousands of seeded lives of the protocol of cuts, over the driver's real machine; and proof that each rule is needed.

``HEADRACE_SEEDS`` says how many worlds there are; ``python -m simulated 17`` in this directory lives one again.
"""

from __future__ import annotations

import os

import pytest
from simulated import mutated_copies, mutated_driver, mutated_log, mutated_moves, mutated_subtasks
from simulated.lanes import Violation
from simulated.mutations import MUTATIONS, Mutation
from simulated.world import World
from soaking import MORE

SEEDS = int(os.environ.get("HEADRACE_SEEDS", "10000")) * MORE
CHUNK = 250
ENCODED_EVERY = 50
"""Of so many worlds one keeps the entries of its log as bytes, as the product does."""

assert (
    mutated_copies and mutated_driver and mutated_log and mutated_moves and mutated_subtasks
)  # they note their mutations


def live(seed: int) -> World:
    world = World(seed, encodes=seed % ENCODED_EVERY == 0)
    try:
        world.run()
    except BaseException as error:
        error.add_note(f"seed {seed}; to see it: cd tests/unit && PYTHONPATH=../../src python -m simulated {seed}")
        raise
    return world


# chronostream facts 16, 17, 18, 20, 21, 22, 23, 26, 27, 33; invariants I1 to I7, I9 and I10 of the protocol
@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_life_breaks_an_invariant(first: int) -> None:
    cuts = drivers = moves = 0
    for seed in range(first, min(first + CHUNK, SEEDS)):
        world = live(seed)
        cuts += len(world.truth.line)
        drivers += world.drivers_started
        moves += world.truth.moves
    assert cuts > 3 * CHUNK, "the worlds get somewhere"
    assert drivers > 1.5 * CHUNK, "and drivers come and go"
    assert moves > CHUNK, "and so do slices"


def bad_seed(mutation: Mutation) -> int | None:
    for seed in range(mutation.first, mutation.first + mutation.seeds):
        try:
            World(seed, mutation.faults, **mutation.world).run()
        except (Violation, Exception):
            return seed
    return None


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_without_a_rule_worlds_go_wrong(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation.apply(monkeypatch)
    assert bad_seed(mutation) is not None, (
        f"rule {mutation.rule}: {mutation.seeds} worlds do not notice that it is gone"
    )
