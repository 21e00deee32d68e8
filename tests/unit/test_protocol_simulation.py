"""The epoch protocol under thousands of seeded disasters, against a counter that must never slip.

The real ``Coordinator`` and ``Versions`` run against a simulated Spark (a set of committed epochs)
and simulated workers: a source that hands out the numbers from its offset on, and a sink subtask
that sums them. Messages are shuffled, repeated and mixed with those of dead attempts; the driver
dies between any two steps and comes back as a new generation.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.config import Settings
from headrace.connect.sink import Staged
from headrace.errors import HeadraceError
from headrace.runtime.plan import Description, JobPlan
from headrace.spark.epochs import Coordinator
from headrace.spark.planning import plan_job
from headrace.state.segments import BlockRef, StoredChange
from headrace.state.versions import Manifest, Versions
from headrace.testing import scripted
from headrace.tokens import Token

SEEDS = 1000


class Died(Exception):
    """The driver was killed here."""


class World:
    """What outlives a driver: the checkpoint, Spark's commit log, what was published, messages in flight."""

    def __init__(self, plan: JobPlan, root: Path, dice: random.Random) -> None:
        self.plan, self.root, self.dice = plan, root, dice
        self.committed: set[int] = set()
        self.published: dict[int, tuple[str, ...]] = {}
        self.stale: list[tuple[bytes, dict[str, Any]]] = []
        self.deaths = 0

    def perhaps_die(self) -> None:
        if self.dice.random() < 0.06:
            self.deaths += 1
            raise Died

    def publish(self, manifest: Manifest) -> None:
        rows = tuple(staged.path for staged in manifest.staged)
        assert self.published.setdefault(manifest.token.epoch, rows) == rows, "two attempts of one epoch were published"


class Driver:
    """One generation."""

    def __init__(self, world: World) -> None:
        self.world, self.dice = world, world.dice
        self.versions = Versions(world.root)
        self.coordinator = Coordinator(world.plan, self.versions, self.versions.open({"job": "simulated"}))

    def recover(self) -> None:
        self.world.perhaps_die()
        if self.world.committed:
            picked = self.versions.pick(max(self.world.committed), None)
            assert picked is not None
            self.world.perhaps_die()
            self.world.publish(self.versions.manifest(picked))

    def run_query(self) -> None:
        """Epoch after epoch until the query fails by itself."""
        query = self.coordinator.new_query()
        while len(self.world.committed) < 6:
            epoch = max(self.world.committed, default=-1) + 1
            if not self._epoch(epoch, query):
                return

    def _epoch(self, epoch: int, query: int) -> bool:
        world, dice = self.world, self.dice
        names = {(0, 0): os.urandom(4), (1, 0): os.urandom(4)}
        self._zombies()
        hellos = list(names.items())
        dice.shuffle(hellos)
        tickets: dict[bytes, dict[str, Any]] = {}
        for (stage, index), name in hellos:
            world.perhaps_die()
            hello = {"query": query, "epoch": epoch, "stage": stage, "index": index, "inventory": None}
            for to, kind, body in self.coordinator.hello(name, hello):
                assert kind == "plan"
                tickets[to] = body
            if dice.random() < 0.04:
                return False  # a task died before GO
        token = Token.parse(tickets[names[0, 0]]["token"])
        base = tickets[names[0, 0]]["base"]
        before = self.versions.manifest(Token.parse(base)) if base else None
        offset, total = _state(before)
        sent = dice.randint(0, 5)
        numbers = range(offset, offset + sent)
        descriptions = [
            (names[0, 0], _describe(0, token, ("items", offset + sent), {0: [sent]}, {}, ())),
            (
                names[1, 0],
                _describe(
                    1,
                    token,
                    ("sum", total + sum(numbers)),
                    {},
                    {0: {0: [sent]}},
                    tuple(f"{token}:{n}" for n in numbers),
                ),
            ),
        ]
        dice.shuffle(descriptions)
        sealed = False
        for name, body in descriptions + ([dice.choice(descriptions)] if dice.random() < 0.2 else []):
            world.perhaps_die()
            self._zombies()
            if dice.random() < 0.05:
                world.stale += descriptions
                return False  # a task died before its description arrived
            replies = self.coordinator.described(name, body)
            sealed = sealed or any(kind == "sealed" for _, kind, _ in replies)
        assert sealed
        world.stale += descriptions
        world.perhaps_die()
        if dice.random() < 0.1:
            return False  # the query failed after SEALED, before Spark's commit
        world.committed.add(epoch)
        world.perhaps_die()
        picked = self.versions.pick(epoch, token)
        assert picked == token, "what this driver sealed last is what Spark committed"
        world.perhaps_die()
        world.publish(self.versions.manifest(picked))
        self.versions.collect_garbage(epoch + 1)
        return True

    def _zombies(self) -> None:
        """Messages of attempts that are long dead arrive now."""
        if self.world.stale and self.dice.random() < 0.3:
            name, body = self.dice.choice(self.world.stale)
            sealed = self.coordinator.sealed
            for _, kind, _ in self.coordinator.described(name, body):
                assert kind == ("sealed" if body["token"] == str(self.coordinator.token) else "fenced")
            assert self.coordinator.sealed is sealed, "a dead attempt's message changed what is sealed"


def _state(manifest: Manifest | None) -> tuple[int, int]:
    if manifest is None:
        return 0, 0
    offset, total = (int(manifest.slices[step, 0].blocks[-1].file) for step in ("items", "sum"))
    return offset, total


def _describe(
    stage: int, token: Token, change: tuple[str, int], sent: Any, consumed: Any, staged: tuple[str, ...]
) -> dict[str, Any]:
    step, value = change
    block = BlockRef(str(value), 0, 0, "", 1, full=True)
    changes = (StoredChange(step, 0, (value, value), block),)
    rows = tuple(Staged("out", path, 1) for path in staged)
    return Description(stage, 0, token, changes, sent, consumed, rows, {}, exhausted=False).to_wire()


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> JobPlan:
    job = hr.Job("simulated")
    job.source("items", scripted([{"n": 1}])).key_by("n").reduce(name="sum", total=hr.sum("n"))
    return plan_job(job, tmp_path_factory.mktemp("plan"), Settings.of(parallelism=1, slices=1), collect=True)


# chronostream facts 15, 16, 17, 18, 33
@pytest.mark.timeout(120)
def test_no_disaster_loses_repeats_or_forks(plan: JobPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # the simulated machine never loses power
    deaths = 0
    for seed in range(SEEDS):
        world = World(plan, tmp_path / str(seed), random.Random(seed))
        for _ in range(200):
            driver = Driver(world)
            try:
                driver.recover()
                for _ in range(50):
                    driver.run_query()
                    if len(world.committed) >= 6:
                        break
                driver.recover()
                break
            except Died:
                continue
            finally:
                driver.versions.close()
        else:
            pytest.fail(f"seed {seed} never came to an end")
        deaths += world.deaths
        _check(world, seed)
    assert deaths > SEEDS, "the simulation should kill more than one driver per seed"


def _check(world: World, seed: int) -> None:
    assert sorted(world.committed) == list(range(6)), seed
    versions = Versions(world.root)
    last = versions.last_picked()
    assert last is not None
    assert last.epoch == 5, seed
    offset, total = _state(versions.manifest(last))
    numbers = [int(row.split(":")[1]) for epoch in sorted(world.published) for row in world.published[epoch]]
    assert numbers == list(range(offset)), f"seed {seed}: published {numbers}, offset {offset}"
    assert total == sum(numbers), seed
    for epoch, rows in world.published.items():
        assert len({row.split(":")[0] for row in rows}) <= 1, f"seed {seed}: epoch {epoch} mixes attempts"


def test_an_epoch_without_its_predecessors_state_is_refused(plan: JobPlan, tmp_path: Path) -> None:
    versions = Versions(tmp_path)
    coordinator = Coordinator(plan, versions, versions.open({"job": "simulated"}))
    query = coordinator.new_query()
    with pytest.raises(HeadraceError, match="no state of epoch 6"):
        coordinator.hello(b"a", {"query": query, "epoch": 7, "stage": 0, "index": 0, "inventory": None})
    versions.close()
