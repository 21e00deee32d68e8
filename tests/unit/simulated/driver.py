"""A driver: the real machine, its deeds without threads, and the query that it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.driver.hands import Deeds, pool_of
from headrace.driver.protocol.events import (
    CollectGarbage,
    Compact,
    Discard,
    EndBatch,
    Event,
    Finish,
    Heard,
    Instruction,
    LaidOut,
    Mend,
    Publish,
    QueryEnded,
    Remove,
    Say,
    Send,
    StartQuery,
    StopQuery,
)
from headrace.driver.protocol.machine import Machine
from headrace.errors import ProtocolError
from headrace.runtime.messages import Fenced, Go, Hello, Loaded, Planned, ToDriver, ToWorker
from headrace.state.durable.manifest import Rewrite
from headrace.state.durable.versionlog import Opened, VersionLog
from simulated.disk import Dead, PlainLog, Reach
from simulated.lanes import Lane, Violation
from simulated.nodes import ToyCopies
from simulated.query import Query
from simulated.stores import compact_blocks
from simulated.subtask import Process

if TYPE_CHECKING:
    from simulated.world import World


_ANEW = "began anew"
"""What a HELLO that comes twice looks like; all else that is against the protocol must not be."""


_SILENCE = "nothing came of it"
"""What an attempt ends with when a cut stands still; only a subtask that hangs may be the reason."""


_TOO_SLOW = "could not be loaded in time"
"""What is said of a move that is cancelled."""


_ONCE = (Hello, Planned, Loaded, Go, Fenced)
"""The beginning is told once: whoever gets no answer gives up. All else may come again, long afterwards."""


class ToyDeeds(Deeds):
    """The real deeds, but for blocks that are toys."""

    def _compacted(self, wanted: Compact) -> tuple[Rewrite, ...]:
        self._serial += 1
        return compact_blocks(self.storage, wanted, self._serial)


class Driver:
    """One life of a driver. ``idle`` are processes of its last query that Spark may use again."""

    def __init__(self, world: World, serial: int) -> None:
        self.world, self.serial, self.shape = world, serial, world.shape
        self.frozen = self.dead = self.asked = False
        self.plan = world.plan
        self.machine = Machine(self.plan, self._opened)
        self.deeds = ToyDeeds(self.plan, Reach(world, self), [ToyCopies(world)])  # type: ignore[arg-type]
        self.deeds.log = (VersionLog if world.encodes else PlainLog)(self.deeds.storage)
        self.lanes = {name: Lane(world, self) for name in ("log", "publish", "upkeep")}
        self.spark = Lane(world, self)
        self.idle: dict[int, list[Process]] = {}
        self.query: Query | None = None
        self._do(self.machine.start(world.now))

    def _opened(self, number: int) -> Opened:
        return Opened(number, "host", self.serial, int(self.world.now * 1e6))

    def tell(self, event: Event) -> None:
        """As the driver's loop does."""
        if not self.dead:
            self.world.say("%s hears %s", self, event)
            late = [*self.machine.moving._unready]
            instructions = self.machine.on(event, self.world.now)
            failure = self.machine._failure
            if failure is not None and isinstance(failure.error, ProtocolError) and _ANEW not in str(failure.error):
                raise Violation(f"audit: {failure.error}")
            silent = any(_SILENCE in failed.text for failed in self.machine._failures) and not self.query_hangs
            if silent and self.machine.generation == self.world.truth.generation:  # who was replaced may be in the way
                raise Violation("stuck: nothing comes of a cut although nobody hangs")
            if any(isinstance(one, Say) and _TOO_SLOW in one.detail for one in instructions):
                assert self.query is not None
                self.world.truth.cancelled([self.query.subtasks[stage][index] for stage, index in late])
            self._do(instructions)

    @property
    def query_hangs(self) -> bool:
        return self.query is not None and any(process.frozen for row in self.query.processes for process in row)

    def hear(self, process: Process, message: ToDriver) -> None:
        """A message, which may be lost, or come again."""
        world = self.world
        if world.fails(world.faults.lose):
            return
        if not isinstance(message, _ONCE) and world.fails(world.faults.repeat):
            world.after(3 * world.random(), process.up.push, self.hear, process, message)
        self.tell(Heard(process.name, message))

    def _do(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            pool = pool_of(instruction)
            if pool is not None and isinstance(instruction, Compact):  # it is the only one that takes long by itself
                self.world.after(
                    3 * self.world.random(), self.lanes[pool].push, self._perform, self.lanes[pool], instruction
                )
            elif pool is not None:
                self.lanes[pool].push(self._perform, self.lanes[pool], instruction)
            else:
                self._do_one(instruction)

    def _do_one(self, instruction: Instruction) -> None:
        match instruction:
            case Send(to, message):
                subtask = self.query.by_name.get(to) if self.query is not None else None
                if subtask is not None:
                    subtask.process.down.push(self._deliver, subtask.process, message)
            case StartQuery(query):
                self._lay_out()
                self.query = Query(self, query)
            case StopQuery():
                if self.query is not None and self.query.running:
                    self.query.stop(keep=self.world.random() < 0.5)
                self.spark.push(self.tell, QueryEnded(self.machine.query))
            case EndBatch():
                assert self.query is not None
                self.query.end_batch()
            case Finish():
                self.world.say("%s ends: %s", self, instruction)
                self.world.finished(self, instruction)

    def _deliver(self, process: Process, message: ToWorker) -> None:
        world = self.world
        if world.fails(world.faults.lose):
            return
        if not isinstance(message, _ONCE) and world.fails(world.faults.repeat):
            world.after(3 * world.random(), process.down.push, self._deliver, process, message)
        assert process.subtask is not None
        world.say("%s hears %s", process.subtask.place, message)
        process.subtask.receive(message)

    def _lay_out(self) -> None:
        """Between two queries there may be more or fewer executors."""
        if self.world.fails(self.world.faults.lay_out):
            self.shape, self.plan = self.world.other_shape()
            self.deeds.plan = self.plan
            self.tell(LaidOut(self.plan))

    def _perform(self, lane: Lane, instruction: Instruction) -> None:
        """Whatever else happens while this one waits for the disk happens in between."""
        self.world.say("%s performs %s", self, instruction)
        if isinstance(instruction, (Publish, Discard, Compact, CollectGarbage, Remove)) and not self.machine.generation:
            raise Violation(f"rule 19: {type(instruction).__name__} before the log was opened")
        lane.busy, before, self.world.acting = True, self.world.acting, self
        try:
            event = self.deeds.perform(instruction)
        except Dead:
            return
        finally:
            lane.busy, self.world.acting = False, before
        lane.again()
        if isinstance(instruction, Mend):
            self.world.damage.check_mended(instruction.broken, event)
        if event is not None:
            self.tell(event)

    def thaw(self) -> None:
        """The driver comes back, and does what it was about to do."""
        self.frozen = False
        for lane in (*self.lanes.values(), self.spark):
            lane.again()
        for subtask in self.query.all if self.query is not None else ():
            subtask.process.up.again()

    def die(self) -> None:
        """Gone with all it knew. Its workers may go on for a while."""
        self.dead = True
        self.world.drivers.remove(self)
        if self.query is not None and self.query.running:
            if self.world.random() < 0.3:
                self.world.after(2.0, self.query.stop)
            else:
                self.query.stop(keep=False)

    def __str__(self) -> str:
        return f"driver {self.serial} (g{self.machine.generation})"
