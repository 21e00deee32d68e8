"""Subtasks as threads: one batch of a job in this process."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Protocol

import pyarrow as pa

from headrace.errors import ChannelError, FencedError
from headrace.runtime.attempt import Cache, run_attempt
from headrace.runtime.messages import (
    Fenced,
    Go,
    Logged,
    Place,
    Planned,
    ToDriver,
    ToWorker,
    Turn,
    encode,
    read_as_worker,
)
from headrace.runtime.plan import JobPlan
from headrace.runtime.wire.mailbox import Mailbox
from headrace.tokens import Attempt

_PATIENCE_S = 120.0
Pause = Callable[[int, int], float]
"""Stage and subtask → seconds to hold a row back; for trying interleavings."""


class Home(Protocol):
    """The run that threads work for."""

    caches: dict[Place, Cache]
    channels: dict[bytes, LocalChannel]

    def hear(self, sender: bytes, data: bytes) -> None: ...


class LocalChannel:
    """A subtask's end of the control channel; messages go through their bytes, as over a wire."""

    def __init__(self, home: Home, name: bytes, query: int) -> None:
        self._home, self._name, self._query = home, name, query
        self._inbox: Mailbox[ToWorker] = Mailbox()
        self._early: list[ToWorker] = []

    def tell(self, message: ToDriver) -> None:
        self._home.hear(self._name, encode(message))

    def put(self, message: ToWorker) -> None:
        self._inbox.put(read_as_worker(encode(message)))

    def fence(self, why: str) -> None:
        self.put(Fenced(self._query, why))

    def poll(self) -> list[ToWorker]:
        messages, self._early = self._early, []
        with suppress(IndexError):
            while True:
                messages.append(self._inbox.get(0.0))
        return messages

    def offset_us(self) -> int:
        return 0

    def wait(self, turn: type[Turn], timeout_s: float, *, attempt: Attempt | None = None) -> Turn:
        deadline = time.monotonic() + min(timeout_s, _PATIENCE_S)
        while True:
            try:
                message = self._inbox.get(deadline - time.monotonic())
            except IndexError:
                raise ChannelError(f"no {turn.__name__!r}") from None
            if isinstance(message, Fenced):
                raise FencedError(message.why)
            if isinstance(message, turn) and isinstance(message, (Planned, Go, Logged)):
                if attempt is None or message.attempt == attempt:
                    return message
            else:
                self._early.append(message)


class Pipe:
    """A subtask's input."""

    def __init__(self) -> None:
        self._rows: queue.SimpleQueue[pa.RecordBatch | None] = queue.SimpleQueue()

    def put(self, row: pa.RecordBatch) -> None:
        self._rows.put(row)

    def close(self) -> None:
        self._rows.put(None)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while (row := self._rows.get()) is not None:
            yield row


class BatchOfThreads:
    """All subtasks of one batch."""

    def __init__(self, home: Home, plan: JobPlan, query: int, batch: int, pause: Pause) -> None:
        stages = plan.layout.stages
        self._stages = len(stages)
        self._pipes = [[Pipe() for _ in range(stage.subtasks)] for stage in stages]
        self._tasks = [
            _Task(home, plan, self._pipes, (stage.index, index), query, batch, pause)
            for stage in stages
            for index in range(stage.subtasks)
        ]

    def start_all(self) -> None:
        """All stages at the same time."""
        for task in self._tasks:
            task.start()

    def start_stage(self, stage: int) -> None:
        """One stage, on what the one before it has left."""
        self._close(stage)
        for task in self._tasks:
            if task.place[0] == stage:
                task.start()

    def is_running(self, stage: int) -> bool:
        return any(task.is_alive() for task in self._tasks if task.place[0] == stage)

    def end(self) -> None:
        """Close inputs, stage after stage, and wait for who reads them."""
        for stage in range(self._stages):
            self._close(stage)
            for task in self._tasks:
                if task.place[0] == stage and task.is_alive():
                    task.join(_PATIENCE_S)

    def failures(self) -> list[Exception]:
        return [task.failure for task in self._tasks if task.failure is not None]

    def _close(self, stage: int) -> None:
        for pipe in self._pipes[stage]:
            pipe.close()


class _Task(threading.Thread):
    """One subtask in one batch."""

    def __init__(
        self, home: Home, plan: JobPlan, pipes: list[list[Pipe]], place: Place, query: int, batch: int, pause: Pause
    ) -> None:
        super().__init__(name=f"subtask-{place[0]}-{place[1]}", daemon=True)
        self._home, self._plan, self._query, self._batch, self._pause = home, plan, query, batch, pause
        self.place, self.failure = place, None  # type: tuple[Place, Exception | None]
        self._input = pipes[place[0]][place[1]]
        self._after = pipes[place[0] + 1] if place[0] + 1 < len(pipes) else []
        self._cache = home.caches.setdefault(place, Cache())

    def run(self) -> None:
        name = f"{id(self)}".encode()
        channel = self._home.channels[name] = LocalChannel(self._home, name, self._query)
        stage, index = self.place
        try:
            rows = run_attempt(self._plan, stage, index, self._batch, self._query, self._input, channel, self._cache)
            for batch in rows:
                hold_s = self._pause(stage, index)
                if hold_s:
                    time.sleep(hold_s)
                for i, route in enumerate(batch.column("route").to_pylist()):
                    self._after[route].put(batch.slice(i, 1))
        except Exception as error:
            self.failure = error
            for pipe in self._after:
                pipe.close()
        finally:
            del self._home.channels[name]
