"""Asking before ordering: a cut hands the delay of the slowest queue to all behind it, so it waits for short ones."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from headrace.runtime.messages import Place
from headrace.tokens import Token

ASK_AHEAD_S = 0.06
"""How long before a cut is due all are asked: idle subtasks listen every 50 ms."""


@dataclass(slots=True)
class Asking:
    """Who has answered that its queue is short, since they were asked about the cut ``about``. One that is due is put off by
    ``put_off_s`` at most.

    Nothing depends on the answers but when a cut is ordered: one that is lost, or does not come because a subtask hangs
    or cannot keep up, costs patience. Where it was in vain there is half as much for the next cut: a job that is always
    behind does not get fewer cuts for good.
    """

    put_off_s: float
    about: Token | None = None
    ready: set[Place] = field(default_factory=set)
    _patience: float = 1.0

    def begin(self, token: Token) -> bool:
        """All are to be asked about the next cut; False if they have been."""
        if self.about == token:
            return False
        self.about, self.ready = token, set()
        return True

    def answered(self, token: Token, place: Place) -> None:
        """A subtask has little to do before a cut. What is said about another cut says nothing."""
        if token == self.about:
            self.ready.add(place)

    def over(self, due_s: float, everyone: Collection[Place], now_s: float) -> bool:
        """Whether a cut that is due may be ordered, since all are ready or have been waited for."""
        if self.ready.issuperset(everyone):
            self._patience = 1.0
        elif now_s < due_s + self._patience * self.put_off_s:
            return False
        else:
            self._patience /= 2
        return True
