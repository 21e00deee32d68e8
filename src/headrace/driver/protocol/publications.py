"""Logged cuts on their way to their readers: in the order of the log, each tried until it has happened; and at the end
of a run what sinks still collect into larger files.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from headrace.driver.protocol.events import (
    Instruction,
    NumberedCut,
    Publish,
    Published,
    PublishFailed,
    Say,
    Settle,
    Settled,
)

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 10.0
_LONGEST_SETTLING_S = 5.0
_MAX_WAITING = 120
"""Cuts that may wait for their sinks, two minutes' worth at one a second, before no further one is made."""


@dataclass(slots=True)
class Publications:
    """``published`` is the number of the last entry of the log whose results, and all before, are known to be visible."""

    published: int = 0
    waiting: deque[NumberedCut] = field(default_factory=deque)
    _busy: bool = False
    _again_s: float = 0.0
    _wait_s: float = _FIRST_WAIT_S
    _failing: bool = False

    def add(self, cut: NumberedCut) -> None:
        self.waiting.append(cut)

    @property
    def crowded(self) -> bool:
        """Whether so much waits that the job has to wait too."""
        return len(self.waiting) >= _MAX_WAITING

    def due(self, now_s: float) -> list[Instruction]:
        if self._busy or not self.waiting or now_s < self._again_s:
            return []
        self._busy = True
        return [Publish(self.waiting[0])]

    def on(self, event: Published | PublishFailed, now_s: float) -> list[Instruction]:
        """How an attempt to publish went."""
        if not self._busy or event.number != self.waiting[0].number:
            return []
        self._busy = False
        if isinstance(event, Published):
            self.published = self.waiting.popleft().number
            healed, self._failing, self._wait_s = self._failing, False, _FIRST_WAIT_S
            return [Say("published", "results are visible again")] if healed else []
        self._again_s, self._wait_s = now_s + self._wait_s, min(2 * self._wait_s, _LONGEST_WAIT_S)
        if self._failing:
            return []
        self._failing = True
        return [Say("publish", f"results cannot be made visible yet, trying on: {event.error}", loud=True)]


@dataclass(slots=True)
class Settling:
    """``done`` once sinks have left nothing open; ``trouble`` is why they have not."""

    done: bool = False
    trouble: str | None = None
    _busy: bool = False
    _again_s: float = 0.0
    _wait_s: float = _FIRST_WAIT_S

    def due(self, now_s: float) -> list[Instruction]:
        """Ask, unless the answer is awaited or it is too soon to ask again."""
        if self.done or self._busy or now_s < self._again_s:
            return []
        self._busy = True
        return [Settle()]

    def on(self, event: Settled, now_s: float) -> list[Instruction]:
        """How it went; a failure is told once."""
        self._busy, self.done = False, event.trouble is None
        told, self.trouble = self.trouble is not None, event.trouble
        self._again_s, self._wait_s = now_s + self._wait_s, min(2 * self._wait_s, _LONGEST_SETTLING_S)
        if self.done or told:
            return []
        return [Say("settle", f"a sink cannot show its last results yet, trying on: {event.trouble}", loud=True)]
