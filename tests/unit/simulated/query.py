"""A query as Spark runs it: subtasks of all stages, batch after batch; when one of them dies, all do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.driver.protocol.events import QueryEnded
from headrace.errors import RunFailedError
from simulated.flow import Flow, Row
from simulated.lanes import Lane
from simulated.subtask import Process, Subtask

if TYPE_CHECKING:
    from simulated.driver import Driver


class Query:
    """``processes`` are by stage; those of an earlier query may be used again, with what they remember."""

    def __init__(self, driver: Driver, number: int) -> None:
        self.driver, self.world, self.number = driver, driver.world, number
        self.batch = -1
        self.running, self.ending = True, False
        self.processes: list[list[Process]] = []
        for stage, n in enumerate(driver.shape.subtasks):
            idle = driver.idle.setdefault(stage, [])
            self.world.dice.shuffle(idle)
            self.processes.append([self._process(idle) for _ in range(n)])
        self.by_name: dict[bytes, Subtask] = {}
        self.subtasks: list[list[Subtask]] = []
        self.begin_batch()

    def _process(self, idle: list[Process]) -> Process:
        """Python processes are used again, with their channel and all that lies in it."""
        idle[:] = [process for process in idle if not process.is_gone]
        if not idle or self.world.random() < 0.3:
            return Process(self.world, self.driver)
        process = idle.pop()
        process.dead = process.frozen = False
        process.down.again()
        return process

    def _replace_one(self, idle: list[Process], processes: list[Process]) -> None:
        """Another process gets the task; the one that had it waits for its next, with what it remembers."""
        other = self._process(idle)
        idle.append(processes[0])
        processes[0] = other

    def begin_batch(self) -> None:
        """Spark gives tasks to processes as it likes."""
        self.batch += 1
        self.ending = False
        self._pipes: dict[tuple[int, int, int], Lane] = {}
        self.subtasks = [[] for _ in self.processes]
        for stage, processes in enumerate(self.processes):
            if self.world.random() < 0.3:
                self.world.dice.shuffle(processes)
            if self.batch and self.world.random() < 0.3:
                self._replace_one(self.driver.idle[stage], processes)
            for index, process in enumerate(processes):
                subtask = Subtask(self, process, stage, index)
                self.subtasks[stage].append(subtask)
                self.by_name[process.name] = subtask

    @property
    def all(self) -> list[Subtask]:
        return [subtask for stage in self.subtasks for subtask in stage]

    def pipe(self, sender: Flow, to: int, row: Row) -> None:
        """First in, first out between two subtasks. Who was given an old ticket again will be told, and end the query."""
        if sender.ticket.attempt != self.driver.machine.attempt:
            return
        lane = self._pipes.get((sender.stage, sender.index, to))
        receiver = self.subtasks[sender.stage + 1][to]
        if lane is None:
            lane = self._pipes[sender.stage, sender.index, to] = Lane(self.world, receiver)
        lane.push(receiver.take, sender.index, row)

    def again(self, receiver: Subtask) -> None:
        """What comes in for a subtask that goes on."""
        for lane in self._pipes.values():
            if lane.owner is receiver:
                lane.again()

    def over(self, subtask: Subtask) -> None:
        """A subtask has ended; when the driver wants the next batch and all have, it begins."""
        if self.ending and self.running and all(one.state == "done" for one in self.all):
            self.begin_batch()

    def end_batch(self) -> None:
        self.ending = True
        self.over(self.subtasks[0][0])

    def stop(self, *, keep: bool = False) -> None:
        """All subtasks end; ``keep``: their processes do not, and may be used by the next query."""
        self.running = False
        for stage, processes in enumerate(self.processes):
            for process in processes:
                process.dead = True
            if keep:
                self.driver.idle[stage] += processes
        for subtask in self.all:
            if subtask.state != "done":
                subtask.state = "dead"

    def fail(self, why: str) -> None:
        """One has failed or was killed: Spark ends all others, and tells the driver."""
        if self.running:
            self.stop(keep=self.world.random() < self.world.faults.survive)
            self.driver.spark.push(self.driver.tell, QueryEnded(self.number, RunFailedError(why)))
