"""What was decided and what happened in a run, in words and in the log."""

from __future__ import annotations

import logging
import time

from headrace.driver.status import Event
from headrace.runtime.messages import Reported

_log = logging.getLogger("headrace")


class Journal:
    """The events of a run, oldest first."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._engines: dict[tuple[str, int], str] = {}

    def say(self, what: str, sentence: str) -> None:
        """Something was decided."""
        self.events.append(Event(time.time(), what, sentence))
        _log.info("%s: %s", what, sentence)

    def warn(self, what: str, detail: str) -> None:
        """Something went wrong."""
        self.events.append(Event(time.time(), what, detail))
        _log.warning("%s: %s", what, detail)

    def note_engines(self, reported: Reported) -> None:
        """How each subtask of a reduce keeps its states, whenever that changes: its hash engine, panes or windows."""
        for step, (engine, reason) in reported.engines.items():
            place = (step, reported.index)
            if self._engines.get(place) != engine:
                self._engines[place] = engine
                self.say("engine", f"step {step!r}, subtask {reported.index}: {engine} ({reason})")
