"""One attempt after the other: who takes part, what subtasks say, and the cut under way."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Literal

import msgspec.structs

from headrace.control.recovering import Recovering
from headrace.driver.hearing import Hearing
from headrace.driver.protocol.asking import Asking
from headrace.driver.protocol.cutting import CutPace, CutUnderWay
from headrace.driver.protocol.events import Began, Instruction, Mend, NumberedCut, Say, Send
from headrace.driver.protocol.members import Members
from headrace.driver.protocol.moving import HandedOver, Moving
from headrace.driver.protocol.stillness import Stillness
from headrace.driver.protocol.tablereading import Editions
from headrace.errors import ProtocolError
from headrace.runtime.messages import (
    Adopted,
    Aligned,
    Described,
    Failed,
    Fenced,
    Go,
    GoOn,
    Hello,
    Loaded,
    Logged,
    Ordered,
    Place,
    Prepared,
    Ready,
    Reply,
    Reported,
    ToDriver,
    ToWorker,
)
from headrace.runtime.orders import NO_ORDERS, Orders
from headrace.runtime.plan import JobPlan
from headrace.tokens import Attempt, Token
from headrace.units import number_of

Phase = Literal["opening", "between", "joining", "loading", "running", "ended", "stopping", "over"]
_CANCELLED = "{} slices could not be loaded in time by those who were to have them: they stay where they are"


class Attempts:
    """The half of the driver's machine that talks with subtasks.

    ``base`` is the newest cut of the log, the version that attempts start from. ``cut`` is the one under way. Of each query
    the number is known that its first attempt would have. ``pinned`` are the active subtasks of stages that somebody has
    chosen by hand. ``editions`` are the tables of lookups.
    """

    def __init__(self, plan: JobPlan) -> None:
        self.plan = plan
        self.phase: Phase = "opening"
        self.moving = Moving.of(plan)
        settings = plan.settings
        self.members, self.hearing = Members(plan, settings.backup or 0), Hearing(plan.layout, settings.report_s)
        self.pace = CutPace(settings.cut_every_s, settings.longest_cut_s)
        self.asking = Asking(settings.put_off_s)
        self.still, self.editions = Stillness(), Editions.of(plan)
        self.recovering = Recovering(settings.recovery_s)
        self.base: NumberedCut | None = None
        self.attempt: Attempt | None = None
        self.cut: CutUnderWay | None = None
        self.orders, self.pinned = NO_ORDERS, dict[int, int]()
        self.generation = self.query = 0
        self._attempts = 0
        self._first_attempts: list[int] = []
        self._hellos: dict[bytes, Hello] = {}
        self._failures: list[Failed] = []
        self.handed_over: deque[HandedOver] = deque(maxlen=1000)
        self._began_s: float | None = None
        self._batch_s = 0.0

    def hear(self, sender: bytes, message: ToDriver, now_s: float) -> list[Instruction]:
        match message:
            case Hello():
                return self._hello(sender, message, now_s)
            case Loaded():
                return self._loaded(sender, message, now_s)
            case Ready():
                self.asking.answered(message.token, message.place)
            case Aligned(token=token) if self.cut is not None and token == self.cut.token:
                self._progress(self.cut.align(message.place))
                if len(self.cut.aligned) == len(self.members.by_place) and not self.cut.gone_on:
                    self.cut.gone_on = True
                    return self._tell(self.members.senders(stage=0), GoOn(token))
            case Described():
                return self._described(sender, message)
            case Prepared() if message.attempt == self.attempt:
                self.moving.ready(message.place, message.version)
            case Adopted():
                return self._adopted(message, now_s)
            case Reported() if message.attempt != self.attempt or not self.members.has_place(message.place):
                return self._supersede(sender, message.attempt)
            case Reported():
                self.hearing.take(message)
                self._progress(self.cut is not None and self.cut.is_worked_for(message))
            case Failed() if message.query == self.query:
                self._failures.append(message)
        return []

    def _hello(self, sender: bytes, hello: Hello, now_s: float) -> list[Instruction]:
        if hello.query != self.query or self.phase in ("between", "stopping"):
            return self._fence(sender, hello.query, "this worker belongs to a query that was replaced")
        if not self.members.has_place(hello.place):
            return self._fence(sender, hello.query, f"the job has no subtask {hello.index} of stage {hello.stage}")
        self._hellos[sender] = hello
        if not self.plan.eager:
            return self._hello_stage_by_stage(sender, hello)
        if self.phase in ("loading", "running") or self.cut is not None:
            return self._fail_protocol(f"subtask {hello.place} began anew within its attempt")
        if hello.batch != self.members.batch:
            self.members.gather(hello.batch)
            self.phase = "joining"
        self.members.join(sender, hello)
        self._progress()
        if not self.members.complete:
            return []
        self.phase = "loading"
        self.members.editions = self.editions.hold()
        return self._sent(self.members.plan_all(self._new_attempt(), *self._from(), self.orders, self.moving.stages))

    def _hello_stage_by_stage(self, sender: bytes, hello: Hello) -> list[Instruction]:
        if self.phase != "loading" or hello.batch != self.members.batch or self.attempt is None:
            return self._fence(sender, hello.query, f"batch {hello.batch} is not running")
        self.members.join(sender, hello)
        return self._sent([self.members.plan_one(hello.place, self.attempt, *self._from(), self.orders)])

    def _loaded(self, sender: bytes, loaded: Loaded, now_s: float) -> list[Instruction]:
        if loaded.attempt != self.attempt or not self.members.take_loaded(sender, loaded):
            return self._supersede(sender, loaded.attempt)
        if not self.plan.eager:
            self._began_s = self._began_s if self._began_s is not None else now_s
            return self._tell([sender], Go(loaded.attempt))
        mend: list[Instruction] = [Mend(loaded.loading.broken)] if loaded.loading.broken else []
        self._progress()
        if self.phase != "loading" or not self.members.all_loaded:
            return mend
        self.phase, self._batch_s = "running", now_s
        self._began_s = self._began_s if self._began_s is not None else now_s
        self.recovering.began(now_s)
        self.pace.begin(now_s)
        return [*mend, Began(), *self._tell(self.members.senders(), Go(loaded.attempt))]

    def _described(self, sender: bytes, described: Described) -> list[Instruction]:
        token, place = described.token, described.place
        if self.base is not None and token == self.base.manifest.token:
            return self._tell([sender], Logged(token))  # a repeat: what is logged stays as it is
        member = self.members.by_place.get(place)
        if token.by != self.attempt or member is None or member.sender != sender:
            return self._supersede(sender, token.by)
        if self.cut is not None and token == self.cut.token:
            self._progress(self.cut.describe(place, described.description))
            self.moving.describe(described.description)
        return []

    def _progress(self, is_new: bool = True) -> None:
        """Something has come that was waited for."""
        if is_new:
            self.still.progress()

    def _adopted(self, adopted: Adopted, now_s: float) -> list[Instruction]:
        self._progress(adopted.token == self.moving.token)
        handed = self.moving.adopt(adopted.place, adopted.token, adopted.held_ms, now_s)
        if handed is None:
            return []
        self.handed_over.append(handed)
        slices = number_of(handed.slices, "slice")
        return [Say("moved", f"{slices} changed hands at cut {handed.cut}; records waited {handed.held_ms:.0f} ms")]

    def _supersede(self, sender: bytes, attempt: Attempt) -> list[Instruction]:
        """What was said belongs to another attempt. Who said it may be at work for this one by now, or about to say
        HELLO: processes and their channels are used again.
        """
        if self.phase not in ("loading", "running") or self.members.of(sender) is not None:
            return []
        query = bisect_right(self._first_attempts, attempt.number)
        return self._fence(sender, query, "a newer attempt has begun")

    def _fence(self, sender: bytes, query: int, why: str) -> list[Instruction]:
        """Tell who works for a query to give up; who works for another by now does not hear it."""
        return self._tell([sender], Fenced(query, why))

    def _move(self, now_s: float) -> list[Instruction]:
        """Slices that are to change hands: those of a stage that grows or shrinks, and what was asked for."""
        assert self.attempt is not None
        moving = self.moving
        out: list[Instruction] = [
            Say("hold", _CANCELLED.format(len(gone))) for gone in [moving.given_up(now_s)] if gone
        ]
        try:
            told: list[tuple[Place, ToWorker]] = [*moving.finals(self.base, now_s)]
        except ProtocolError as error:
            return self._fail_protocol(str(error))
        if self.cut is None and not moving.moves:
            for stage in moving.stages:
                table = self.members.resized(stage, self.orders)
                if table != self.members.tables[stage]:
                    moving.want(stage, table)
            moving.begin(self.members.tables, self.base, self.attempt, now_s)
        told += moving.prepares(now_s)
        return out + [Send(self.members.by_place[place].sender, message) for place, message in told]

    def give_orders(self, orders: Orders) -> list[Instruction]:
        """For subtasks that run, and those that begin later; a schedule once ordered stays until another is."""
        active, schedule = {**orders.active, **self.pinned}, orders.schedule or self.orders.schedule
        self.orders = msgspec.structs.replace(orders, active=active, schedule=schedule)
        if self.attempt is None:
            return []
        return self._tell(self.members.senders(), Ordered(self.attempt, self.orders))

    def _new_attempt(self) -> Attempt:
        self._attempts += 1
        self.moving.forget()
        self.attempt = Attempt(self.generation, self._attempts)
        return self.attempt

    def _from(self) -> tuple[Token | None, int]:
        return (self.base.manifest.token, self.base.number) if self.base is not None else (None, 0)

    def _next_cut(self) -> Token:
        """The cut that follows the base."""
        assert self.attempt is not None
        return self.attempt.cut(self.base.manifest.token.cut + 1 if self.base is not None else 1)

    def _tell(self, senders: Sequence[bytes], message: ToWorker) -> list[Instruction]:
        return [Send(sender, message) for sender in senders]

    def _sent(self, replies: Sequence[Reply]) -> list[Instruction]:
        return [Send(sender, message) for sender, message in replies]

    def _fail_protocol(self, what: str) -> list[Instruction]:
        """A rule was broken that must not be: the attempt is over."""
        raise NotImplementedError
