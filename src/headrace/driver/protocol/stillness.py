"""For how long nothing has come of what the driver waits for: somebody may hang although its channel lives."""

from __future__ import annotations

from dataclasses import dataclass

_TURN_S = 1.0
"""A driver that itself stood still for longer has not waited: what came meanwhile is still to be heard."""


@dataclass(slots=True)
class Stillness:
    """Counts time while something is waited for, from the last progress on."""

    still_s: float = 0.0
    _seen_s: float | None = None

    def progress(self) -> None:
        """Something has come, or nothing is waited for."""
        self.still_s = 0.0

    def pass_time(self, now_s: float) -> float:
        """How long it has been still by now."""
        seen_s, self._seen_s = self._seen_s, now_s
        if seen_s is not None:
            self.still_s += min(now_s - seen_s, _TURN_S)
        return self.still_s
