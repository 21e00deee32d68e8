"""The thread that keeps a job's query going: starts it, ends its epochs, restarts it after failures."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec.structs
from pyspark.sql import SparkSession

from headrace.actuate.ranks import Ranks
from headrace.channel.server import ChannelServer
from headrace.connect.console import ConsoleSink
from headrace.driver.committing import Committing
from headrace.driver.coordinator import Coordinator
from headrace.driver.failures import Failure, translated, understand
from headrace.driver.hearing import Hearing
from headrace.driver.journal import Journal
from headrace.driver.leases import Workers
from headrace.driver.planning import identity
from headrace.driver.publishing import recover
from headrace.driver.sparkcommits import last_committed
from headrace.driver.status import State
from headrace.driver.steering import Steering
from headrace.errors import HeadraceError, RunFailedError
from headrace.graph.nodes import SinkNode
from headrace.runtime.messages import (
    Described,
    Failed,
    Fenced,
    Hello,
    Loaded,
    Ordered,
    Reply,
    Reported,
    RowsShown,
    ToDriver,
)
from headrace.runtime.orders import Orders
from headrace.runtime.plan import Description, JobPlan
from headrace.spark.engines import BatchEngine, Engine, MicrobatchEngine, RealtimeEngine
from headrace.spark.fleet import open_executors
from headrace.spark.session import check_slots
from headrace.state.durable.versions import Manifest, Versions
from headrace.tokens import Token

_log = logging.getLogger("headrace")
_LOOP_S = 0.02
_MIN_EPOCH_S = 5.0
_LONGEST_BACKOFF_S = 30.0


class Supervisor:
    """Owns the query, the epochs' coordinator and the control channel of one run.

    ``gaps_s`` are the pauses between epochs so far; ``placements`` says for each start of a subtask
    (epoch, stage, subtask, parent process, process), where a parent stands for an executor.
    """

    def __init__(
        self, plan: JobPlan, session: SparkSession, *, own_session: bool, temporary: bool, observe_only: bool = False,
        trace: Path | None = None,
    ) -> None:  # fmt: skip
        self._journal = Journal()
        self._executors = open_executors(session, plan, self._journal, observe_only=observe_only)
        plan = self._executors.begin(plan)
        if plan.eager:
            check_slots(session, plan.layout.slots)
        self.plan, self._session = plan, session
        self._own_session, self._temporary = own_session, temporary
        self._spark_checkpoint = plan.checkpoint / "spark"
        self._versions = Versions(plan.checkpoint)
        self._generation = self._versions.open(identity(plan))
        self._coordinator = Coordinator(plan, self._versions, self._generation, on_sealed=self._on_sealed)
        self._committing = Committing(plan, self._versions, self._spark_checkpoint)
        self._lock = threading.RLock()
        self._hearing = Hearing(plan.layout, plan.settings.report_s)
        self._failures: list[Failed] = []
        self._workers = Workers(plan)
        self._counters: dict[str, int] = {}
        self._state: State = "starting"
        self._failure: HeadraceError | None = None
        self._restarts = 0
        self._epoch_at_s: float | None = None
        self._asked_to_end: Token | None = None
        self._last_epoch: Token | None = None
        self._stop_at_s: float | None = None
        self._done = threading.Event()
        self._seconds: float | None = None
        self.gaps_s: list[float] = []
        self.placements: deque[tuple[int, int, int, int, int]] = deque(maxlen=4096)
        self._last_seal_s: float | None = None
        self._began_s = float("inf")
        self._steering = Steering(plan, self.order, self._journal, observe_only=observe_only, trace=trace)
        host = "127.0.0.1"
        if not session.sparkContext.master.startswith("local"):
            host = session.sparkContext.getConf().get("spark.driver.host", host)
        lease_s = plan.settings.lease_s
        self._server = ChannelServer(host, self._on_message, on_lost=self._on_lost, lease_s=lease_s)
        self._thread = threading.Thread(target=self._supervise, name="headrace-supervisor", daemon=True)

    def order(self, orders: Orders) -> None:
        """Tell every subtask what to do from now on, and those of later epochs when they start.

        A schedule that was ordered once stays in force until another is.
        """
        with self._lock:
            orders = msgspec.structs.replace(orders, schedule=orders.schedule or self._coordinator.orders.schedule)
            self._coordinator.orders = orders
            members, token = list(self._coordinator.members.values()), self._coordinator.token
        if token is not None:
            for member in members:
                self._server.send(member.sender, Ordered(token, orders))

    def _recover(self) -> None:
        """Finish what a driver before us had committed, and clear away what it had not."""
        recover(self.plan, self._versions, self._generation, last_committed(self._spark_checkpoint))

    def _supervise(self) -> None:
        backoff_s = self.plan.settings.restart_backoff_s
        try:
            while True:
                commits = self._committing.commits
                self._lay_out()
                engine = self._start_engine()
                failure = self._watch(engine)
                self._quietly(engine.stop)
                self._workers.kill_hung()
                if failure is None and self._resizing():
                    continue
                if failure is None:
                    self._state = "finished" if self._committing.finished else "stopped"
                    return
                epoch = self._coordinator.token.epoch if self._coordinator.token else -1
                attempts = self._coordinator.attempts.get(epoch, 0) if epoch >= 0 else self._restarts + 1
                if failure.final or attempts >= self.plan.settings.max_attempts or self._stop_at_s is not None:
                    self._give_up(failure, epoch, attempts)
                    return
                if self._committing.commits > commits:
                    backoff_s = self.plan.settings.restart_backoff_s
                self._restarts += 1
                self._state = "restarting"
                self._journal.warn(
                    "restart", f"epoch {epoch} failed ({failure.summary}); trying again in {backoff_s:g} s"
                )
                time.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)
        except Exception as error:
            self._failure = translated(error)
            self._state = "failed"
        finally:
            self._clean_up()
            self._done.set()

    def _lay_out(self) -> None:
        """Between two queries: go on with as many executors as are wanted, or as are left."""
        plan = self._executors.laid_out(self.plan, self._steering.wanted(self.plan.layout))
        if plan is not self.plan:
            self._state = "restarting"
            with self._lock:
                self.plan = self._coordinator.plan = plan
                self._coordinator.owners = []
                self._steering.laid_out(plan, self._ranks())

    def _resizing(self) -> bool:
        """Whether the query is to be restarted with other executors and stands at the border for it."""
        with self._lock:
            at_border = self._coordinator.at_border and not self._committing.waiting
            return self._coordinator.holding and at_border and self._stop_at_s is None and not self._committing.finished

    def _start_engine(self) -> Engine:
        self._committing.advance()
        with self._lock:
            self._committing.forget()
            query = self._coordinator.new_query()
            self._failures.clear()
            self._workers.forget()
            self._hearing.forget()
            self._epoch_at_s = self._asked_to_end = self._last_epoch = None
        plan, address, spark_checkpoint = self.plan, self._server.address, self._spark_checkpoint
        if plan.settings.mode == "realtime":
            return RealtimeEngine(self._session, plan, query, address, spark_checkpoint, self._steering.epoch_s)
        if plan.settings.mode == "microbatch":
            return MicrobatchEngine(
                self._session, plan, query, address, spark_checkpoint, self._begin_epoch, self._seal_epoch
            )
        return BatchEngine(self._session, plan, query, address, self._begin_epoch, self._seal_epoch)

    def _watch(self, engine: Engine) -> Failure | None:
        """Keep epochs going until the run is over (None) or fails."""
        while True:
            alive = engine.alive()
            self._committing.advance()
            if self._began_s < float("inf"):
                self._executors.count(time.monotonic(), self.plan.settings.report_s)
            if self._committing.finished or self._may_stop(engine) or self._resizing():
                return None
            if not alive or self._workers.hung:
                if self.plan.settings.mode == "batch" and not alive and engine.failure() is None:
                    return None
                time.sleep(0.1)  # workers' last words may still be on their way
                with self._lock:
                    return understand(list(self._failures), engine.failure())
            self._steer()
            if self._epoch_is_over():
                self._asked_to_end = self._coordinator.token
                if self._stop_at_s is not None:
                    self._last_epoch = self._asked_to_end
                engine.end_epoch()
            time.sleep(_LOOP_S)

    def _steer(self) -> None:
        """Decide anew, while an epoch runs."""
        with self._lock:
            now = time.monotonic()
            if self._epoch_at_s is not None and self._steering.due(now):
                self._steering.turn(now, self._hearing.unseen(), self._ranks())
                if not self._coordinator.held:
                    self._executors.turn(time.time(), self.plan.layout, self._steering.wanted(self.plan.layout))
                    self._coordinator.holding = self._executors.ready
            self._steering.reconsider(tuple(self.gaps_s))

    def _ranks(self) -> Ranks:
        return Ranks.of(self.plan, self._coordinator.orders, self._coordinator.owners)

    def _epoch_is_over(self) -> bool:
        token, began = self._coordinator.token, self._epoch_at_s
        if token is None or began is None or token == self._asked_to_end or self._last_epoch is not None:
            return False
        if self._committing.ending:
            return False
        now = time.monotonic()
        if self._seconds is not None and self._stop_at_s is None and now - self._began_s >= self._seconds:
            self._stop_at_s = now
        return (
            self._stop_at_s is not None
            or now - began >= self._steering.epoch_s
            or self._sources_exhausted(token)
            or (now - began >= _MIN_EPOCH_S and self._coordinator.grows())
        )

    def _sources_exhausted(self, token: Token) -> bool:
        with self._lock:
            return self._hearing.exhausted(token)

    def _may_stop(self, engine: Engine) -> bool:
        """After a stop was asked for: once the epoch that ran then has been committed."""
        if self._stop_at_s is None:
            return False
        asked = self._last_epoch
        if self.plan.settings.mode != "realtime":
            return not self._committing.waiting or not engine.alive()
        if asked is not None and (picked := self._versions.picked(asked.epoch)) is not None and picked == asked:
            return True
        waited = time.monotonic() - self._stop_at_s
        never_began = self._coordinator.token is None or self._epoch_at_s is None
        return (never_began and waited > 20) or waited > self._steering.epoch_s + 60

    def _begin_epoch(self, epoch: int) -> None:
        self._committing.advance()
        with self._lock:
            self._coordinator.start(epoch)
            self._epoch_at_s = time.monotonic()
            self._state = "running"

    def _seal_epoch(self, epoch: int) -> None:
        deadline = time.monotonic() + self.plan.settings.join_timeout_s
        while time.monotonic() < deadline:
            with self._lock:
                if all(m.description is not None for m in self._coordinator.members.values()):
                    self._coordinator.seal()
                    return
            time.sleep(0.002)
        with self._lock:
            self._coordinator.seal()

    def _on_sealed(self, manifest: Manifest, descriptions: list[Description]) -> None:
        self._last_seal_s = time.monotonic()
        self._coordinator.sealed = self._committing.take(manifest)
        for description in descriptions:
            for name, count in description.counters.items():
                self._counters[name] = self._counters.get(name, 0) + count

    def _on_message(self, sender: bytes, message: ToDriver) -> list[Reply]:
        with self._lock:
            match message:
                case Hello():
                    return self._welcome(sender, message)
                case Loaded():
                    replies = self._coordinator.loaded(sender, message)
                    if replies and self.plan.eager:
                        self._epoch_began()
                    return replies
                case Described():
                    return self._guarded(sender, message)
                case Reported() if message.token != self._coordinator.token:
                    return [(sender, Fenced("a newer attempt has begun"))]
                case Reported() if self._coordinator.has(message.place):
                    self._hearing.take(message)
                    self._journal.note_engines(message)
                case Failed() if message.query == self._coordinator.query:
                    self._failures.append(message)
                case RowsShown():
                    node = self.plan.graph.by_name.get(message.step)
                    if isinstance(node, SinkNode) and isinstance(node.sink, ConsoleSink):
                        node.sink.show(message.step, message.rows)
            return []

    def _welcome(self, sender: bytes, hello: Hello) -> list[Reply]:
        if hello.query == self._coordinator.query and self._coordinator.has(hello.place):
            self._workers.began(sender, hello)
        self.placements.append((hello.epoch, hello.stage, hello.index, hello.daemon, hello.pid))
        before = self._coordinator.token
        replies = self._guarded(sender, hello)
        if self.plan.eager and self._coordinator.token != before:
            self._epoch_at_s = None  # the new epoch begins when its sources are let go
        return replies

    def _on_lost(self, sender: bytes) -> None:
        """A worker gives no sign of life: the attempt is over, unless its part in it is."""
        with self._lock:
            failure = self._workers.lost(sender, self._coordinator)
            if failure is not None:
                self._failures.append(failure)

    def _guarded(self, sender: bytes, message: Hello | Described) -> list[Reply]:
        """What the coordinator replies; if it refuses, the attempt is over and its workers are told why."""
        try:
            return self._coordinator.take(sender, message)
        except HeadraceError as error:
            self._failures.append(Failed.of(error, self._coordinator.query, None))
            senders = {sender, *(member.sender for member in self._coordinator.members.values())}
            return [(to, Fenced(str(error))) for to in senders]

    def _epoch_began(self) -> None:
        now = time.monotonic()
        if self._last_seal_s is not None:
            self.gaps_s.append(now - self._last_seal_s)
            self._executors.began(time.time(), self.gaps_s[-1])
        if self._state != "running":
            self._state = "running"
        self._began_s = min(self._began_s, now)
        self._epoch_at_s = now

    def _give_up(self, failure: Failure, epoch: int, attempts: int) -> None:
        self._failure = failure.error
        if not failure.final and attempts >= self.plan.settings.max_attempts:
            what = f"epoch {epoch} failed" if epoch >= 0 else "the query failed to start"
            self._failure = RunFailedError(f"{what} {attempts} times, so the job was stopped: {failure.error}")
            self._failure.__cause__ = failure.error
        self._state = "failed"
        self._journal.warn("failed", failure.summary)

    def _quietly(self, action: Any) -> None:
        """Stopping a query that failed may fail too; what matters has been noted."""
        try:
            action()
        except Exception as error:
            _log.debug("while stopping: %s", error)

    def _clean_up(self) -> None:
        self._quietly(self._committing.advance)
        self._quietly(lambda: self._executors.count(time.monotonic()))
        self._committing.close()
        self._steering.close()
        self._server.close()
        self._versions.close()
        self._quietly(self._session.stop if self._own_session else self._executors.give_back)
