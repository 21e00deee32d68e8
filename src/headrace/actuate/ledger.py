"""What a run has used: subtask-seconds per step, as scaling changes their number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Ledger:
    """Adds up active subtasks over time; what was there at one cycle counts until the next."""

    subtask_s: dict[str, float] = field(default_factory=dict)
    _at_s: float | None = None
    _parallelism: Mapping[str, int] = field(default_factory=dict)

    def add(self, at_s: float, parallelism: Mapping[str, int]) -> None:
        if self._at_s is not None:
            for step, n in self._parallelism.items():
                self.subtask_s[step] = self.subtask_s.get(step, 0.0) + n * (at_s - self._at_s)
        self._at_s, self._parallelism = at_s, dict(parallelism)
