"""One world: what happens next is decided by dice, and what may not happen is noticed at once."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.driver.protocol.events import (
    BatchEndAsked,
    Finish,
    LeavingGiven,
    Lost,
    MovesAsked,
    OrdersGiven,
    RestartAsked,
    StopAsked,
    Tick,
)
from headrace.runtime.orders import Orders
from headrace.runtime.plan import JobPlan
from headrace.state.durable.loading import read_manifest
from headrace.state.durable.manifest import Manifest
from headrace.state.durable.published import read_published
from headrace.state.durable.versionlog import CutEntry, VersionLog
from headrace.tokens import Token
from simulated.disk import Disk, PlainLog
from simulated.driver import Driver
from simulated.job import SLICES, Shape, laid_out, planned, with_sinks
from simulated.lanes import Lane, Violation
from simulated.nodes import Damage, Node, check_copies
from simulated.quick import quick
from simulated.sinks import Sinks
from simulated.subtask import Subtask
from simulated.truth import Truth

_STEP_S = 0.02
_CALM_STEPS = 4000
_MORE_CUTS = 2
_MAX_DRIVERS, _MAX_DEPTH = 3, 3
_NODES = (*("lose a node",) * 5, *("damage the checkpoint",) * 5, *("damage a copy",) * 4, *("empty a node",) * 3)
"""What happens besides in worlds with executors that keep copies."""
_CHAOS = (
    *("kill workers",) * 8, *("kill the driver",) * 5, *("stall",) * 5, *("hang",) * 3, "hang for good", *("end the batch",) * 3,
    *("restart",) * 2, *("grow",) * 4, "lose a worker", "stop",
)  # fmt: skip


@dataclass(frozen=True)
class Faults:
    """How often what goes wrong: the chance of each call, message or step; ``only`` these things of what is chaos."""

    @staticmethod
    def drawn(dice: random.Random) -> Faults:
        """Worlds differ: where everything fails little is logged, and where nothing does little is learnt."""
        pick = dice.choice
        return Faults(
            disk=pick((0.004, 0.02, 0.05)), append=pick((0.0, 0.0, 0.2)), stall=pick((0.0, 0.15, 0.3)), sink=pick((0.0, 0.04, 0.2)),
            write=pick((0.0, 0.004)), lose=pick((0.0, 0.002, 0.008)), repeat=pick((0.0, 0.01, 0.05)),
            lay_out=pick((0.0, 0.3)), chaos=pick((0.002, 0.005, 0.012)), chunk=pick((0.01, 0.1)),
            moves=pick((0.0, 0.02, 0.06)), read=pick((0.0, 0.02)), nodes=pick((0, 2, 3)), uncopied=pick((0.0, 0.1)),
        )  # fmt: skip

    disk: float = 0.03
    append: float = 0.0
    stall: float = 0.1
    sink: float = 0.05
    write: float = 0.002
    lose: float = 0.004
    repeat: float = 0.01
    lay_out: float = 0.2
    chaos: float = 0.007
    chunk: float = 0.02
    survive: float = 0.3
    moves: float = 0.0
    read: float = 0.0
    nodes: int = 0
    uncopied: float = 0.0
    only: tuple[str, ...] = ()


class World:
    """``random`` is the only source of chance; ``calm`` is the time at the end without faults."""

    def __init__(
        self, seed: int, faults: Faults | None = None, *, steps: int = 400, encodes: bool = False,
        tell: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        self.dice = random.Random(seed)
        self.random = self.dice.random
        self.faults, self.encodes, self._tell = faults or Faults.drawn(self.dice), encodes, tell
        self.now, self.steps, self.chaos_steps = 0.0, 0, steps
        self.calm, self.calm_s, self.depth, self._names, self.drivers_started = False, 0.0, 0, 0, 0
        self.ready: list[Lane] = []
        self._timers: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._timer = 0
        self.shape = self._shape()
        self.sinks = Sinks(self)
        self.disk = Disk(self)
        self.truth = Truth(self)
        self.log = (VersionLog if encodes else PlainLog)(self.disk)  # type: ignore[arg-type]
        self.nodes: list[Node] = []
        self.damage = Damage(self)
        for _ in range(self.faults.nodes):
            self._start_node()
        backup = self.dice.choice((1, 1, 2)) if self.nodes else 0
        self._plan = with_sinks(planned(len(self.shape.subtasks), backup), self.sinks.by_step)
        self.plan = laid_out(self._plan, self.shape)
        self.drivers: list[Driver] = []
        self.acting: Driver | None = None
        self.done = False
        self.start_driver()

    def _shape(self) -> Shape:
        pick = self.dice.choice
        subtasks = (pick((1, 1, 2, 2, 3)), pick((1, 2, 2, 3)), *((pick((1, 1, 2)),) if self.random() < 0.35 else ()))
        active = (subtasks[0], *(pick(range(1, n + 1)) for n in subtasks[1:]))
        return Shape(subtasks, active, pick((1, 2, 2, 3)), pick((None, None, 9, 24)))

    def other_shape(self) -> tuple[Shape, JobPlan]:
        """Sources stay as they are; other stages have other subtasks."""
        subtasks = (self.shape.subtasks[0], *(self.dice.choice((1, 2, 2, 3)) for _ in self.shape.subtasks[1:]))
        shape = Shape(subtasks, subtasks, self.shape.partitions, self.shape.rows)
        return shape, laid_out(self._plan, shape)

    # Time.

    def run(self) -> None:
        """Chaos; then calm, in which the job has to go on and to come to the right end."""
        with quick():
            while self.steps < self.chaos_steps and not self.done:
                self.step()
            self._calm_down()
        self.truth.check_end()

    def _calm_down(self) -> None:
        self.calm, self.calm_s = True, self.now
        for driver in self.drivers:
            if driver.frozen:
                driver.thaw()
        self.damage.mend()
        target = len(self.truth.line) + _MORE_CUTS
        for at in range(_CALM_STEPS):
            if at % 8 == 0 and self._at_rest(target):
                return
            self.step()
        lacking = self._lacking() if self.nodes else None
        raise Violation(f"stuck: {len(self.truth.line)} of {target} cuts; copies: {lacking}; {self._standing()}")

    def _at_rest(self, target: int) -> bool:
        line = self.truth.line
        if not self.done and len(line) < target:
            return False
        if any(driver.machine.publications.waiting for driver in self.drivers):
            return False
        if line and read_published(self.disk) < line[-1].number:  # type: ignore[arg-type]
            if self.done and not self.drivers:
                self.done = False
                self.start_driver()
            return False
        return not self.nodes or self.done or self._lacking() is None

    def _lacking(self) -> str | None:
        """What copies lack of the version before the newest."""
        driver, line = max(self.drivers, key=lambda one: one.machine.generation, default=None), self.truth.line
        if driver is None or driver.machine.phase != "running" or len(line) < 2:
            return "nobody runs"
        return check_copies(driver, line[-2].manifest)

    def _standing(self) -> str:
        return "; ".join(
            f"{driver} {driver.machine.phase} cut={driver.machine.cut and driver.machine.cut.token} "
            f"{[one.state for one in driver.query.all] if driver.query else ''}"
            for driver in self.drivers
        )

    def step(self) -> None:
        """One thing happens."""
        self.steps += 1
        self.now += _STEP_S
        while self._timers and self._timers[0][0] <= self.now:
            _, _, call, arguments = heapq.heappop(self._timers)
            call(*arguments)
        if not self.calm and (chance := self.random()) < self.faults.chaos + self.faults.moves:
            self.chaos(None if chance < self.faults.chaos else "move")
        if not self.drivers and not self.done and self.random() < 0.3:
            self.start_driver()
        ready = self.ready
        if not ready or self.random() < 0.06:
            self._tick()
            return
        at = int(self.random() * len(ready))
        lane = ready[at]
        if not lane.items or lane.busy or lane.owner.frozen or lane.owner.dead:
            self._unlist(at, lane)
            return
        call, *rest = lane.items.popleft()
        if not lane.items:
            self._unlist(at, lane)
        call(*rest)

    def _unlist(self, at: int, lane: Lane) -> None:
        lane.listed = False
        last = self.ready.pop()
        if last is not lane:
            self.ready[at] = last

    def _tick(self) -> None:
        self.now += 0.1 if self.ready else 0.4
        for driver in [*self.drivers]:
            if not driver.frozen:
                driver.tell(Tick())

    def nested(self, steps: int) -> None:
        """Somebody waits; others do not."""
        if self.depth >= _MAX_DEPTH or self.calm:
            return
        self.depth += 1
        try:
            for _ in range(steps):
                if self.steps >= self.chaos_steps:
                    return
                self.step()
        finally:
            self.depth -= 1

    def stall(self, driver: Driver) -> None:
        """A driver stands still in the middle of a call, and another one takes over."""
        if self.depth >= _MAX_DEPTH or len(self.drivers) >= _MAX_DRIVERS:
            return
        driver.frozen = True
        self.say("%s stalls", driver)
        self.start_driver()
        self.nested(50 + int(self.random() * 250))
        driver.thaw()
        self.say("%s comes back", driver)

    def after(self, seconds: float, call: Callable[..., object], *arguments: Any) -> None:
        self._timer += 1
        heapq.heappush(self._timers, (self.now + seconds, self._timer, call, arguments))

    def fails(self, chance: float) -> bool:
        return not self.calm and self.random() < chance

    # What happens to drivers and workers.

    def start_driver(self) -> None:
        self.drivers_started += 1
        self.drivers.append(Driver(self, self.drivers_started))

    def finished(self, driver: Driver, finish: Finish) -> None:
        """The end of a driver's run; unless its job is done, somebody starts it again."""
        self.truth.over(finish, driver.machine.generation, asked=driver.asked)
        if driver.query is not None and driver.query.running:
            driver.query.stop(keep=False)
        if finish.state == "finished":
            self.done = True
        for lane in driver.lanes.values():  # what was asked for is done before a driver goes
            while lane.items and not lane.busy and not driver.dead:
                call, *rest = lane.items.popleft()
                call(*rest)
        if not driver.dead:
            driver.dead = True
            self.drivers.remove(driver)

    def chaos(self, kind: str | None = None) -> None:
        """Something that no protocol can prevent; or that it was asked for."""
        awake = [driver for driver in self.drivers if not driver.frozen]
        if not awake:
            return
        driver = self.dice.choice(awake)
        kind = kind or self.dice.choice(self.faults.only or (_CHAOS + _NODES if self.nodes else _CHAOS))
        self.say("chaos: %s of %s", kind, driver)
        self._happens(kind, driver, driver.query.all if driver.query is not None and driver.query.running else [])

    def _happens(self, kind: str, driver: Driver, subtasks: list[Subtask]) -> None:
        match kind:
            case "kill workers" if driver.query is not None and subtasks:
                driver.query.fail("a worker was killed")
            case "kill the driver":
                driver.die()
            case "stall" if len(self.drivers) < _MAX_DRIVERS:
                driver.frozen = True
                self.after(1 + 8 * self.random(), self._thaw, driver)
                self.start_driver()
            case "lose a worker" if subtasks:
                driver.tell(Lost(self.dice.choice(subtasks).name))
            case "hang" if subtasks:
                subtask = self.dice.choice(subtasks)
                subtask.frozen = subtask.process.frozen = True
                self.after(2 * self.random(), self._go_on, subtask)
            case "hang for good" if subtasks:
                subtask = self.dice.choice(subtasks)
                subtask.frozen = subtask.process.frozen = True
            case "end the batch":
                driver.tell(BatchEndAsked(kind))
            case "restart":
                driver.tell(RestartAsked(kind))
            case "grow":
                stages = driver.shape.subtasks
                active = {stage: self.dice.randint(1, n) for stage, n in enumerate(stages) if stage}
                driver.tell(OrdersGiven(Orders(0, {}, {}, active, None, None)))
            case "move":
                for stage, n in enumerate(driver.shape.subtasks):
                    if stage and n > 1 and self.random() < 0.7:
                        table = tuple(int(self.random() * n) for _ in range(SLICES))
                        driver.tell(MovesAsked(stage, table, kind))
            case "lose a node" if self.nodes:
                self._lose_node(self.dice.choice(self.nodes))
            case "damage the checkpoint" | "damage a copy":
                self.damage.strike(copy=kind == "damage a copy")
            case "empty a node" if self.nodes:
                leaving = {self.dice.choice(self.nodes).name} if self.random() < 0.7 else set()
                driver.tell(LeavingGiven(frozenset(leaving)))
            case "stop":
                driver.asked = True
                driver.tell(StopAsked())

    def _start_node(self) -> None:
        self._names += 1
        self.nodes.append(Node(self, self._names))

    def _lose_node(self, node: Node) -> None:
        """With all that is on it; another one comes in its place."""
        if not self.damage.spares(node):
            return
        node.dead = True
        self.nodes.remove(node)
        self._start_node()
        for driver in self.drivers:
            query = driver.query
            if query is not None and query.running and any(p.is_gone for row in query.processes for p in row):
                query.fail("an executor was lost")

    def _thaw(self, driver: Driver) -> None:
        if driver.frozen and not driver.dead:
            driver.thaw()

    def _go_on(self, subtask: Subtask) -> None:
        if subtask.process.subtask is not subtask:
            return  # its process works for another by now, which may hang itself
        subtask.frozen = subtask.process.frozen = False
        for lane in (subtask.process.down, subtask.turns, subtask.writer, subtask.loading, subtask.copying):
            lane.again()
        subtask.query.again(subtask)

    # What others ask.

    def new_name(self) -> bytes:
        self._names += 1
        return f"w{self._names}".encode()

    def manifest_at(self, entry: int, version: Token) -> Manifest:
        """As ``read_manifest``."""
        if self.encodes:
            return read_manifest(self.disk, entry, version)  # type: ignore[arg-type]
        found = self.log.read(entry)
        if not isinstance(found, CutEntry) or found.manifest.token != version:
            raise FileNotFoundError(f"entry {entry} is not {version}")
        return found.manifest

    def say(self, what: str, *about: object) -> None:
        if self._tell is not None:
            self._tell(f"{self.steps:5d} {self.now:7.2f}  " + what % tuple(str(one) for one in about))
