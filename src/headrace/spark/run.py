"""A running job: starts the query, keeps its epochs going, restarts it after failures, stops it cleanly."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headrace.actuate.controller import Controller, Kept, open_trace
from headrace.actuate.epochs import EpochLength, first_length, is_automatic, next_length
from headrace.actuate.ranks import Ranks
from headrace.actuate.topology import control_job, overrides_of
from headrace.channel.server import ChannelServer, Reply
from headrace.connect.collect import Collect, read_collected
from headrace.connect.console import ConsoleSink
from headrace.errors import ConfigError, HeadraceError, RunFailedError
from headrace.graph.nodes import SinkNode
from headrace.measure.flows import LatencyFigures, figures_of
from headrace.runtime.orders import Orders
from headrace.runtime.plan import Description, JobPlan
from headrace.spark.commits import committed, last_committed
from headrace.spark.compaction import Compactor
from headrace.spark.engines import BatchEngine, Engine, MicrobatchEngine, RealtimeEngine
from headrace.spark.epochs import Coordinator
from headrace.spark.failures import Failure, translated, understand
from headrace.spark.hearing import Heard, Hearing
from headrace.spark.leases import Workers
from headrace.spark.planning import identity
from headrace.spark.publishing import publish, recover
from headrace.spark.shipping import ship_by_value
from headrace.spark.status import Event, State, Status
from headrace.state.versions import Manifest, Versions
from headrace.tokens import Token
from headrace.units import Duration

_log = logging.getLogger("headrace")
_LOOP_S = 0.02
_LEAST_EPOCH_S = 5.0
_LONGEST_BACKOFF_S = 30.0


class Run:
    """A handle on a running job: ``wait() stop() status() latency() decisions() rows(sink)``.

    ``gaps_s`` are the pauses between epochs so far; ``placements`` says for each start of a subtask
    (epoch, stage, subtask, parent process, process), where a parent stands for an executor; ``control_cpu_s``
    is what the controller has used.
    """

    def __init__(
        self, plan: JobPlan, session: SparkSession, *, own_session: bool, temporary: bool, observe_only: bool = False,
        trace: Path | None = None,
    ) -> None:  # fmt: skip
        self.plan, self._session = plan, session
        self._own_session, self._temporary = own_session, temporary
        self._spark_checkpoint = plan.checkpoint / "spark"
        self._versions = Versions(plan.checkpoint)
        self._generation = self._versions.open(identity(plan))
        self._coordinator = Coordinator(plan, self._versions, self._generation, on_sealed=self._on_sealed)
        self._compactor = Compactor(self._versions)
        self._lock, self._committing = threading.RLock(), threading.Lock()
        self._hearing = Hearing(plan.layout, plan.settings.report_s)
        self._failures: list[dict[str, Any]] = []
        self._workers = Workers(plan)
        self._engines: dict[tuple[str, int], str] = {}
        self._events: list[Event] = []
        self._counters: dict[str, int] = {}
        self._sealed: list[Manifest] = []
        self._state: State = "starting"
        self._failure: HeadraceError | None = None
        self._restarts = self._commits = 0
        self._epoch_at_s: float | None = None
        self._asked_to_end: Token | None = None
        self._last_epoch: Token | None = None
        self._stop_at_s: float | None = None
        self._finish = False
        self._done = threading.Event()
        self._seconds: float | None = None
        self.gaps_s: list[float] = []
        self.placements: deque[tuple[int, int, int, int, int]] = deque(maxlen=4096)
        self._last_seal_s: float | None = None
        self._began_s = float("inf")
        self._ended_s = 0.0
        host = "127.0.0.1"
        if not session.sparkContext.master.startswith("local"):
            host = session.sparkContext.getConf().get("spark.driver.host", host)
        lease_s = plan.settings.lease_s
        self._server = ChannelServer(host, self._on_message, on_lost=self._on_lost, lease_s=lease_s)
        self._controller: Controller | None = None
        if plan.eager and plan.graph.constraints:
            job = control_job(plan, observe_only=observe_only)
            self._controller = Controller(plan, job, self.order, self._decided, open_trace(trace))
        self._controlled_s = self.control_cpu_s = 0.0
        self._epoch_length = EpochLength(plan.settings.epoch_s, "as set")
        self._gaps_considered = 0
        self._thread = threading.Thread(target=self._supervise, name="headrace-supervisor", daemon=True)

    def start(self, seconds: float | None = None) -> Run:
        """Begin; ``seconds`` ends the run cleanly after that long."""
        ship_by_value(self.plan.graph)
        self._seconds = seconds
        self._recover()
        if self._controller is not None:
            self._controller.start()
        if is_automatic(self.plan):
            self._set_epoch(first_length(self.plan))
        self._thread.start()
        return self

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; raises what the job failed with. False if it still runs after the timeout."""
        if not self._done.wait(timeout_s):
            return False
        self._thread.join(30)
        if self._failure is not None:
            raise self._failure
        return True

    def stop(self, timeout_s: float = 120.0) -> None:
        """End the running epoch, commit it, and stop."""
        self._stop_at_s = self._stop_at_s or time.monotonic()
        self._done.wait(timeout_s)
        self._thread.join(30)

    def status(self) -> Status:
        token = self._coordinator.token
        with self._lock:
            summary, workers = self._hearing.summary(time.time()), len(self._hearing.newest)
        status = Status(
            self._state, token.epoch if token else 0, self._commits, self._restarts, dict(self._counters), workers
        )
        return status.measured(summary)

    def reports(self) -> list[Heard]:
        """What workers reported lately, oldest first."""
        with self._lock:
            return list(self._hearing.history)

    def constraints(self) -> dict[str, Kept]:
        """Per constraint of the job: how it stands, and in which share of the cycles so far it was met."""
        return dict(self._controller.kept) if self._controller is not None else {}

    def subtask_s(self) -> dict[str, float]:
        """Per step: seconds of active subtasks so far."""
        return dict(self._controller.ledger.subtask_s) if self._controller is not None else {}

    def override(
        self, *, deadlines: Mapping[str, Duration] | None = None, parallelism: Mapping[str, int] | None = None,
        chained: Mapping[str, bool] | None = None,
    ) -> None:  # fmt: skip
        """Decide by hand, in place of the controller: what is given stays until the next call.

        Edges are named ``"from → to"`` (or ``"from>to"``); a keyed step's subtasks change with the next epoch.
        """
        if self._controller is None:
            raise ConfigError("only a job with latency constraints in realtime mode has settings to override")
        pins = overrides_of(self.plan, deadlines or {}, parallelism or {}, chained or {})
        with self._lock:
            self._controller.override(pins, self._ranks())

    def worker_pids(self) -> list[int]:
        """Processes that run subtasks now."""
        with self._lock:
            return sorted({heard.pid for heard in self._hearing.newest.values()})

    @property
    def busy_s(self) -> float:
        """From when sources were let go to the last commit: the run without Spark's start-up."""
        return max(self._ended_s - self._began_s, 0.0)

    def latency(self) -> dict[str, LatencyFigures]:
        """Per step: latency of what it received lately, from when records were due or read."""
        return figures_of(flow for heard in self.reports() for flow in heard.flows)

    def decisions(self) -> list[Event]:
        """What was decided and what happened, oldest first."""
        return list(self._events)

    def rows(self, sink: str) -> list[dict[str, Any]]:
        """The committed rows of a ``hr.collect()`` sink."""
        node = self.plan.graph.by_name.get(sink)
        if not isinstance(node, SinkNode) or not isinstance(node.sink, Collect):
            raise HeadraceError(f"{sink!r} is not a collecting sink of job {self.plan.graph.job!r}")
        rows: list[dict[str, Any]] = read_collected(node.sink.directory).to_pylist()
        return rows

    def order(self, orders: Orders) -> None:
        """Tell every subtask what to do from now on, and those of later epochs when they start."""
        with self._lock:
            self._coordinator.orders = orders
            members = list(self._coordinator.members.values())
        for member in members:
            self._server.send(member.sender, "orders", orders.to_wire())

    def _recover(self) -> None:
        """Finish what a driver before us had committed, and clear away what it had not."""
        recover(self.plan, self._versions, self._generation, last_committed(self._spark_checkpoint))

    def _supervise(self) -> None:
        backoff_s = self.plan.settings.restart_backoff_s
        try:
            while True:
                commits = self._commits
                engine = self._start_engine()
                failure = self._watch(engine)
                self._quietly(engine.stop)
                self._workers.kill_hung()
                if failure is None:
                    self._state = "finished" if self._finish else "stopped"
                    return
                epoch = self._coordinator.token.epoch if self._coordinator.token else -1
                attempts = self._coordinator.attempts.get(epoch, 0) if epoch >= 0 else self._restarts + 1
                if failure.final or attempts >= self.plan.settings.max_attempts or self._stop_at_s is not None:
                    self._give_up(failure, epoch, attempts)
                    return
                if self._commits > commits:
                    backoff_s = self.plan.settings.restart_backoff_s
                self._restarts += 1
                self._state = "restarting"
                self._note("restart", f"epoch {epoch} failed ({failure.summary}); trying again in {backoff_s:g} s")
                time.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)
        except Exception as error:
            self._failure = translated(error)
            self._state = "failed"
        finally:
            self._clean_up()
            self._done.set()

    def _start_engine(self) -> Engine:
        self._commit_ready()
        with self._lock:
            # An attempt that was sealed but whose commit did not land before its query ended is void: the
            # epoch is run again, and only what is sealed then may be picked.
            self._sealed.clear()
            query = self._coordinator.new_query()
            self._failures.clear()
            self._workers.forget()
            self._hearing.forget()
            self._epoch_at_s = self._asked_to_end = self._last_epoch = None
        plan, address, spark_checkpoint = self.plan, self._server.address, self._spark_checkpoint
        if plan.settings.mode == "realtime":
            return RealtimeEngine(self._session, plan, query, address, spark_checkpoint)
        if plan.settings.mode == "microbatch":
            return MicrobatchEngine(
                self._session, plan, query, address, spark_checkpoint, self._begin_epoch, self._seal_epoch
            )
        return BatchEngine(self._session, plan, query, address, self._begin_epoch, self._seal_epoch)

    def _watch(self, engine: Engine) -> Failure | None:
        """Keep epochs going until the run is over (None) or fails."""
        while True:
            alive = engine.alive()
            self._commit_ready()
            if self._finish or self._may_stop(engine):
                return None
            if not alive or self._workers.hung:
                if self.plan.settings.mode == "batch" and not alive and engine.failure() is None:
                    return None
                time.sleep(0.1)  # workers' last words may still be on their way
                with self._lock:
                    return understand(list(self._failures), engine.failure())
            self._control()
            self._reconsider_epoch()
            if self._epoch_is_over():
                self._asked_to_end = self._coordinator.token
                if self._stop_at_s is not None:
                    self._last_epoch = self._asked_to_end
                engine.end_epoch()
            time.sleep(_LOOP_S)

    def _control(self) -> None:
        """One turn of the control loop per interval, while an epoch runs."""
        now = time.monotonic()
        if (
            self._controller is None
            or self._epoch_at_s is None
            or now - self._controlled_s < self.plan.settings.report_s
        ):
            return
        self._controlled_s, cpu_s = now, time.thread_time()
        with self._lock:
            self._controller.cycle(time.time(), self._hearing.unseen(), self._ranks())
        self.control_cpu_s += time.thread_time() - cpu_s

    def _ranks(self) -> Ranks:
        return Ranks.of(self.plan, self._coordinator.orders, self._coordinator.owners)

    def _grows(self) -> bool:
        """Whether a keyed stage waits for the next epoch to get more subtasks."""
        wanted = self._coordinator.orders.active
        return any(
            wanted.get(stage, 0) > len(owners) and any(edge.keyed for edge in self.plan.layout.border(stage))
            for stage, owners in enumerate(self._coordinator.owners)
        )

    def _epoch_is_over(self) -> bool:
        token, began = self._coordinator.token, self._epoch_at_s
        if token is None or began is None or token == self._asked_to_end or self._last_epoch is not None:
            return False
        with self._lock:
            if any(manifest.finished for manifest in self._sealed):
                return False  # only the commit is still to come
        now = time.monotonic()
        if self._seconds is not None and self._stop_at_s is None and now - self._began_s >= self._seconds:
            self._stop_at_s = now
        return (
            self._stop_at_s is not None
            or now - began >= self._epoch_length.epoch_s
            or self._sources_exhausted(token)
            or (now - began >= _LEAST_EPOCH_S and self._grows())
        )

    def _sources_exhausted(self, token: Token) -> bool:
        with self._lock:
            return self._hearing.exhausted(str(token))

    def _may_stop(self, engine: Engine) -> bool:
        """After a stop was asked for: once the epoch that ran then has been committed."""
        if self._stop_at_s is None:
            return False
        asked = self._last_epoch
        if self.plan.settings.mode != "realtime":
            return not self._sealed or not engine.alive()
        if asked is not None and (picked := self._versions.picked(asked.epoch)) is not None and picked == asked:
            return True
        waited = time.monotonic() - self._stop_at_s
        never_began = self._coordinator.token is None or self._epoch_at_s is None
        return (never_began and waited > 20) or waited > self._epoch_length.epoch_s + 60

    def _commit_ready(self) -> None:
        """Pick and publish sealed epochs whose Spark commit has landed."""
        with self._committing:
            self._commit_sealed()

    def _commit_sealed(self) -> None:
        while self._sealed:
            manifest = self._sealed[0]
            epoch = manifest.token.epoch
            if self.plan.settings.mode != "batch" and not committed(self._spark_checkpoint, epoch):
                return
            picked = self._versions.pick(epoch, manifest.token)
            with self._lock:
                self._sealed.pop(0)
            if picked is None:
                continue
            publish(self.plan, manifest if picked == manifest.token else self._versions.manifest(picked))
            self._commits += 1
            self._ended_s = time.monotonic()
            self._finish = self._finish or manifest.finished
            self._compactor.tidy(running_epoch=epoch + 1)

    def _begin_epoch(self, epoch: int) -> None:
        self._commit_ready()
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
        base = self._compactor.replace(manifest)
        if base is not manifest:
            self._coordinator.sealed = base
        self._sealed.append(base)
        for description in descriptions:
            for name, count in description.counters.items():
                self._counters[name] = self._counters.get(name, 0) + count

    def _on_message(self, sender: bytes, kind: str, body: dict[str, Any]) -> list[Reply]:
        with self._lock:
            match kind:
                case "hello":
                    place = (body["stage"], body["index"])
                    if body["query"] == self._coordinator.query:
                        self._workers.began(sender, body)
                    self.placements.append((body["epoch"], *place, body["daemon"], body["pid"]))
                    before = self._coordinator.token
                    replies = self._guarded(sender, self._coordinator.hello, body)
                    if self.plan.eager and self._coordinator.token != before:
                        self._epoch_at_s = None  # the new epoch begins when its sources are let go
                    return replies
                case "loaded":
                    replies = self._coordinator.loaded(sender, body)
                    if replies and self.plan.eager:
                        self._epoch_began()
                    return replies
                case "desc":
                    return self._guarded(sender, self._coordinator.described, body)
                case "report" if body["token"] != str(self._coordinator.token):
                    return [(sender, "fenced", {"why": "a newer attempt has begun"})]
                case "report":
                    heard = Heard.of(body)
                    self._hearing.take(heard)
                    self._note_engines(heard)
                case "failed" if body["query"] == self._coordinator.query:
                    self._failures.append(body)
                case "rows":
                    node = self.plan.graph.by_name.get(body["step"])
                    if isinstance(node, SinkNode) and isinstance(node.sink, ConsoleSink):
                        node.sink.show(body["step"], body["rows"])
            return []

    def _note_engines(self, heard: Heard) -> None:
        """Journal which hash engine each subtask of a bounded reduce uses, whenever that changes."""
        for step, (engine, reason) in heard.engines.items():
            place = (step, heard.index)
            if self._engines.get(place) != engine:
                self._engines[place] = engine
                detail = f"step {step!r}, subtask {heard.index}: {engine} ({reason})"
                self._events.append(Event(time.time(), "engine", detail))
                _log.info("engine: %s", detail)

    def _on_lost(self, sender: bytes) -> None:
        """A worker gives no sign of life: the attempt is over, unless its part in it is."""
        with self._lock:
            failure = self._workers.lost(sender, self._coordinator)
            if failure is not None:
                self._failures.append(failure)

    def _guarded(self, sender: bytes, handle: Callable[..., list[Reply]], body: dict[str, Any]) -> list[Reply]:
        """What the coordinator replies; if it refuses, the attempt is over and its workers are told why."""
        try:
            return handle(sender, body)
        except HeadraceError as error:
            text = str(error)
            self._failures.append(
                {"kind": type(error).__name__, "detail": [text], "text": text, "stage": -1, "index": -1}
            )
            senders = {sender, *(member.sender for member in self._coordinator.members.values())}
            return [(to, "fenced", {"why": text}) for to in senders]

    def _epoch_began(self) -> None:
        now = time.monotonic()
        if self._last_seal_s is not None:
            self.gaps_s.append(now - self._last_seal_s)
        if self._state != "running":
            self._state = "running"
        self._began_s = min(self._began_s, now)
        self._epoch_at_s = now

    def _reconsider_epoch(self) -> None:
        """After each gap, where the epochs' length is ours to choose."""
        gaps_s = tuple(self.gaps_s)
        if len(gaps_s) > self._gaps_considered and is_automatic(self.plan):
            self._gaps_considered = len(gaps_s)
            length = next_length(self.plan, self._epoch_length, gaps_s)
            if length is not None:
                self._set_epoch(length)

    def _set_epoch(self, length: EpochLength) -> None:
        """How long epochs last from now on, the running one included."""
        self._epoch_length = length
        self._decided("epoch", length.sentence)

    def _give_up(self, failure: Failure, epoch: int, attempts: int) -> None:
        self._failure = failure.error
        if not failure.final and attempts >= self.plan.settings.max_attempts:
            what = f"epoch {epoch} failed" if epoch >= 0 else "the query failed to start"
            self._failure = RunFailedError(f"{what} {attempts} times, so the job was stopped: {failure.error}")
            self._failure.__cause__ = failure.error
        self._state = "failed"
        self._note("failed", failure.summary)

    def _decided(self, what: str, sentence: str) -> None:
        self._events.append(Event(time.time(), what, sentence))
        _log.info("%s", sentence)

    def _note(self, what: str, detail: str) -> None:
        self._events.append(Event(time.time(), what, detail))
        _log.warning("%s: %s", what, detail)

    def _quietly(self, action: Any) -> None:
        """Stopping a query that failed may fail too; what matters has been noted."""
        try:
            action()
        except Exception as error:
            _log.debug("while stopping: %s", error)

    def _clean_up(self) -> None:
        self._quietly(self._commit_ready)
        self._compactor.close()
        if self._controller is not None:
            self._controller.close()
        self._server.close()
        self._versions.close()
        if self._own_session:
            self._quietly(self._session.stop)

    def forget(self) -> None:
        """Remove a temporary checkpoint."""
        if self._temporary:
            shutil.rmtree(self.plan.checkpoint, ignore_errors=True)


def temporary_checkpoint() -> Path:
    return Path(tempfile.mkdtemp(prefix="headrace-"))
