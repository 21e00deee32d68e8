"""A job's query on Spark: what the driver's loop starts and stops, and the thread that the loop runs in."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections import Counter, deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.actuate.ranks import Ranks
from headrace.channel.keeping.keeperclient import KeeperClient
from headrace.channel.server import ChannelServer
from headrace.connect.console import ConsoleSink
from headrace.control.balancing import BalancePolicy, Balancing, decide_balance
from headrace.driver.cutwatch import CutWatch
from headrace.driver.driverloop import DriverLoop
from headrace.driver.failures import translated
from headrace.driver.farcopies import CopyWatch, FarCopies
from headrace.driver.hands import Hands
from headrace.driver.identity import settle_identity
from headrace.driver.journal import Journal
from headrace.driver.origins import Origins
from headrace.driver.protocol.events import (
    CutHappened,
    Heard,
    LaidOut,
    LeavingGiven,
    Lost,
    MovesAsked,
    OrdersGiven,
    RestartAsked,
    StopAsked,
)
from headrace.driver.protocol.machine import Machine
from headrace.driver.publishing import claim_sinks
from headrace.driver.status import CutFigures, State
from headrace.driver.steering import Steering
from headrace.errors import HeadraceError
from headrace.graph.nodes import SinkNode
from headrace.graph.slots import widened_layout
from headrace.runtime.messages import Hello, Loaded, Reply, RowsShown, ToDriver
from headrace.runtime.orders import Orders
from headrace.runtime.plan import JobPlan
from headrace.spark.fleet import open_executors, warm_slots, with_backup
from headrace.spark.gaps import Gap, GapClock
from headrace.spark.queries import SparkQueries
from headrace.spark.session import check_slots
from headrace.state.durable.lock import CheckpointLock, wait_for_turn
from headrace.state.durable.storage import LocalStorage
from headrace.state.durable.tidying import TidyingAside
from headrace.state.durable.versionlog import Opened

_BALANCE = BalancePolicy()
_BEAT_S, _LOOK_S = 0.5, 0.1
_EXPECT_S = 2.0
"""How often it is looked at which copies there should be: they change with moves and restarts only."""
_LEASES = 2
"""A driver that gives no sign of life for so many leases is overtaken by its standby."""


class Supervisor:
    """Owns the query, the driver's loop and the control channel of one run.

    ``gaps`` are the stops so far, by their parts; ``placements`` says for each start of a subtask (query, stage, subtask,
    parent process, process), where a parent stands for an executor.
    """

    def __init__(
        self, plan: JobPlan, session: SparkSession, *, own_session: bool, temporary: bool, observe_only: bool = False,
        trace: Path | None = None, seconds: float | None = None, standby: bool = False,
    ) -> None:  # fmt: skip
        self._journal, self._observe_only, self._balanced_s = Journal(), observe_only, 0.0
        self._executors = open_executors(session, plan, self._journal, observe_only=observe_only)
        more_copies = plan.settings.backup is None
        plan = with_backup(self._executors.begin(plan), session.sparkContext.master)
        if plan.eager:
            check_slots(session, plan.layout.slots)
        self.plan, self._session = plan, session
        self._own_session, self._temporary = own_session, temporary
        self._storage = storage = LocalStorage(plan.checkpoint / "headrace")
        self._lock: CheckpointLock | None = None
        self._left = threading.Event()
        if not standby:
            self._take_over(CheckpointLock.take(plan.checkpoint))
        wall_s = time.time() - time.monotonic()
        self._machine = Machine(plan, opened, seconds=seconds, wall_s=wall_s, more_copies=more_copies)
        self._server = ChannelServer(
            _host(session), self._on_message, on_lost=lambda sender: self._loop.post(Lost(sender)),
            lease_s=plan.settings.lease_s,
        )  # fmt: skip
        address = self._server.address
        copies = FarCopies(address, lambda: self._machine.members.nodes)
        self._copy_watch, self._expected_s = CopyWatch(lambda node: KeeperClient(node, address)), 0.0
        self._gap_clock = GapClock()
        self._queries = SparkQueries(
            session, self._server, self._lay_out, lambda event: self._loop.post(event), self._gap_clock
        )
        self._loop = DriverLoop(
            self._machine, lambda post: Hands(plan, storage, post, [copies], TidyingAside(storage.root)),
            self._queries, self._journal, each_turn=self._each_turn, on_began=self._on_began, on_cut=self._on_cut,
        )  # fmt: skip
        self._steering = Steering(plan, self.order, self._journal, observe_only=observe_only, trace=trace)
        self._balancing = Balancing()
        self._wider: dict[int, int] = {}
        self._origins = Origins()
        self._state: State | None = None
        self._failure: HeadraceError | None = None
        self._cuts: deque[CutFigures] = deque(maxlen=1000)
        self._cut_watch = CutWatch(plan.settings.cut_every_s)
        self._done = threading.Event()
        self.gaps: deque[Gap] = deque(maxlen=4096)
        self.placements: deque[tuple[int, int, int, int, int]] = deque(maxlen=4096)
        self._began_s, self._ended_s = float("inf"), 0.0
        self._thread = threading.Thread(target=self._supervise, name="headrace-supervisor", daemon=True)

    def order(self, orders: Orders) -> None:
        """Tell every subtask what to do from now on, and those that begin later when they start."""
        self._loop.post(OrdersGiven(orders))

    def _ask_to_stop(self) -> None:
        """End the run after one more cut."""
        self._left.set()
        self._loop.post(StopAsked())

    def _take_over(self, lock: CheckpointLock) -> None:
        """The checkpoint is ours, if the job fits it."""
        try:
            settle_identity(self._storage, self.plan, self._journal.warn)
            claim_sinks(self.plan, self._storage)
            self._storage.clear_unfinished()
        except BaseException:
            lock.close()
            raise
        self._lock = lock

    def _stand_by(self) -> bool:
        """With the session and its workers warm, wait until the driver before us is gone; False if a stop came first."""
        plan, self._state = self.plan, "standby"
        warm_slots(self._session, plan.layout.slots).join()
        self._journal.say("standby", f"ready to take over checkpoint {plan.checkpoint}")
        lock = wait_for_turn(plan.checkpoint, _LEASES * plan.settings.lease_s, lambda: not self._left.wait(_LOOK_S))
        if lock is None:
            return False
        self._journal.warn("standby", "the driver before is gone or hangs: taking over")
        self._take_over(lock)
        self._state = None
        return True

    def _supervise(self) -> None:
        try:
            if self._lock is None and not self._stand_by():
                self._state = "stopped"
                return
            threading.Thread(target=self._beat, name="headrace-beating", daemon=True).start()
            finish = self._loop.run()
            assert finish is not None
            self._failure, self._state = finish.error, finish.state
        except Exception as error:
            self._failure, self._state = translated(error), "failed"
        finally:
            self._state = self._state or "failed"
            self._loop.hands.close()
            closing = self._count, self._steering.close, self._copy_watch.close, self._server.close
            for close in (*closing, self._unlock, self._leave):
                self._loop.quietly(close)
            self._done.set()

    def _beat(self) -> None:
        """Signs of life for a standby, also while the loop starts or stops a query, or waits for executors."""
        while self._lock is not None and not self._done.wait(_BEAT_S):
            with suppress(OSError):  # it is closed, or its disk is away for a moment
                self._lock.beat()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def _count(self) -> None:
        self._executors.count(time.monotonic())

    def _leave(self) -> None:
        if self._own_session:
            self._session.stop()
        else:
            self._executors.give_back()

    def _lay_out(self) -> JobPlan:
        """Between two queries: go on with as many executors as are wanted, or as are left, and with wider stages if that
        was asked for.
        """
        plan = self._executors.laid_out(self.plan, self._steering.wanted(self.plan.layout))
        while self._wider:
            layout = widened_layout(plan.layout, *self._wider.popitem())
            plan = replace(plan, run=uuid.uuid4().hex, layout=layout)
        if plan is not self.plan:
            self.plan = self._loop.hands.plan = plan
            self._loop.tell(LaidOut(plan))
            self._steering.laid_out(plan, self._ranks())
        return plan

    # What the loop tells.

    def _each_turn(self, now_s: float) -> None:
        """Decide anew while an attempt runs."""
        if self._began_s < float("inf"):
            self._executors.count(now_s, self.plan.settings.report_s)
        if self._machine.phase == "running" and now_s - self._balanced_s >= self.plan.settings.report_s:
            self._balanced_s = now_s
            self._balance(time.time())
            members, slots = self._machine.members, self.plan.layout.slots
            if self.plan.eager and self._executors.should_spread(now_s, members.executors, slots):
                self._loop.post(RestartAsked("executors without subtasks are given some"))
        if self._machine.phase != "running" or not self._steering.due(now_s):
            return
        self._steering.turn(now_s, self._machine.hearing.unseen(), self._ranks())
        members, wanted = self._machine.members, self._steering.wanted(self.plan.layout)
        known = members.leaving == self._executors.leaving
        left = members.left(self._machine.moving.stages) if known else None
        self._executors.turn(time.time(), self.plan.layout, wanted, left)
        if self._executors.leaving != members.leaving:
            self._loop.post(LeavingGiven(self._executors.leaving))
        if self._executors.ready:
            self._loop.post(RestartAsked("other executors are ready"))

    def _balance(self, at_s: float) -> None:
        """Even out the loads of keyed steps, one at a time."""
        moving, tables = self._machine.moving, self._machine.members.tables
        for stage in sorted(moving.stages) if not moving.moves else ():
            step, loads = self.plan.layout.stages[stage].steps[0], moving.loads.get(stage, Counter())
            self._balancing = decide_balance(_BALANCE, self._balancing, at_s, stage, step, tables[stage], loads)
            decision, table = self._balancing.decision, self._balancing.table
            if decision is not None and self._observe_only:
                decision, table = replace(decision, withheld="observing only"), None
            if decision is not None:
                self._journal.say(decision.action, decision.sentence())
            if table is not None:
                self._loop.post(MovesAsked(stage, table, f"{step}: loads are evened out"))
                return

    def _on_began(self) -> None:
        now_s, loaded, gap = time.monotonic(), self._origins.sentence(), self._gap_clock.began(time.monotonic())
        first = self._began_s == float("inf")
        self._began_s = min(self._began_s, now_s)
        if not self.plan.eager and (gap is None or gap.between_batches):
            return  # one batch after the other is no stop, and not worth a word
        if loaded is not None:
            self._journal.say("loaded", loaded)
        if gap is not None and not first:
            self.gaps.append(gap)
            self._journal.say("gap", gap.sentence())
            if gap.deliberate:
                self._executors.began(time.time(), gap.seconds)

    def _on_cut(self, happened: CutHappened) -> None:
        now_s = self._ended_s = time.monotonic()
        cut, described = happened.cut, happened.descriptions
        aligned_ms = max((d.aligned_ms for d in described), default=0.0)
        worked_ms = max((d.worked_ms for d in described), default=0.0)
        written_bytes = sum(d.written_bytes for d in described)
        figures = CutFigures(cut.manifest.token.cut, now_s, happened.took_ms, aligned_ms, worked_ms, written_bytes)
        self._cuts.append(figures)
        if self.plan.eager:
            for sentence in self._cut_watch.took(figures, self._machine.pace.interval_s):
                self._journal.say("cuts", sentence)
        if now_s - self._expected_s >= _EXPECT_S and not cut.manifest.end:
            self._expected_s = now_s
            self._copy_watch.expect(self._machine.members.keepers(cut.manifest.slices))
        if cut.manifest.end:
            self._gap_clock.mark("ordered", now_s - happened.took_ms / 1e3)
            self._gap_clock.mark("logged", now_s)
        self._machine.hearing.counts.log(cut.manifest.token.by, [description.counters for description in described])

    def _ranks(self) -> Ranks:
        return Ranks.of(self.plan, self._machine.orders, self._machine.members.tables)

    def _on_message(self, sender: bytes, message: ToDriver) -> list[Reply]:
        if isinstance(message, RowsShown):
            node = self.plan.graph.by_name.get(message.step)
            if isinstance(node, SinkNode) and isinstance(node.sink, ConsoleSink):
                node.sink.show(message.step, message.rows)
            return []
        if isinstance(message, (Hello, Loaded)):
            self._gap_clock.mark("hello" if isinstance(message, Hello) else "loaded", time.monotonic())
        if isinstance(message, Loaded):
            self._origins.take(message)
        if isinstance(message, Hello):
            self.placements.append((message.query, message.stage, message.index, message.daemon, message.pid))
        self._loop.post(Heard(sender, message))
        return []


def opened(number: int) -> Opened:
    """This process's OPEN entry."""
    return Opened(number, socket.gethostname(), os.getpid(), time.time_ns() // 1000)


def _host(session: SparkSession) -> str:
    if session.sparkContext.master.startswith("local"):
        return "127.0.0.1"
    return session.sparkContext.getConf().get("spark.driver.host", "127.0.0.1") or "127.0.0.1"
