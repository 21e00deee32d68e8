"""Whether a subtask would come to a cut soon: what is queued before it has to be processed first."""

from __future__ import annotations

from headrace.tokens import Token

_LONG_US = 50_000
"""What has waited for so long stands in a long queue."""


class Readiness:
    """Answers the driver's question about the next cut: not before the queue is short.

    A source between two polls has no queue: what it has not read comes after the cut.
    """

    def __init__(self) -> None:
        self._asked: Token | None = None
        self._waited_us = self._idle_us = 0

    def ask(self, token: Token) -> None:
        """The driver wants to know; only its last question counts."""
        self._asked = token

    def took(self, queued_us: int | None, now_us: int) -> None:
        """The next row of the input was taken, which had come at ``queued_us``; None: there was none."""
        self._waited_us = now_us - queued_us if queued_us is not None else 0

    def answer(self, now_us: int, *, waiting: bool, held: bool) -> Token | None:
        """The cut that this subtask is ready for, once. ``waiting``: steps have input queued; ``held``: rows are held
        since the last cut, or something is loaded that it needs.
        """
        if not waiting:
            self._idle_us = now_us
        if self._asked is None or held or max(self._waited_us, now_us - self._idle_us) >= _LONG_US:
            return None
        token, self._asked = self._asked, None
        return token
