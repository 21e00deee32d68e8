"""Hundreds of seeded lives of the epoch protocol; and proof that the world would notice a broken rule."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headrace.driver.coordinator import Coordinator
from headrace.state.durable.versions import Versions
from simulation import FAULTS, Driver, World, simulated_plan
from soaking import MORE

from headrace.driver import coordinator as epochs
from headrace.driver.publishing import discard_failed, publish
from headrace.runtime.messages import Described, Loaded
from headrace.runtime.plan import JobPlan

SEEDS = 100 * MORE


@pytest.fixture(scope="module")
def room() -> Iterator[Path]:
    """A directory in memory, if there is one: the simulation writes many small files."""
    memory = Path("/dev/shm")
    directory = tempfile.mkdtemp(prefix="headrace-sim-", dir=memory if memory.is_dir() else None)
    yield Path(directory)
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def plan(room: Path) -> JobPlan:
    return simulated_plan(room / "plan")


def live(plan: JobPlan, room: Path, seed: int, **more_faults: float) -> World:
    checkpoint = Path(tempfile.mkdtemp(dir=room))
    world = World(plan, checkpoint, seed, FAULTS | more_faults)
    try:
        world.run(steps=700)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    finally:
        world.driver.versions.close()
        shutil.rmtree(checkpoint)
    return world


# chronostream facts 16, 17, 18, 20, 33: seeded; invariants I3 and I5 of the specification
@pytest.mark.soak
def test_no_life_loses_or_repeats_a_record(plan: JobPlan, room: Path) -> None:
    worlds = [live(plan, room, seed) for seed in range(SEEDS)]
    assert sum(len(world.picks) for world in worlds) > 5 * SEEDS, "the worlds get somewhere"
    assert sum(world.driver.coordinator.generation > 2 for world in worlds) > SEEDS / 10, "drivers die"
    assert sum(len(world.zombies) > 0 for world in worlds) > SEEDS / 10


def first_bad_life(plan: JobPlan, room: Path, **more_faults: float) -> str:
    for seed in range(1500):
        try:
            live(plan, room, seed, **more_faults)
        except AssertionError as error:
            return str(error)
    return "none"


def test_without_the_audit_records_get_lost(plan: JobPlan, room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "audit", lambda descriptions: None)
    assert "records lost or repeated" in first_bad_life(plan, room)


def test_without_fencing_zombies_do_harm(plan: JobPlan, room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(self: Coordinator, sender: bytes, message: Loaded | Described) -> Any:
        return self.members.get(message.place)

    monkeypatch.setattr(Coordinator, "_member", trusting)
    assert "work of another attempt" in first_bad_life(plan, room, fail=0.02, shuffle=0.0)


def test_a_seal_whose_commit_was_lost_may_not_be_built_upon(
    plan: JobPlan, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(self: Coordinator) -> int:
        self.query += 1
        self.token, self.members, self.planned = None, {}, False
        return self.query

    def keeping(self: Driver) -> int:
        self.commit_ready()
        return self.coordinator.new_query()

    monkeypatch.setattr(Coordinator, "new_query", forgetful)
    monkeypatch.setattr(Driver, "new_query", keeping)
    assert first_bad_life(plan, room) != "none"


def test_recovery_that_looks_at_the_last_commit_only_loses_output(
    plan: JobPlan, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_last(self: World, driver: Driver, generation: int) -> None:
        last = max(self.commits, default=None)
        picked = driver.versions.pick(last, None) if last is not None else None
        if picked is not None:
            publish(self.plan, driver.versions.manifest(picked))
        discard_failed(self.plan, driver.versions, generation)

    monkeypatch.setattr(World, "recover", only_last)
    assert first_bad_life(plan, room) != "none"


def test_picks_that_do_not_obey_earlier_ones_differ(plan: JobPlan, room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pick = Versions.pick

    def stubborn(self: Versions, epoch: int, preferred: Any) -> Any:
        path = self.root / "picks" / f"{epoch:08d}"
        path.unlink(missing_ok=True)
        return pick(self, epoch, preferred)

    monkeypatch.setattr(Versions, "pick", stubborn)
    assert first_bad_life(plan, room) != "none"
