"""How far a worker's clock is from the driver's, from messages that both ends stamp (Mills, RFC 5905, section 8)."""

from __future__ import annotations

import socket
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

_KEPT = 16
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def system_us() -> int:
    """This host's clock, in microseconds since 1970."""
    return time.time_ns() // 1000


def clock_name() -> str:
    """A name that two processes share exactly when they read the same clock.

    Containers of one host do, whatever they are called; hosts of one name do not.
    """
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else socket.gethostname()


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question and its answer: sent and returned by the worker's clock, received and answered by the driver's."""

    sent_us: int
    received_us: int
    answered_us: int
    returned_us: int

    @property
    def offset_us(self) -> int:
        """Driver's clock minus worker's, wrong by at most half the delay.

        >>> Exchange(100, 1_150, 1_160, 220).offset_us
        995
        """
        return (self.received_us - self.sent_us + self.answered_us - self.returned_us) // 2

    @property
    def delay_us(self) -> int:
        """Time on the way, both ways."""
        return (self.returned_us - self.sent_us) - (self.answered_us - self.received_us)


@dataclass(slots=True)
class ClockFilter:
    """The last exchanges; of these the one with the smallest delay says most."""

    exchanges: deque[Exchange] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def add(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)

    @property
    def best(self) -> Exchange | None:
        return min(self.exchanges, key=lambda e: e.delay_us, default=None)
