"""The driver as a pure machine: events in, instructions out; no thread, no clock, no disk.

OPEN   The log is read and an OPEN entry appended: from then on older drivers are fenced. What was logged and not
       published is published.
START  A query is started; every subtask says HELLO. When all have, an attempt begins at the newest cut of the log: each
       gets its PLAN, loads, says LOADED. When all have, sources GO.
CUT    Every ``commit`` all are asked whether their queues are short. When they are, or after a while, sources are ordered to
       make a cut. Subtasks say ALIGNED, then DESC when their part is durable. When all have, the audit holds and the entry
       is in the log, the cut has happened: LOGGED, and it is published.
END    A cut with ``end`` is the last of its batch: the run is over, the next batch follows, or another query.

Stage by stage (micro-batch, batch) there is one cut, at the end of each batch, and Spark's job is the barrier. Only a run
that is to stop orders it, so that sources do not read on.
A failure, whoever's, ends the attempt; the next one goes on from the newest cut of the log.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec.structs

from headrace.driver.failures import Failure, understand
from headrace.driver.protocol.appending import LogEvent
from headrace.driver.protocol.cutting import CutUnderWay
from headrace.driver.protocol.events import (
    BatchAnswer,
    BatchBegins,
    BatchEndAsked,
    BatchWorked,
    Began,
    Collected,
    CutHappened,
    Discard,
    EndBatch,
    Event,
    Finish,
    Heard,
    Instruction,
    LaidOut,
    LeavingGiven,
    LogRead,
    LogUnreadable,
    Lost,
    Mended,
    MovesAsked,
    NumberedCut,
    OrdersGiven,
    Published,
    PublishFailed,
    QueryEnded,
    RescaleAsked,
    RestartAsked,
    Rewritten,
    Say,
    ScheduleGiven,
    Settled,
    StartQuery,
    StopAsked,
    Tick,
)
from headrace.driver.protocol.moving import Moving
from headrace.driver.protocol.ordering import CROWDED, Ordering
from headrace.driver.protocol.publications import Publications, Settling
from headrace.driver.protocol.retries import Retries
from headrace.driver.status import State
from headrace.errors import FencedError, HeadraceError
from headrace.runtime.messages import Logged
from headrace.runtime.plan import JobPlan
from headrace.state.durable.editions import EditionRead
from headrace.state.durable.versionlog import Opened
from headrace.tokens import Attempt

_UNFINISHED_S = 30.0
"""How long the end of a run waits for its sinks, or its checkpoint; what they have not taken by then, the next start
sees to.
"""
_FENCED = "another driver has taken over checkpoint {}: this one may decide nothing any more, and stops"


class Machine(Ordering):
    """One driver of one run."""

    def __init__(
        self, plan: JobPlan, opened: Callable[[int], Opened], *, seconds: float | None = None, wall_s: float = 0.0,
        more_copies: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(plan, wall_s)
        self.members.more_copies = more_copies
        self._opened, self._seconds = opened, seconds
        self.retries, self.settling = Retries(plan.settings.give_up_s), Settling()
        self.logged_cuts = 0
        self.finished = False
        self._waiting_batch: BatchBegins | None = None
        self._looked = False
        self._stop_s: float | None = None

    @property
    def state(self) -> State:
        """As users are told."""
        if self.phase in ("running", "ended") or (self.phase == "loading" and not self.plan.eager):
            return "running"
        return "restarting" if self._began_s is not None else "starting"

    def start(self, now_s: float) -> list[Instruction]:
        self.retries.progress(now_s)
        return self.log.read()

    def on(self, event: Event, now_s: float) -> list[Instruction]:
        """What to do now that this has happened."""
        if self.phase == "over":
            return self.publications.on(event, now_s) if isinstance(event, (Published, PublishFailed)) else []
        before = self.phase
        out = [*self._take(event, now_s), *self._advance(now_s)]
        if self.phase == "stopping" != before and not self._leaving:
            unnoticed_s = self.plan.settings.lease_s if isinstance(event, Lost) else 0.0
            self.recovering.failed(now_s - unnoticed_s)
        return out

    def _take(self, event: Event, now_s: float) -> list[Instruction]:
        match event:
            case LogRead():
                return self._log_read(event) if self.log.take_read() else []
            case Published() | PublishFailed():
                return self._publishing(event, now_s)
            case Settled():
                return self.settling.on(event, now_s)
            case Heard(sender, message):
                return self.hear(sender, message, now_s)
            case Lost(sender):
                return self._lose(sender)
            case QueryEnded():
                return self._query_ended(event, now_s)
            case EditionRead():
                return self._edition_read(event, now_s)
            case Rewritten() | Collected() | Mended():
                return self.upkeep.on(event, now_s)
            case LaidOut(plan):
                self.plan = self.members.plan = plan
                self.members.tables, self.moving = [], Moving.of(plan)
                self.hearing.laid_out(plan.layout)
            case RescaleAsked(stage, subtasks):
                self.pinned[stage] = subtasks
                return self.give_orders(self.orders)
            case OrdersGiven(orders):
                return self.give_orders(orders)
            case LeavingGiven(executors):
                self.members.leaving = executors
            case ScheduleGiven(schedule):
                return self.give_orders(msgspec.structs.replace(self.orders, schedule=schedule))
            case BatchBegins() | BatchWorked():
                return self._batch(event, now_s)
            case StopAsked():
                self.stopping = True
            case RestartAsked(why):
                return self._change("query", why)
            case BatchEndAsked(why):
                return self._change("batch", why)
            case MovesAsked(stage, table, why) if stage in self.moving.stages and self.members.fits(stage, table):
                self.moving.want(stage, table)
                return [Say("move", why)]
            case Tick() | MovesAsked():
                pass
            case LogUnreadable(_, error) if error is not None:
                self.log.give_up()
                return self._fail(Failure(error, final=True))
            case _:
                return self._log_event(event, now_s)
        return []

    # The log.

    def _log_read(self, read: LogRead) -> list[Instruction]:
        """Open the log right behind what was read, the base included."""
        self.log.number = read.newest
        self.base = read.cuts[-1] if read.cuts else None
        self.publications = Publications(read.published)
        for cut in read.cuts:
            if cut.number > read.published:
                self.publications.add(cut)
        self.editions.begin([cut.manifest for cut in read.cuts[-2:]])
        return self.log.append(self._opened(read.newest + 1))

    def _log_event(self, event: LogEvent, now_s: float) -> list[Instruction]:
        out, outcome = self.log.on(event, now_s)
        if outcome == "fenced" or (outcome == "taken" and self.phase != "opening"):
            return [*out, *self._fail(Failure(FencedError(_FENCED.format(self.plan.checkpoint)), final=True))]
        if outcome == "taken":
            return [*out, *self.log.read()]
        if outcome is None and not out and self.log.trouble is not None:
            return self._say_once(f"the checkpoint cannot be used for now: {self.log.trouble}")
        if outcome == "looked":
            self._looked = True
        if outcome == "appended" and self.phase == "opening":
            self.generation = self.editions.generation = self.log.number
            self.phase, self._looked = "between", True
            return [*out, self._discard()]
        if outcome == "appended":
            return [*out, *self._logged(now_s)]
        return out

    def _logged(self, now_s: float) -> list[Instruction]:
        """The cut has happened, even if its attempt is over by now."""
        cut, manifest = self.cut, self._manifest
        assert cut is not None and manifest is not None
        self.base = NumberedCut(self.log.number, manifest)
        forgotten = self.editions.logged(manifest)
        self.cut = self._manifest = None
        self.publications.add(self.base)
        self.moving.see(list(cut.descriptions.values()))
        self.members.change(cut.tables)
        self.pace.logged(cut)
        self.logged_cuts += 1
        self.retries.progress(now_s)
        self.finished = manifest.exhausted
        happened = CutHappened(self.base, tuple(cut.descriptions.values()), 1e3 * (now_s - cut.ordered_s))
        out: list[Instruction] = [happened, *self._tell(self.members.senders(), Logged(cut.token))]
        out += self._recovered(cut.token.cut, now_s)
        if cut.end and self.phase in ("running", "loading"):
            self.phase = "ended"
            if not self.plan.eager:
                assert self.members.batch is not None
                out.append(BatchAnswer(self.members.batch, run=True))
        return [*out, *forgotten, *self.upkeep.after(self.base, cut.token.by, self.publications, now_s)]

    def _recovered(self, cut: int, now_s: float) -> list[Instruction]:
        """A failure may be over: whether in time, and what is to be otherwise the next time."""
        recovered, settings = self.recovering.logged(cut, now_s), self.plan.settings
        if recovered is None:
            return []
        told = [recovered.sentence()]
        within_s = self.recovering.interval_s
        if within_s is not None and self.plan.eager:
            was_s = self.pace.longest_s
            self.pace.keep_within(settings.commit_s, within_s)
            self.asking.put_off_s = min(2 * self.pace.commit_s, within_s - self.pace.commit_s)
            told += (
                [f"cuts are at most {within_s:.1f} s apart from now on"] if abs(within_s - was_s) > 0.1 * was_s else []
            )
            told += self.members.keep_more() if not recovered.in_time else []
        return [Say("recovery", "; ".join(told), loud=recovered.in_time is False)]

    def _discard(self) -> Discard:
        return Discard(
            Attempt(self.generation, self._attempts), frozenset(cut.manifest.token for cut in self.publications.waiting)
        )

    def _edition_read(self, event: EditionRead, now_s: float) -> list[Instruction]:
        """A table was read, or not: without any edition of it the job cannot begin."""
        out = self.editions.on(event, now_s)
        if event.error is not None and not self.editions.complete:
            return self._fail(Failure(event.error, final=True))
        return out

    def _publishing(self, event: Published | PublishFailed, now_s: float) -> list[Instruction]:
        out = self.publications.on(event, now_s)
        if isinstance(event, PublishFailed) and event.final:
            return [*out, *self._fail(Failure(event.error, final=True))]
        return out

    # Stage by stage.

    def _batch(self, event: BatchBegins | BatchWorked, now_s: float) -> list[Instruction]:
        if isinstance(event, BatchWorked):
            self._worked = event.batch == self.members.batch and self.cut is not None
            if self.cut is not None:
                self.cut.ordered_s = now_s
            return []
        done = self.base.manifest.batch if self.base is not None and event.known else None
        if done is not None and event.batch <= done:
            return [BatchAnswer(event.batch, run=False)]
        if self.phase not in ("joining", "ended") or self.stopping:
            return [BatchAnswer(event.batch, run=False)]
        if self.publications.crowded:
            self._waiting_batch = event
            return self._say_once(CROWDED)
        self._waits = False
        self.members.gather(event.batch)
        self._new_attempt()
        self.members.editions = self.editions.hold()
        self.cut = CutUnderWay(self._next_cut(), end=True, ordered_s=now_s, told_s=now_s)
        self._worked, self._known_batch = False, event.batch if event.known else None
        self.phase = "loading"
        self.recovering.began(now_s)
        return [Began(), BatchAnswer(event.batch, run=True)]

    # What is due without having been asked for.

    def _advance(self, now_s: float) -> list[Instruction]:
        if self._seconds is not None and self._began_s is not None and now_s - self._began_s >= self._seconds:
            self.stopping = True
        if self.stopping and self._stop_s is None:
            self._stop_s = now_s
        out = self._lose_patience(now_s) + self.log.due(now_s)
        if self.generation:  # before it has opened the log, sinks are another driver's
            out += self.publications.due(now_s) + self.editions.due(now_s)
        if self.cut is not None and not self.cut.logging:
            out += self._advance_cut(self.cut, now_s)
        out += self._watch(now_s)
        if self._waiting_batch is not None and not self.publications.crowded:
            waiting, self._waiting_batch = self._waiting_batch, None
            out += self._batch(waiting, now_s)
        match self.phase:
            case "running" if self.plan.eager:
                out += self._move(now_s) + self._order_cut(now_s)
            case "ended":
                out += self._after_end()
            case "joining" | "loading" if self.cut is None and (self.stopping or self._next == "query"):
                out += self._leave()
            case "stopping" if self._ended is not None and now_s >= self._quiet_s and not self.log.busy:
                out += self._bury(now_s)
            case "between" if not self.log.busy:
                out += self._begin_query(now_s)
            case "opening" if self.stopping and self.log.entry is None:
                out += self._finish("stopped")
        return out

    def _lose_patience(self, now_s: float) -> list[Instruction]:
        """A run that is to stop does not wait for ever for a checkpoint that is away."""
        if self._stop_s is None or now_s - self._stop_s < _UNFINISHED_S or self.log.trouble is None:
            return []
        self.log.give_up()
        return self._finish("stopped") if self.phase == "opening" else self._leave()

    def _after_end(self) -> list[Instruction]:
        """The last cut of a batch is logged: what comes next?"""
        if self.finished or self.stopping or self._next == "query":
            return self._leave()
        if self._next is not None or self.plan.eager:
            self._next = None
            self.phase, self._follows = "joining", True
            self.members.gather(-1)
            return [EndBatch()]
        return []

    def _bury(self, now_s: float) -> list[Instruction]:
        """A query is over, and the outcome of what it had described is known."""
        assert self._ended is not None
        failure = self._failure
        if failure is None and not self._leaving:
            failure = understand(self._failures, self._ended.error)
        self._ended = self._failure = self._next = self.cut = self._manifest = self.attempt = self._waiting_batch = None
        self._failures.clear()
        self.phase, self._looked, self._leaving, self._quiet_s = "between", False, False, now_s
        if failure is None or (self.finished and not failure.final):
            return []
        error = self.retries.hopeless(failure, now_s)
        if error is None and self.stopping:
            return [Say("stopped", f"{failure.summary}; stopped as of the last cut", loud=True)]
        if error is not None:
            return [Say("failed", failure.summary, loud=True), *self._finish("failed", error)]
        wait_s = self.retries.again(now_s)
        after = f" in {wait_s:g} s" if wait_s else ""
        return [Say("restart", f"{failure.summary}; going on from the last cut{after}", loud=True)]

    def _begin_query(self, now_s: float) -> list[Instruction]:
        """Between two queries: the run is over, or the next one starts, from a log that nobody else has written to."""
        if self.finished or self.stopping:
            if (self.publications.waiting or not self.settling.done) and now_s - self._quiet_s < _UNFINISHED_S:
                return [] if self.publications.waiting else self.settling.due(now_s)
            why = self.settling.trouble
            left = Say(
                "settle", f"a sink has not shown its last results, the next start will see to it: {why}", loud=True
            )
            return [*([left] if why is not None else []), *self._finish("finished" if self.finished else "stopped")]
        if now_s < self.retries.at_s or self.publications.crowded or not self.editions.complete:
            return []
        if not self._looked:
            return self.log.look()
        self._looked = False
        self.query += 1
        self._first_attempts.append(self._attempts + 1)
        self.phase, self._follows = "joining", False
        self.members.gather(-1)
        self._hellos.clear()
        self.hearing.forget()
        return [self._discard(), StartQuery(self.query)]

    def _finish(self, state: State, error: HeadraceError | None = None) -> list[Instruction]:
        """Leave the sinks with nothing half done, unless they are another driver's by now, or it is not known what is in
        the log.
        """
        self.phase = "over"
        ours = self.generation and self.log.entry is None and not isinstance(error, FencedError)
        return [*([self._discard()] if ours else []), Finish(state, error)]
