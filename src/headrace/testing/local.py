"""Run a job in this process: threads for subtasks, queues for the shuffle, no Spark.

The driver's loop and machine, the plan, the operators and the checkpoint are those of a run on Spark.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

from headrace.api.job import Jobs
from headrace.config import RunSettings, Settings
from headrace.connect.collect import read_collected
from headrace.driver.driverloop import DriverLoop
from headrace.driver.hands import Hands
from headrace.driver.identity import settle_identity
from headrace.driver.journal import Journal
from headrace.driver.planning import plan_job, refuse_endless
from headrace.driver.protocol.events import (
    BatchBegins,
    BatchEndAsked,
    BatchWorked,
    CutHappened,
    Event,
    Finish,
    Heard,
    LaidOut,
    OrdersGiven,
    QueryEnded,
)
from headrace.driver.protocol.machine import Machine
from headrace.driver.publishing import claim_sinks
from headrace.errors import ChannelError, ConfigError, FencedError
from headrace.runtime.attempt import Cache
from headrace.runtime.messages import Hello, Place, Reported, ToWorker, read_as_driver
from headrace.runtime.orders import Orders
from headrace.runtime.plan import JobPlan
from headrace.state.durable.lock import CheckpointLock
from headrace.state.durable.storage import LocalStorage
from headrace.state.durable.versionlog import Opened, VersionLog
from headrace.testing.threads import BatchOfThreads, LocalChannel, Pause

_PATIENCE_S = 120.0
"""How long a batch may take to end: on a machine that is busy otherwise nothing hangs, all is slow."""
_ON_SPARK = {
    "executors": "there are none",
    "release": "there are no executors",
    "backup": "there are no executors to keep copies",
    "trigger": "a batch follows the one before at once",
}
"""Settings that only a run on Spark can keep, and what is so here."""


class LocalRun:
    """A job with its checkpoint; ``batch()`` runs one batch, with a cut every ``commit`` and one at its end.

    Sinks of the job are replaced by collecting ones, read with ``rows``. A batch that fails raises what it failed with;
    the next one goes on from the last cut.
    """

    def __init__(
        self, job: Jobs, checkpoint: Path, *, pause: Pause | None = None, **settings: Unpack[RunSettings]
    ) -> None:
        self.plan: JobPlan = plan_job(job, checkpoint, _checked(Settings.of(**settings)), collect=True)
        self.reports: list[Reported] = []
        self.cuts: list[CutHappened] = []
        self.finished = False
        self.caches: dict[Place, Cache] = {}
        self.channels: dict[bytes, LocalChannel] = {}
        self._pause = pause or (lambda stage, index: 0.0)
        self._query, self._batch = 0, 0
        self._ready = self._batch_over = False
        self._threads: BatchOfThreads | None = None
        self._failure: Exception | None = None
        self._answer: bool | None = None
        self._lock = CheckpointLock.take(checkpoint)
        try:
            self.storage = LocalStorage(checkpoint / "headrace")
            settle_identity(self.storage, self.plan)
            claim_sinks(self.plan, self.storage)
        except BaseException:
            self._lock.close()
            raise
        self.log = VersionLog(self.storage)
        self.machine = Machine(self.plan, _opened, wall_s=time.time() - time.monotonic())
        self._loop = DriverLoop(
            self.machine, lambda post: Hands(self.plan, self.storage, post), self, Journal(), on_cut=self.cuts.append
        )
        self._finish: Finish | None = None

    def run(self, *, seconds: float = 1.0, max_batches: int = 1000) -> None:
        """Batches until the sources are exhausted."""
        for _ in range(max_batches):
            self.batch(seconds=seconds)
            if self.finished:
                return

    def batch(self, *, seconds: float = 1.0) -> None:
        """One batch: it ends when all sources are exhausted, or after ``seconds``; its results are then published."""
        self._turn(lambda: self._ready)
        if self._finish is not None:
            return
        self._ready = self._batch_over = False
        threads = self._threads = BatchOfThreads(self, self.plan, self._query, self._batch, self._pause)
        self._batch += 1
        if self.plan.eager:
            self._run_at_once(threads, seconds)
        else:
            self._run_by_stage(threads)
        failure, self._failure = self._failure, None
        if failure is not None:
            self._turn(lambda: self._ready)
            raise failure
        self._turn(lambda: not self.machine.publications.waiting and (self._ready or self._finish is not None))

    def _run_at_once(self, threads: BatchOfThreads, seconds: float) -> None:
        threads.start_all()
        deadline = time.monotonic() + seconds
        self._turn(lambda: self._over() or time.monotonic() > deadline)
        if not self._over():
            self._loop.post(BatchEndAsked("it was asked for"))
            self._turn(self._over)

    def _run_by_stage(self, threads: BatchOfThreads) -> None:
        number = self._batch - 1
        if not self._ask(BatchBegins(number, known=False)):
            return
        for stage in self.plan.layout.stages:
            threads.start_stage(stage.index)
            self._turn(lambda at=stage.index: not threads.is_running(at))  # type: ignore[misc]
            if self._note_failure():
                return
        self._ask(BatchWorked(number))

    def _ask(self, event: Event) -> bool:
        self._answer = None
        self._loop.post(event)
        self._turn(lambda: self._answer is not None or self._failure is not None)
        return bool(self._answer)

    def _over(self) -> bool:
        return self._batch_over or self._note_failure()

    def _note_failure(self) -> bool:
        """Whether a subtask has failed; then the query is over, as Spark's would be."""
        failures = self._threads.failures() if self._threads is not None else []
        if failures and self._failure is None:
            self._failure = min(failures, key=lambda error: isinstance(error, (ChannelError, FencedError)))
            self.fence("another subtask failed")
            self._loop.post(QueryEnded(self._query, self._failure))
        return self._failure is not None

    def _turn(self, until: Callable[[], bool]) -> None:
        """Let the driver work until something holds, or the run is over."""
        deadline = time.monotonic() + _PATIENCE_S
        if self._finish is None:
            self._finish = self._loop.run(lambda: until() or time.monotonic() > deadline)
        if self._finish is not None:
            self.finished = self._finish.state == "finished"
            self._batch_over = True
            if self._finish.error is not None:
                raise self._failure or self._finish.error
        elif time.monotonic() > deadline:
            raise TimeoutError(f"the driver is still {self.machine.phase} after {_PATIENCE_S:g} s")

    def order(self, orders: Orders) -> None:
        """Tell all subtasks, running and future ones."""
        self._loop.post(OrdersGiven(orders))

    def lay_out(self, plan: JobPlan) -> None:
        """Go on with other subtasks from the next batch on."""
        self.plan = plan
        self._loop.tell(LaidOut(plan))

    def rows(self, sink: str) -> list[dict[str, Any]]:
        node = self.plan.graph.by_name[sink]
        return read_collected(node.sink.directory)  # type: ignore[union-attr]

    def close(self) -> None:
        """Leave the checkpoint as it is, as a driver does that is killed."""
        if self._threads is not None:
            self.fence("the run is over")
            self._threads.end()
        self._loop.hands.close()
        for cache in self.caches.values():
            for subtask in cache.subtasks.values():
                subtask.close()
        self._lock.close()

    def fence(self, why: str) -> None:
        """Tell all subtasks that run to give up waiting."""
        for channel in list(self.channels.values()):
            channel.fence(why)

    def hear(self, sender: bytes, data: bytes) -> None:
        """As the driver's end of the control channel."""
        message = read_as_driver(data)
        if isinstance(message, Reported):
            self.reports.append(message)
        self._loop.post(Heard(sender, message))

    # What the driver's loop asks of a query.

    def start(self, query: int) -> None:
        self._end_threads()
        self._query, self._batch, self._ready = query, 0, True

    def ended(self) -> QueryEnded | None:
        return None

    def end_batch(self) -> None:
        self._end_threads()
        self._ready = self._batch_over = True

    def stop(self, hung: tuple[Hello, ...]) -> None:
        found = self.machine._failure  # what the driver itself found wrong fails the batch as well
        if self._threads is not None and found is not None:
            self._failure = self._failure or found.error
        self._end_threads()

    def answer(self, batch: int, run: bool) -> None:
        self._answer = run
        if not self.plan.eager and self.machine.phase == "ended":
            self._ready = True

    def send(self, to: bytes, message: ToWorker) -> None:
        if to in self.channels:
            self.channels[to].put(message)

    def _end_threads(self) -> None:
        if self._threads is not None:
            self._threads.end()
            self._threads = None


def run_local(
    job: Jobs, *, seed: int | None = None, **settings: Unpack[RunSettings]
) -> dict[str, list[dict[str, Any]]]:
    """Run a bounded job to its end and return the rows of each sink, by name.

    ``seed`` shuffles the timing of subtasks, to show that results do not depend on it.
    """
    Settings.of(**settings)  # first: what is no setting is not to be taken for an argument of LocalRun
    dice = random.Random(seed)
    pause: Pause | None = None if seed is None else lambda stage, index: dice.random() * 0.003
    with tempfile.TemporaryDirectory(prefix="headrace-local-") as directory:
        settings.setdefault("report", "10 ms")
        run = LocalRun(job, Path(directory), pause=pause, **settings)
        try:
            refuse_endless(run.plan.graph, "run_local")
            run.run()
            sinks = [n.name for n in run.plan.graph.nodes if n.name in run.plan.layout.stage_of and hasattr(n, "sink")]
            return {sink: run.rows(sink) for sink in sinks}
        finally:
            run.close()


def _checked(settings: Settings) -> Settings:
    for name in settings.asked:
        if name in _ON_SPARK:
            raise ConfigError(f"{name} has no effect in a run without Spark, where {_ON_SPARK[name]}; leave it out")
    return settings


def _opened(number: int) -> Opened:
    return Opened(number, "local", threading.get_ident(), time.time_ns() // 1000)
