"""What was decided and what happened in a run, in words and in the log."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from threading import Lock

from headrace.driver.status import Event
from headrace.graph.nodes import Graph
from headrace.runtime.messages import Reported
from headrace.units import number_of

_log = logging.getLogger("headrace.journal")
REMEMBERED = 10_000
"""Events that a journal keeps, about 5 MB: hours of a controller that decides something every second."""


class Journal:
    """The last events of a run. Older ones are dropped, the oldest first; the log has had them all.

    Any thread may write and read.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._events: deque[Event] = deque(maxlen=remembered)
        self._lock = Lock()
        self._count = 0
        self._engines: dict[tuple[str, int], str] = {}
        self._late: dict[str, int] = {}
        self._told_late: dict[str, int] = {}

    @property
    def events(self) -> list[Event]:
        """What is remembered, oldest first."""
        with self._lock:
            return list(self._events)

    @property
    def dropped(self) -> int:
        """How many events are no longer remembered."""
        with self._lock:
            return self._count - len(self._events)

    def say(self, what: str, sentence: str) -> None:
        """Something was decided."""
        self._add(logging.INFO, what, sentence)

    def warn(self, what: str, detail: str) -> None:
        """Something went wrong."""
        self._add(logging.WARNING, what, detail)

    def _add(self, level: int, what: str, detail: str) -> None:
        with self._lock:
            full = self._count == self._events.maxlen
            self._events.append(Event(time.time(), what, detail, self._count))
            self._count += 1
        if full:
            _log.warning("the journal keeps the last %d events; older ones are in this log only", self._events.maxlen)
        _log.log(level, "%s: %s", what, detail)

    def note_late(self, counters: Mapping[str, int], graph: Graph) -> None:
        """Records that a cut adds to those that came too late for a step: at the first, and when they are twice as many.

        Where nobody reads them, they are lost: that is a warning.
        """
        for name, count in counters.items():
            kind, _, step = name.partition(":")
            if kind != "late" or not count:
                continue
            self._late[step] = late = self._late.get(step, 0) + count
            if late >= 2 * self._told_late.get(step, 0):
                self._told_late[step] = late
                self._say_late(step, late, lost=not graph.late_wanted(step))

    def _say_late(self, step: str, count: int, *, lost: bool) -> None:
        came = f"step {step!r}: {number_of(count, 'record')} so far came after their windows had closed"
        if lost:
            remedy = "give the source a longer lateness= to wait for such, or read them with late()"
            self.warn("late", f"{came} and are in no result; {remedy}")
        else:
            self.say("late", f"{came}; late() has them")

    def note_engines(self, reported: Reported) -> None:
        """How each subtask of a reduce keeps its states, whenever that changes: its hash engine, panes or windows."""
        for step, (engine, reason) in reported.engines.items():
            place = (step, reported.index)
            if self._engines.get(place) != engine:
                self._engines[place] = engine
                self.say("engine", f"step {step!r}, subtask {reported.index}: {engine} ({reason})")
