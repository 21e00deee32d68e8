"""The loop around the driver's machine: whatever happens is posted, and what the machine answers is done.

The same loop runs jobs on Spark and in one process; they differ in their queries.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from headrace.driver.failures import translated
from headrace.driver.hands import Hands
from headrace.driver.journal import Journal
from headrace.driver.protocol.events import (
    BatchAnswer,
    Began,
    CutHappened,
    EndBatch,
    Event,
    Finish,
    Heard,
    Instruction,
    QueryEnded,
    Say,
    Send,
    StartQuery,
    StopQuery,
    Tick,
)
from headrace.driver.protocol.machine import Machine
from headrace.runtime.messages import Hello, Reported, ToWorker
from headrace.runtime.wire.mailbox import Mailbox

_log = logging.getLogger("headrace.driver")
_TURN_S = 0.02


class Queries(Protocol):
    """How a job's stages are run: by Spark, or by threads. All are called by the loop's thread."""

    def start(self, query: int) -> None:
        """Start the query; whatever it raises ends it."""
        ...

    def ended(self) -> QueryEnded | None:
        """Whether the running query is over by itself."""
        ...

    def end_batch(self) -> None:
        """Let the running batch end, and the next one begin."""
        ...

    def stop(self, hung: tuple[Hello, ...]) -> None:
        """Stop the query, if there is one, and kill what would not notice."""
        ...

    def answer(self, batch: int, run: bool) -> None:
        """To who asked whether a batch may begin, or may be committed."""
        ...

    def send(self, to: bytes, message: ToWorker) -> None: ...


class DriverLoop:
    """``each_turn`` is called between events, ``on_began`` and ``on_cut`` when sources were let go and a cut was logged."""

    def __init__(
        self, machine: Machine, hands: Callable[[Callable[[Event], None]], Hands], queries: Queries, journal: Journal,
        *, each_turn: Callable[[float], None] = lambda now_s: None, on_began: Callable[[], None] = lambda: None,
        on_cut: Callable[[CutHappened], None] = lambda cut: None,
    ) -> None:  # fmt: skip
        self.machine, self._queries, self._journal = machine, queries, journal
        self._events: Mailbox[Event] = Mailbox()
        self.hands = hands(self.post)
        self._each_turn, self._on_began, self._on_cut = each_turn, on_began, on_cut
        self._running = False

    def post(self, event: Event) -> None:
        """Tell the machine; from any thread."""
        self._events.put(event)

    def tell(self, event: Event) -> None:
        """Tell the machine at once; from the loop's own thread, while it carries out an instruction."""
        self._do(self.machine.on(event, time.monotonic()))

    def run(self, until: Callable[[], bool] = lambda: False) -> Finish | None:
        """Turn until the run is over, or until something holds after a turn (then None)."""
        try:
            finish = self._do(self.machine.start(time.monotonic())) if not self._running else None
            self._running = True
            while finish is None:
                if until():
                    return None
                finish = self._turn()
        except Exception as error:
            _log.debug("the driver's loop broke", exc_info=True)
            finish = Finish("failed", translated(error))
        self.quietly(lambda: self._queries.stop(()))
        self.hands.close()
        return finish

    def _turn(self) -> Finish | None:
        try:
            event: Event = self._events.get(_TURN_S)
        except IndexError:
            event = Tick()
        if isinstance(event, Heard) and isinstance(event.message, Reported):
            self._journal.note_engines(event.message)
        now_s = time.monotonic()
        finish = self._do(self.machine.on(event, now_s))
        if finish is None and (ended := self._queries.ended()) is not None:
            self.post(ended)
        self._each_turn(now_s)
        return finish

    def _do(self, instructions: list[Instruction]) -> Finish | None:
        for instruction in instructions:
            if self.hands.do(instruction):
                continue
            match instruction:
                case Send(to, message):
                    self._queries.send(to, message)
                case Say(what, detail, loud):
                    (self._journal.warn if loud else self._journal.say)(what, detail)
                case StartQuery(query):
                    self._start(query)
                case StopQuery(hung):
                    self.quietly(lambda hung=hung: self._queries.stop(hung))  # type: ignore[misc]
                    self.post(QueryEnded(self.machine.query))
                case EndBatch():
                    self._queries.end_batch()
                case BatchAnswer(batch, run):
                    self._queries.answer(batch, run)
                case Began():
                    self._on_began()
                case CutHappened(descriptions=described):
                    counters = sum((Counter(description.counters) for description in described), Counter[str]())
                    self._journal.note_late(counters, self.machine.plan.graph)
                    self._on_cut(instruction)
                case Finish():
                    return instruction
        return None

    def _start(self, query: int) -> None:
        try:
            self._queries.start(query)
        except Exception as error:
            self.quietly(lambda: self._queries.stop(()))
            self.post(QueryEnded(query, error))

    def quietly(self, action: Callable[[], object]) -> None:
        """Stopping a query that failed may fail too; what matters has been noted."""
        try:
            action()
        except Exception as error:
            _log.debug("while stopping: %s", error)
