"""What the driver has told those who make a cut first: the subtasks with sources."""

from __future__ import annotations

from headrace.runtime.messages import CutOrdered
from headrace.tokens import Token

AHEAD_BYTES = 16_000_000
"""How much may be sent behind a cut before all have aligned: what receivers may have to hold of one sender."""
_LONGEST_WAIT_US = 100_000
"""A cut is never put off for longer, whatever clocks say."""


class SourceOrders:
    """The cut to make next, if it was ordered, and whether sources may run further ahead of the last one."""

    def __init__(self, first: Token) -> None:
        self._next = first
        self.ordered: CutOrdered | None = None
        self.at_us = 0
        self._made: Token | None = None
        self._made_at_bytes = 0

    def order(self, order: CutOrdered, now_us: int, ahead_us: int) -> None:
        """Only the next cut can be ordered; an order that comes again, or from another attempt, is none.

        The driver's clock is ``ahead_us`` before this host's, and ``at_us`` is by the latter.
        """
        if order.token == self._next and self.ordered is None:
            self.ordered = order
            self.at_us = min(max(order.at_us - ahead_us, now_us), now_us + _LONGEST_WAIT_US)

    def due(self, now_us: int) -> CutOrdered | None:
        """The order whose time has come."""
        return self.ordered if self.ordered is not None and now_us >= self.at_us else None

    def made(self, token: Token, sent_bytes: int) -> None:
        """A cut was made when so much had been sent."""
        self._next, self.ordered = token.by.cut(token.cut + 1), None
        self._made, self._made_at_bytes = token, sent_bytes

    def go_on(self, token: Token) -> None:
        """All have aligned at a cut, so nothing is held any more."""
        if token == self._made:
            self._made = None

    def may_poll(self, sent_bytes: int, now_us: int) -> bool:
        """Whether sources may be read: no cut is to be made before, and they have not run too far ahead of one."""
        if self.due(now_us) is not None:
            return False
        return self._made is None or sent_bytes - self._made_at_bytes <= AHEAD_BYTES
