"""What a run has used: seconds of subtasks per step, and of executors, as their numbers change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Ledger:
    """Adds up seconds: what is there at one count is taken to be there until the next."""

    seconds: dict[str, float] = field(default_factory=dict)
    _at_s: float | None = None
    _there: Mapping[str, int] = field(default_factory=dict)

    def add(self, at_s: float, there: Mapping[str, int]) -> None:
        if self._at_s is not None:
            for name, n in self._there.items():
                self.seconds[name] = self.seconds.get(name, 0.0) + n * (at_s - self._at_s)
        self._at_s, self._there = at_s, dict(there)
