"""A seeded world for the epoch protocol: real coordinator and versions, fake workers, network and Spark.

Everything that can go wrong is an action that the dice may choose between any two steps: messages are
lost, repeated and reordered, rows vanish between stages, workers hang, queries fail, Spark's commit
lands or does not, drivers die and come back, and dead ones act once more. The job counts records per
key, so that a lost or repeated increment shows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.driver.coordinator import Coordinator
from headrace.state.durable.versions import Manifest, SliceKey, SliceVersion, Versions

import headrace as hr
from headrace.config import Settings
from headrace.connect.sink import SinkContext, Staged, When, Writer
from headrace.driver.planning import plan_job
from headrace.driver.publishing import publish, recover
from headrace.errors import HeadraceError
from headrace.runtime.messages import (
    Described,
    Fenced,
    Go,
    Hello,
    Loaded,
    Planned,
    Reply,
    Sealed,
    ToDriver,
    ToWorker,
    encode,
    read_as_driver,
)
from headrace.runtime.plan import Description, JobPlan, Ticket
from headrace.state.durable.segments import BlockRef, StoredChange
from headrace.testing import scripted
from headrace.tokens import Token

SLICES, KEYS, PARTITIONS, SUBTASKS = 4, 7, 2, 2
EDGE = 0
Place = tuple[int, int]


class Dead(Exception):
    """The driver died here."""


def key_at(partition: int, position: int) -> int:
    """What record stands at a position of the input."""
    return (partition * 3 + position * 5 + position * position) % KEYS


@dataclass(frozen=True)
class Recorder:
    """A sink that remembers which attempts were published."""

    world: World
    when: When = "on_commit"

    def open(self, context: SinkContext) -> Writer:
        raise NotImplementedError

    def staging_root(self, checkpoint: Path) -> Path:
        return checkpoint / "staging"

    def publish(self, token: Token, staged: Sequence[Staged]) -> None:
        self.world.may_die()
        self.world.published.setdefault(token.epoch, set()).add(token)
        self.world.may_die()

    def discard(self, keep: Callable[[Token], bool]) -> None:
        """Nothing is staged."""

    def describe(self) -> str:
        return "recorder"


@dataclass
class Worker:
    """A fake subtask: the protocol's steps of ``run_epoch``, counting instead of operators."""

    world: World
    job: SparkJob
    place: Place
    name: bytes
    ticket: Ticket | None = None
    state: str = "new"
    rows: dict[int, list[int]] = field(default_factory=dict)

    def step(self) -> None:
        """Do what can be done without waiting for a message; what a zombie wants to read may be gone."""
        try:
            self._step()
        except HeadraceError:
            self.state = "dead"

    def _step(self) -> None:
        stage, index = self.place
        match self.state:
            case "new":
                hello = Hello(stage, index, self.job.query, self.job.epoch, None, "host", 1, 2)
                self.world.send(self.job.driver, self.name, hello)
                self.state = "waits for plan"
            case "planned":
                self.world.send(self.job.driver, self.name, Loaded(stage, index, self.part.token))
                self.state = "waits for go" if stage == 0 else "waits for input"
            case "goes":
                self._read()
            case "waits for input":
                if all(self.job.workers[0, i].state in ("described", "done") for i in range(SUBTASKS)):
                    self._count()

    def receive(self, message: ToWorker) -> None:
        match message:
            case Fenced():
                self.state = "dead"
            case Planned() if self.state == "waits for plan":
                self.ticket, self.state = message.ticket, "planned"
            case Go() if self.state == "waits for go" and message.token == self.part.token:
                self.state = "goes"
            case Sealed() if self.state == "described" and message.token == self.part.token:
                self.state = "done"

    @property
    def part(self) -> Ticket:
        assert self.ticket is not None
        return self.ticket

    def _base(self) -> Manifest | None:
        base = self.part.base
        return self.job.driver.versions.manifest(base) if base else None

    def _value(self, base: Manifest | None, step: str, slice: int) -> int:
        version = base.slices.get((step, slice)) if base is not None else None
        return version.digest[0] if version is not None else 0

    def _read(self) -> None:
        """Read some records of the partitions this subtask owns, and send them on."""
        world, base = self.world, self._base()
        changes, sent = [], [0] * SLICES
        self.rows = {receiver: [] for receiver in range(SUBTASKS)}
        for partition in range(PARTITIONS):
            if partition % SUBTASKS != self.part.group:
                continue
            start = self._value(base, "s", partition)
            end = start + world.dice.randint(0, 3)
            for position in range(start, end):
                key = key_at(partition, position)
                slice = key % SLICES
                sent[slice] += 1
                self.rows[self.part.places[slice % SUBTASKS]].append(key)
            if end > start:
                changes.append(self._change("s", partition, end))
        self._describe(changes, sent={EDGE: {self.place[1]: sent}}, consumed={})

    def _count(self) -> None:
        """Count the records that were sent here, unless the shuffle lost or repeated some."""
        world, base = self.world, self._base()
        consumed: dict[int, list[int]] = {}
        counts: dict[int, int] = {}
        for sender in range(SUBTASKS):
            keys = list(self.job.workers[0, sender].rows.get(self.place[1], []))
            if keys and world.chance("shuffle"):
                keys = keys[1:] if world.dice.random() < 0.5 else [*keys, keys[0]]
            consumed[sender] = [0] * SLICES
            for key in keys:
                consumed[sender][key % SLICES] += 1
                counts[key] = counts.get(key, 0) + 1
        changes = [self._change("n", key, self._value(base, "n", key) + n) for key, n in counts.items()]
        self._describe(changes, sent={}, consumed={EDGE: consumed})

    def _change(self, step: str, slice: int, value: int) -> StoredChange:
        block = BlockRef(f"segments/{self.part.token}-s{self.place[0]:02d}", 0, 1, "", 1, full=True)
        return StoredChange(step, slice, (value, 0), block)

    def _describe(self, changes: list[StoredChange], sent: Any, consumed: Any) -> None:
        description = Description(*self.place, self.part.token, tuple(changes), sent, consumed, (), {}, False)
        self.state = "described"
        self.world.send(self.job.driver, self.name, Described(description))


@dataclass
class SparkJob:
    """One epoch of a query: all its tasks."""

    driver: Driver
    query: int
    epoch: int
    workers: dict[Place, Worker] = field(default_factory=dict)
    patience: int = 300

    @property
    def finished(self) -> bool:
        return all(w.state == "done" for (stage, _), w in self.workers.items() if stage == 1)

    @property
    def failed(self) -> bool:
        return self.patience <= 0 or any(worker.state == "dead" for worker in self.workers.values())


@dataclass
class Driver:
    """What ``spark/handle.py`` does: recover, start queries, pick and publish what Spark committed."""

    world: World
    versions: Versions
    coordinator: Coordinator
    sealed: list[Manifest] = field(default_factory=list)
    picked: Manifest | None = None

    def on_sealed(self, manifest: Manifest, descriptions: list[Description]) -> None:
        self.world.may_die()
        self.sealed.append(manifest)

    def commit_ready(self) -> None:
        """Pick and publish, dying anywhere in between."""
        while self.sealed and self.sealed[0].token.epoch in self.world.commits:
            manifest = self.sealed[0]
            self.world.may_die()
            picked = self.versions.pick(manifest.token.epoch, manifest.token)
            self.world.check_pick(picked)
            self.sealed.pop(0)
            if picked is not None:
                publish(self.world.plan, manifest if picked == manifest.token else self.versions.manifest(picked))
                if self.world.dice.random() < 0.3:
                    self.versions.collect_garbage(picked.epoch + 1)

    def new_query(self) -> int:
        self.commit_ready()
        self.sealed.clear()
        return self.coordinator.new_query()


Message = tuple[Driver, bytes, bytes]


class World:
    """Everything outside the protocol, moved by dice."""

    def __init__(self, plan: JobPlan, checkpoint: Path, seed: int, faults: dict[str, float]) -> None:
        self.plan = replace(plan, checkpoint=checkpoint, graph=_recorded(plan, self))
        self.checkpoint, self.dice, self.faults = checkpoint, random.Random(seed), faults
        self.commits: set[int] = set()
        self.landing: int | None = None
        self.published: dict[int, set[Token]] = {}
        self.picks: dict[int, Token] = {}
        self.slices: dict[int, dict[SliceKey, SliceVersion]] = {}
        self.inbox: list[Message] = []
        self.outbox: list[Reply] = []
        self.workers: dict[bytes, Worker] = {}
        self.zombies: list[Driver] = []
        self.calm = True
        self.serial = 0
        self.job: SparkJob | None = None
        self.driver = self.start_driver()
        self.calm = False

    def chance(self, fault: str) -> bool:
        return not self.calm and self.dice.random() < self.faults.get(fault, 0.0)

    def may_die(self) -> None:
        if self.chance("die"):
            raise Dead

    def send(self, driver: Driver, sender: bytes, message: ToDriver) -> None:
        self.inbox.append((driver, sender, encode(message)))

    def run(self, steps: int) -> None:
        """Chaos, then calm until three more epochs are committed."""
        for _ in range(steps):
            self.act()
        self.calm = True
        target = max(self.commits, default=-1) + 3
        for _ in range(2000):
            if target in self.picks:
                break
            self.act()
        self.check_all(target)

    def act(self) -> None:
        try:
            if self.chance("kill"):
                raise Dead
            self._act()
        except Dead:
            self.restart_driver()

    def _act(self) -> None:
        job = self.job
        if job is None:
            self.start_job(new_query=False)
            return
        job.patience -= 1
        choice = self.dice.random()
        if choice < 0.3 and self.inbox:
            self.deliver_to_driver()
        elif choice < 0.6 and self.outbox:
            self.deliver_to_worker()
        elif choice < 0.95:
            old = self.dice.random() < 0.1
            worker = self.dice.choice(list(self.workers.values() if old else job.workers.values()))
            if not self.chance("hang"):
                worker.step()
        elif choice < 0.97 and self.zombies and not self.calm:
            self.zombie_acts(self.dice.choice(self.zombies))
        else:
            self.driver.commit_ready()
        if self.dice.random() < 0.3:
            self.spark_moves()

    def spark_moves(self) -> None:
        """Commits land in order; a new epoch may start before; a failed query is started again."""
        job = self.job
        if self.landing is not None and (self.calm or self.dice.random() < 0.5):
            self.commits.add(self.landing)
            self.landing = None
        if job is None:
            return
        if job.finished and self.landing is None:
            self.landing = job.epoch
            if self.dice.random() < 0.5:
                self.commits.add(job.epoch)
                self.landing = None
            self.start_job(new_query=False)
        elif job.failed or self.chance("fail"):
            if self.landing is not None and self.dice.random() < 0.5:
                self.commits.add(self.landing)
            self.landing = None
            self.start_job(new_query=True)

    def start_job(self, *, new_query: bool) -> None:
        """Spark begins an epoch: the one after the last it committed, or is committing."""
        query = (
            self.driver.new_query() if new_query or not self.driver.coordinator.query else self.driver.coordinator.query
        )
        epoch = (self.landing if self.landing is not None else max(self.commits, default=-1)) + 1
        job = SparkJob(self.driver, query, epoch)
        for stage in (0, 1):
            for index in range(SUBTASKS):
                self.serial += 1
                name = f"w{self.serial}".encode()
                worker = Worker(self, job, (stage, index), name)
                job.workers[stage, index] = self.workers[name] = worker
        if self.calm:
            self.workers = {w.name: w for w in job.workers.values()}
        self.job = job

    def deliver_to_driver(self) -> None:
        """Any message of any time, perhaps lost, perhaps again."""
        at = self.dice.randrange(len(self.inbox)) if self.dice.random() < 0.3 else -1
        driver, sender, data = self.inbox[at]
        if not self.chance("repeat"):
            self.inbox.pop(at)
        if self.chance("lose") or (driver is not self.driver and driver not in self.zombies):
            return
        message = read_as_driver(data)
        assert isinstance(message, Hello | Loaded | Described)
        try:
            self.outbox += driver.coordinator.take(sender, message)
        except Dead:
            if driver is self.driver:
                raise
            return
        except HeadraceError:
            if driver is self.driver and self.job is not None:
                self.job.patience = 0  # as the driver does: the query is stopped and started again
            return

    def deliver_to_worker(self) -> None:
        at = self.dice.randrange(len(self.outbox)) if self.dice.random() < 0.3 else -1
        to, message = self.outbox[at]
        if not self.chance("repeat"):
            self.outbox.pop(at)
        worker = self.workers.get(to)
        if worker is not None and not self.chance("lose"):
            worker.receive(message)

    def start_driver(self) -> Driver:
        versions = Versions(self.checkpoint)
        generation = versions.open({"job": "simulated"})
        coordinator = Coordinator(self.plan, versions, generation)
        driver = self.driver = Driver(self, versions, coordinator)
        coordinator.on_sealed = driver.on_sealed
        self.recover(driver, generation)
        for token in versions.picks():
            self.check_pick(token)
        return driver

    def recover(self, driver: Driver, generation: int) -> None:
        recover(self.plan, driver.versions, generation, max(self.commits, default=None))

    def restart_driver(self) -> None:
        """The driver is gone with all it knew; a commit in the air lands or does not."""
        if self.landing is not None and self.dice.random() < 0.5:
            self.commits.add(self.landing)
        self.landing = self.job = None
        while True:
            self.driver.versions.close()
            if self.dice.random() < 0.4:
                self.zombies.append(self.driver)
            try:
                self.driver = self.start_driver()
                return
            except Dead:
                continue

    def zombie_acts(self, driver: Driver) -> None:
        """A driver that was thought dead does what it was about to do."""
        try:
            if self.dice.random() < 0.5:
                driver.commit_ready()
            elif driver.coordinator.token is not None:
                driver.coordinator.seal()
        except (HeadraceError, Dead):
            return

    def check_pick(self, token: Token | None) -> None:
        """A pick is for ever, stands on the pick before, and has counted every record once."""
        if token is None:
            return
        assert self.picks.setdefault(token.epoch, token) == token, "two picks of one epoch"
        assert token.epoch in self.commits, "picked without commit"
        manifest = Versions(self.checkpoint).manifest(token)
        before = self.picks.get(token.epoch - 1)
        assert manifest.parent == before, f"{token} stands on {manifest.parent}, not on {before}"
        old = self.slices.get(token.epoch - 1, {})
        made = [version.blocks[-1].file for key, version in manifest.slices.items() if old.get(key) != version]
        assert all(file.startswith(f"segments/{token}-") for file in made), "work of another attempt in the manifest"
        self.slices[token.epoch] = manifest.slices
        values = {key: version.digest[0] for key, version in manifest.slices.items()}
        counted: dict[int, int] = {}
        for partition in range(PARTITIONS):
            for position in range(values.get(("s", partition), 0)):
                counted[key_at(partition, position)] = counted.get(key_at(partition, position), 0) + 1
        assert counted == {key: values["n", key] for key in range(KEYS) if ("n", key) in values}, (
            "records lost or repeated"
        )

    def check_all(self, target: int) -> None:
        assert target in self.picks, "the job does not go on after the faults have ended"
        assert sorted(self.picks) == list(range(len(self.picks))), "a committed epoch was not picked"
        for epoch in range(target):
            assert self.published.get(epoch) == {self.picks[epoch]}, "what is published is not what was picked"
        assert self.published.keys() <= self.picks.keys()


def _recorded(plan: JobPlan, world: World) -> Any:
    nodes = tuple(replace(n, sink=Recorder(world)) if n.name == "out" else n for n in plan.graph.nodes)
    return replace(plan.graph, nodes=nodes)


def simulated_plan(checkpoint: Path) -> JobPlan:
    """The job that all worlds run; planned once."""
    job = hr.Job("simulated")
    s = job.source("s", scripted([{"k": 0}], [{"k": 0}]))
    s.key_by("k").reduce(name="n", n=hr.count()).sink("out", hr.callback(print))
    return plan_job(job, checkpoint, Settings.of(parallelism=SUBTASKS, slices=SLICES))


FAULTS = {
    "die": 0.05, "kill": 0.003, "fail": 0.003, "lose": 0.003, "repeat": 0.02, "hang": 0.05, "shuffle": 0.02,
}  # fmt: skip
