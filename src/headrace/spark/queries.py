"""A job's queries on Spark, one after the other, as the driver's loop starts and stops them."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from contextlib import suppress

from pyspark.sql import SparkSession

from headrace.channel.server import ChannelServer
from headrace.driver.protocol.events import BatchBegins, BatchWorked, Event, QueryEnded, RestartAsked
from headrace.driver.workers import kill
from headrace.errors import FencedError
from headrace.runtime.messages import Hello, ToWorker
from headrace.runtime.plan import JobPlan
from headrace.spark.engines import BatchEngine, Engine, MicrobatchEngine, RealtimeEngine
from headrace.spark.gaps import GapClock


class SparkQueries:
    """``lay_out`` gives the plan of the query that begins; ``post`` tells the driver's loop, ``gaps`` when it did what."""

    def __init__(
        self,
        session: SparkSession,
        server: ChannelServer,
        lay_out: Callable[[], JobPlan],
        post: Callable[[Event], None],
        gaps: GapClock,
    ) -> None:
        self._session, self._server, self._lay_out, self._post, self._gaps = session, server, lay_out, post, gaps
        self._engine: Engine | None = None
        self._query = 0
        self._answers: queue.SimpleQueue[bool | None] = queue.SimpleQueue()

    def start(self, query: int) -> None:
        self._gaps.mark("start", time.monotonic())
        plan, session, address = self._lay_out(), self._session, self._server.address
        self._query = query
        self._answers = queue.SimpleQueue()
        match plan.settings.mode:
            case "realtime":
                self._engine = RealtimeEngine(session, plan, query, address)
            case "microbatch":
                self._engine = MicrobatchEngine(session, plan, query, address, self._ask_batch, self._end_batch)
            case "batch":
                self._engine = BatchEngine(session, plan, query, address, self._ask_batch, self._end_batch)
        self._gaps.mark("started", time.monotonic())

    def ended(self) -> QueryEnded | None:
        engine = self._engine
        if engine is None or engine.alive():
            return None
        ended = QueryEnded(self._query, engine.failure())
        with suppress(Exception):  # it is over, and why is known
            self.stop(())
        return ended

    def end_batch(self) -> None:
        if self._engine is not None and not self._engine.end_batch():
            self._post(RestartAsked("a cluster's batch ends only with its query"))

    def stop(self, hung: tuple[Hello, ...]) -> None:
        engine, self._engine = self._engine, None
        self._answers.put(None)
        if engine is not None:
            self._gaps.mark("stop", time.monotonic())
        for worker in hung:
            kill(worker)
        if engine is not None:
            engine.stop()
            self._gaps.mark("stopped", time.monotonic())

    def answer(self, batch: int, run: bool) -> None:
        self._answers.put(run)

    def send(self, to: bytes, message: ToWorker) -> None:
        self._server.send(to, message)

    def _ask_batch(self, batch: int, known: bool) -> bool:
        return self._ask(BatchBegins(batch, known))

    def _end_batch(self, batch: int) -> None:
        self._ask(BatchWorked(batch))

    def _ask(self, event: Event) -> bool:
        """In a thread of Spark's: ask, and wait for the answer."""
        answers = self._answers
        self._post(event)
        answer = answers.get()
        if answer is None:
            raise FencedError("the query is being stopped")
        return answer
