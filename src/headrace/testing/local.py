"""Run a job in this process: threads for subtasks, queues for the shuffle, no Spark."""

from __future__ import annotations

import queue
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Unpack

import pyarrow as pa

from headrace.api.job import Jobs
from headrace.config import RunSettings, Settings
from headrace.connect.collect import read_collected
from headrace.driver.coordinator import Coordinator
from headrace.driver.planning import identity, plan_job
from headrace.driver.publishing import publish, recover
from headrace.driver.sparkcommits import last_committed
from headrace.errors import ChannelError, FencedError
from headrace.runtime.epoch import Cache, run_epoch
from headrace.runtime.messages import (
    Described,
    Fenced,
    Go,
    Hello,
    Loaded,
    Ordered,
    Reported,
    ToDriver,
    ToWorker,
    Turn,
    encode,
    read_as_driver,
    read_as_worker,
)
from headrace.runtime.orders import Orders
from headrace.runtime.plan import JobPlan
from headrace.state.durable.segments import write_durably
from headrace.state.durable.versions import Manifest, Versions
from headrace.tokens import Token

_PATIENCE_S = 120.0
"""How long a step of an epoch may take: on a machine that is busy otherwise nothing hangs, all is slow."""

Pause = Callable[[int, int], float]
"""Stage and subtask → seconds to hold a row back; for trying interleavings."""


class LocalRun:
    """A job with its checkpoint; ``epoch()`` runs one epoch and commits it.

    Sinks of the job are replaced by collecting ones, read with ``rows``.
    """

    def __init__(
        self, job: Jobs, checkpoint: Path, *, pause: Pause | None = None, **settings: Unpack[RunSettings]
    ) -> None:
        self.plan: JobPlan = plan_job(job, checkpoint, Settings.of(**settings), collect=True)
        self.versions = Versions(checkpoint)
        self._pause = pause or (lambda stage, index: 0.0)
        self._spark_checkpoint = checkpoint / "spark"
        self._lock = threading.Lock()
        self._caches: dict[tuple[int, int], Cache] = {}
        self.reports: list[Reported] = []
        self.finished = False
        self._query = 0
        generation = self.versions.open(identity(self.plan))
        self.coordinator = Coordinator(self.plan, self.versions, generation)
        last = last_committed(self._spark_checkpoint)
        self.next_epoch = last + 1 if last is not None else 0
        try:
            recover(self.plan, self.versions, generation, last)
        except BaseException:
            self.versions.close()
            raise

    def run(self, *, seconds: float = 1.0, max_epochs: int = 1000) -> None:
        """Epochs until the sources are exhausted."""
        for _ in range(max_epochs):
            self.epoch(seconds=seconds)
            if self.finished:
                return

    def epoch(self, *, seconds: float = 1.0, commit: bool = True) -> None:
        """One epoch: it ends when all sources are exhausted, or after ``seconds``.

        Without ``commit`` it is sealed only, as if the driver died before Spark's commit.
        """
        epoch = self.next_epoch
        query = self._query = self._query or self.coordinator.new_query()
        if not self.plan.eager:
            self.coordinator.start(epoch)
        stages = self.plan.layout.stages
        pipes = [[_Pipe() for _ in range(stage.subtasks)] for stage in stages]
        tasks = [
            _Task(self, pipes, stage.index, index, epoch, query) for stage in stages for index in range(stage.subtasks)
        ]
        if self.plan.eager:
            for task in tasks:
                task.start()
            self._end_when_exhausted(tasks, seconds)
            for pipe in pipes[0]:
                pipe.close()
            for stage in stages:
                for task in (t for t in tasks if t.stage == stage.index):
                    task.join(_PATIENCE_S)
                if stage.index + 1 < len(stages):
                    for pipe in pipes[stage.index + 1]:
                        pipe.close()
        else:
            for pipe in pipes[0]:
                pipe.close()
            for stage in stages:
                own = [t for t in tasks if t.stage == stage.index]
                for task in own:
                    task.start()
                for task in own:
                    task.join(_PATIENCE_S)
                if stage.index + 1 < len(stages):
                    for pipe in pipes[stage.index + 1]:
                        pipe.close()
        failures = [task.failure for task in tasks if task.failure is not None]
        if failures:
            for stage_pipes in pipes:
                for pipe in stage_pipes:
                    pipe.close()
            self._query = 0  # what continues is a new query, and these subtasks are zombies
            raise min(failures, key=lambda error: isinstance(error, (ChannelError, FencedError)))
        if not self.plan.eager:
            self.coordinator.seal()
        if commit:
            self.commit()

    def commit(self) -> None:
        """Spark's commit of the epoch, and what it entails: pick and publish."""
        sealed = self.spark_commit()
        picked = self.versions.pick(sealed.token.epoch, sealed.token)
        assert picked is not None
        manifest = self.versions.manifest(picked)
        publish(self.plan, manifest)
        self.next_epoch = picked.epoch + 1
        self.finished = manifest.finished

    def spark_commit(self) -> Manifest:
        """Only what Spark does: from here on the epoch has happened, even if the driver dies now."""
        sealed = self.coordinator.sealed
        assert sealed is not None
        write_durably(self._spark_checkpoint / "commits" / str(sealed.token.epoch), b"v1")
        return sealed

    def rows(self, sink: str) -> list[dict[str, Any]]:
        node = self.plan.graph.by_name[sink]
        rows: list[dict[str, Any]] = read_collected(node.sink.directory).to_pylist()  # type: ignore[union-attr]
        return rows

    def close(self) -> None:
        for cache in self._caches.values():
            for subtask in cache.subtasks.values():
                subtask.close()
        self.versions.close()

    def _end_when_exhausted(self, tasks: list[_Task], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        sources = [t for t in tasks if t.stage == 0]
        while time.monotonic() < deadline:
            if any(t.failure is not None for t in tasks):
                return
            if all(t.exhausted for t in sources):
                return
            time.sleep(0.002)

    def order(self, orders: Orders) -> None:
        """Tell all subtasks, running and future ones."""
        with self._lock:
            self.coordinator.orders = orders
            token = self.coordinator.token
            for channel in list(_CHANNELS.values()):
                if channel.run is self and token is not None:
                    channel.orders.append(Ordered(token, orders))

    def fence(self, query: int, why: str) -> None:
        """Tell all subtasks of a query to give up waiting."""
        with self._lock:
            for channel in list(_CHANNELS.values()):
                if channel.run is self and channel.query == query:
                    channel.put(Fenced(why))

    def message(self, sender: bytes, data: bytes) -> None:
        """As the driver's end of the control channel."""
        with self._lock:
            match read_as_driver(data):
                case Hello() | Loaded() | Described() as message:
                    for to, reply in self.coordinator.take(sender, message):
                        _CHANNELS[to].put(reply)
                case Reported() as reported:
                    self.reports.append(reported)


_CHANNELS: dict[bytes, _Channel] = {}


class _Channel:
    def __init__(self, run: LocalRun, name: bytes, query: int) -> None:
        self.run, self.name, self.query = run, name, query
        self.inbox: queue.SimpleQueue[ToWorker] = queue.SimpleQueue()
        self.orders: list[ToWorker] = []
        _CHANNELS[name] = self

    def tell(self, message: ToDriver) -> None:
        self.run.message(self.name, encode(message))

    def put(self, message: ToWorker) -> None:
        self.inbox.put(read_as_worker(encode(message)))

    def poll(self) -> list[ToWorker]:
        orders, self.orders = self.orders, []
        return orders

    def offset_us(self) -> int:
        return 0

    def wait(self, turn: type[Turn], timeout_s: float, *, token: Token | None = None) -> Turn:
        try:
            message = self.inbox.get(timeout=min(timeout_s, _PATIENCE_S))
        except queue.Empty:
            raise ChannelError(f"no {turn.__name__!r}") from None
        if isinstance(message, Fenced):
            raise FencedError(message.why)
        if isinstance(message, Go) and turn is not Go:
            return self.wait(turn, timeout_s, token=token)
        assert isinstance(message, turn), (message, turn)
        return message


class _Pipe:
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


class _Task(threading.Thread):
    """One subtask in one epoch."""

    def __init__(self, run: LocalRun, pipes: list[list[_Pipe]], stage: int, index: int, epoch: int, query: int) -> None:
        super().__init__(name=f"subtask-{stage}-{index}", daemon=True)
        self.run_of, self.pipes, self.stage, self.index = run, pipes, stage, index
        self.epoch, self.query = epoch, query
        self.failure: Exception | None = None
        self._cache = run._caches.setdefault((stage, index), Cache())

    @property
    def exhausted(self) -> bool:
        if not self.is_alive():
            return True
        place = (self.stage, self.index)
        newest = next((r for r in reversed(self.run_of.reports) if r.place == place), None)
        return newest is not None and newest.exhausted

    def run(self) -> None:
        name = f"{id(self.run_of)}-{self.stage}-{self.index}-{self.query}".encode()
        channel = _Channel(self.run_of, name, self.query)
        plan = self.run_of.plan
        after = self.pipes[self.stage + 1] if self.stage + 1 < len(self.pipes) else []
        try:
            rows = run_epoch(
                plan,
                self.stage,
                self.index,
                self.epoch,
                self.query,
                self.pipes[self.stage][self.index],
                channel,
                self._cache,
            )
            for batch in rows:
                hold = self.run_of._pause(self.stage, self.index)
                if hold:
                    time.sleep(hold)
                for i, route in enumerate(batch.column("route").to_pylist()):
                    after[route].put(batch.slice(i, 1))
        except Exception as error:
            self.failure = error
            for pipe in after:
                pipe.close()
            self.run_of.fence(self.query, "another subtask failed")
        finally:
            del _CHANNELS[name]


def run_local(
    job: Jobs, *, seed: int | None = None, **settings: Unpack[RunSettings]
) -> dict[str, list[dict[str, Any]]]:
    """Run a bounded job to its end and return the rows of each sink, by name.

    ``seed`` shuffles the timing of subtasks, to show that results do not depend on it.
    """
    dice = random.Random(seed)
    pause: Pause | None = None if seed is None else lambda stage, index: dice.random() * 0.003
    with tempfile.TemporaryDirectory(prefix="headrace-local-") as directory:
        settings.setdefault("report", "10 ms")
        run = LocalRun(job, Path(directory), pause=pause, **settings)
        try:
            run.run()
            sinks = [n.name for n in run.plan.graph.nodes if n.name in run.plan.layout.stage_of and hasattr(n, "sink")]
            return {sink: run.rows(sink) for sink in sinks}
        finally:
            run.close()
