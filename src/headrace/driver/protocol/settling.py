"""The end of a run: what sinks still collect into larger files is to become visible, tried until it has."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.driver.protocol.events import Instruction, Say, Settle, Settled

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 5.0


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
        self._again_s, self._wait_s = now_s + self._wait_s, min(2 * self._wait_s, _LONGEST_WAIT_S)
        if self.done or told:
            return []
        return [Say("settle", f"a sink cannot show its last results yet, trying on: {event.trouble}", loud=True)]
