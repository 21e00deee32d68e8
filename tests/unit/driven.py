"""A driver's machine, with hands, a query and workers that do what a test lets them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

import headrace as hr
from headrace.config import Settings
from headrace.driver.planning import plan_job
from headrace.driver.protocol.events import (
    Append,
    Appended,
    AppendFailed,
    Collected,
    CollectGarbage,
    Compact,
    EntryRead,
    Event,
    Finish,
    Heard,
    Instruction,
    LogRead,
    LookUp,
    NewestSeen,
    NumberedCut,
    Publish,
    Published,
    QueryEnded,
    ReadEntry,
    ReadLog,
    Rewritten,
    Send,
    Settle,
    Settled,
    StopQuery,
    Tick,
)
from headrace.driver.protocol.machine import Machine
from headrace.measure.backlog import Backlog
from headrace.measure.report import Report
from headrace.runtime.messages import (
    CutAsked,
    CutOrdered,
    Described,
    Hello,
    Loaded,
    Place,
    Ready,
    Reported,
    ToDriver,
    ToWorker,
)
from headrace.runtime.plan import Description, JobPlan
from headrace.state.copies.nearest import NOTHING_LOADED
from headrace.state.durable.manifest import Manifest
from headrace.state.durable.versionlog import CutEntry, Entry, Opened
from headrace.testing import scripted
from headrace.tokens import Attempt, Token

Asked = TypeVar("Asked", bound=Instruction)
Told = TypeVar("Told", bound=ToWorker)


def counting(parallelism: int = 1, **settings: Any) -> JobPlan:
    """A source, a shuffle, and a count that a sink shows."""
    job = hr.Job("job")
    numbers = job.source("s", scripted([{"k": 1}], [{"k": 2}], [{"k": 3}]))
    numbers.key_by("k").reduce(name="n", n=hr.count()).sink("out", hr.callback(print))
    return plan_job(job, Path("/nowhere/at/all"), Settings.of(parallelism=parallelism, **settings))


def opened(number: int, pid: int = 1) -> Opened:
    return Opened(number, "host", pid, number)


def logged_cuts(*tokens: Token) -> dict[int, Entry]:
    """A log that another driver has opened, and these cuts in it."""
    entries: dict[int, Entry] = {1: opened(1, pid=99)}
    base: Token | None = None
    for token in tokens:
        entries[len(entries) + 1] = CutEntry(Manifest(token, base))
        base = token
    return entries


def sender(place: Place) -> bytes:
    return f"{place[0]}-{place[1]}".encode()


def nothing_done(place: Place, token: Token) -> Description:
    return Description(
        *place,
        token,
        (),
        {},
        {},
        {},
        {},
        {},
        (),
        {},
        exhausted=False,
        aligned_ms=1.0,
        worked_ms=1.0,
        written_bytes=0,
        reached={},
    )


class Driven:
    """``tell`` gives what the machine asked for, answers of the hands included.

    Hands do at once what they are asked for, but for kinds of instructions that are ``held``; then the test answers.
    Workers are ready for a cut whenever they are asked, but for those in ``busy``. ``log`` is the version log, ``published`` are the cuts that were, ``asked`` is all there was.
    """

    def __init__(
        self, plan: JobPlan | None = None, *, log: dict[int, Entry] | None = None, published: int = 0,
        held: Iterable[type] = (), seconds: float | None = None, now_s: float = 100.0,
    ) -> None:  # fmt: skip
        self.plan = plan if plan is not None else counting()
        self.machine = Machine(self.plan, opened, seconds=seconds)
        self.log: dict[int, Entry] = dict(log or {})
        self.now_s, self.held, self._mark = now_s, set(held), published
        self.published: list[int] = []
        self.busy: set[Place] = set()
        self.asked: list[Instruction] = []
        self._do(self.machine.start(now_s))

    @property
    def places(self) -> list[Place]:
        stages = self.plan.layout.stages
        return [(stage.index, index) for stage in stages for index in range(stage.subtasks)]

    @property
    def attempt(self) -> Attempt:
        assert self.machine.attempt is not None
        return self.machine.attempt

    @property
    def token(self) -> Token:
        """Of the cut under way."""
        assert self.machine.cut is not None
        return self.machine.cut.token

    @property
    def finish(self) -> Finish | None:
        return next(iter(self.all(Finish)), None)

    @property
    def cuts(self) -> list[Token]:
        """Those in the log."""
        return [entry.manifest.token for entry in self.log.values() if isinstance(entry, CutEntry)]

    def all(self, kind: type[Asked]) -> list[Asked]:
        return [one for one in self.asked if isinstance(one, kind)]

    def tell(self, *events: Event) -> list[Instruction]:
        before = len(self.asked)
        for event in events:
            self._do(self.machine.on(event, self.now_s))
        return self.asked[before:]

    def hear(self, place: Place, message: ToDriver, *, by: bytes | None = None) -> list[Instruction]:
        return self.tell(Heard(by if by is not None else sender(place), message))

    def later(self, seconds: float) -> list[Instruction]:
        """So much time passes; the loop turns many times meanwhile."""
        self.now_s += seconds
        return self.tell(Tick(), Tick(), Tick())

    # What workers do.

    def hello(self, place: Place, *, batch: int = 0, query: int | None = None, **more: Any) -> list[Instruction]:
        said = Hello(*place, query if query is not None else self.machine.query, batch, None, "here", 1, 2, None, None)
        return self.hear(place, replace(said, **more))

    def join(self, batch: int = 0) -> list[Instruction]:
        return [one for place in self.places for one in self.hello(place, batch=batch)]

    def load(self) -> list[Instruction]:
        return [one for place in self.places for one in self.hear(place, Loaded(*place, self.attempt, NOTHING_LOADED))]

    def run(self, batch: int = 0) -> Driven:
        """Until sources are let go."""
        self.join(batch)
        self.load()
        assert self.machine.phase == "running"
        return self

    def describe(self, place: Place, token: Token | None = None, **more: Any) -> list[Instruction]:
        description = nothing_done(place, token if token is not None else self.token)
        return self.hear(place, Described(replace(description, **more)))

    def describe_all(self, **more: Any) -> list[Instruction]:
        token = self.token
        return [one for place in self.places for one in self.describe(place, token, **more)]

    def cut(self, **more: Any) -> list[Instruction]:
        """The next cut, from its order on, as far as the hands let it."""
        if self.machine.cut is None:
            self.now_s = max(self.now_s, self.machine.pace.due_s)
            self.tell(Tick())
        return self.describe_all(**more)

    def report(self, place: Place, *, exhausted: bool = False, **more: Any) -> list[Instruction]:
        idle = Backlog("direct", {}, 0, 0, 0.0, 0, 0.0, {})
        said = Reported(*place, self.attempt, 1, 0, 0.0, 0, exhausted, {}, (), Report("w", 0.0, 0, (), ()), idle, {})
        return self.hear(place, replace(said, **more))

    # What hands do.

    def _do(self, instructions: list[Instruction]) -> None:
        """Answers come when all has been done that was asked for together."""
        todo = deque(instructions)
        while todo:
            answers = []
            while todo:
                self.asked.append(instruction := todo.popleft())
                if type(instruction) not in self.held and (answer := self._answer(instruction)) is not None:
                    answers.append(answer)
            for answer in answers:
                todo += self.machine.on(answer, self.now_s)

    def _answer(self, instruction: Instruction) -> Event | None:
        match instruction:
            case ReadLog():
                return self.log_read()
            case Append(number, entry):
                taken = number in self.log
                self.log.setdefault(number, entry)
                return AppendFailed(number, "the number is taken") if taken else Appended(number)
            case ReadEntry(number):
                return EntryRead(number, self.log.get(number))
            case LookUp():
                return NewestSeen(max(self.log, default=0))
            case Publish(cut):
                self.published.append(cut.number)
                return Published(cut.number)
            case Settle():
                return Settled()
            case Compact():
                return Rewritten(())
            case CollectGarbage():
                return Collected()
            case StopQuery():
                return QueryEnded(self.machine.query)
            case Send(to, CutAsked(token=token)):
                return next((self.ready(p, token) for p in self.places if sender(p) == to and p not in self.busy), None)
        return None

    def ready(self, place: Place, token: Token | None = None) -> Heard:
        """A worker's answer about the cut that was asked about last."""
        token = token if token is not None else self.machine.asking.about
        assert token is not None
        return Heard(sender(place), Ready(*place, token))

    def log_read(self) -> LogRead:
        cuts = [
            NumberedCut(number, entry.manifest)
            for number, entry in sorted(self.log.items())
            if isinstance(entry, CutEntry)
        ]
        return LogRead(max(self.log, default=0), tuple(cuts), self._mark)


def sent(instructions: Iterable[Instruction], kind: type[Told]) -> dict[bytes, Told]:
    """To whom messages of a kind were sent, and which."""
    return {one.to: one.message for one in instructions if isinstance(one, Send) and isinstance(one.message, kind)}


def ordered(instructions: Iterable[Instruction]) -> dict[bytes, tuple[Token, bool]]:
    """Who was ordered to make a cut, which one, and whether it is a batch's last."""
    return {to: (order.token, order.end) for to, order in sent(instructions, CutOrdered).items()}


def kinds(instructions: Iterable[Instruction]) -> list[str]:
    """What was asked for, in order; messages by their own kind."""
    return [type(one.message if isinstance(one, Send) else one).__name__ for one in instructions]
