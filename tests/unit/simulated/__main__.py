"""Live one seed again, and tell the story: ``python -m simulated 17 [a mutation]``."""

from __future__ import annotations

import sys

import pytest

from simulated import mutated_copies, mutated_driver, mutated_log, mutated_moves, mutated_subtasks
from simulated.mutations import MUTATIONS
from simulated.world import World

if __name__ == "__main__":
    assert mutated_copies and mutated_driver and mutated_log and mutated_moves and mutated_subtasks
    seed, *names = sys.argv[1:]
    with pytest.MonkeyPatch.context() as patch:
        if names:
            mutation = MUTATIONS[names[0]]
            mutation.apply(patch)
            World(int(seed), mutation.faults, tell=print, **mutation.world).run()
        else:
            World(int(seed), encodes=int(seed) % 50 == 0, tell=print).run()
