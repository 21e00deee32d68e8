"""Windows as data. All times are whole microseconds; a time window is ``[start, end)``."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

FOREVER_US = 2**62
"""Later than any event: the watermark of an input that has ended."""
NEVER_US = -(2**62)
"""Earlier than any event: the watermark before any is known."""

IDLE_US = NEVER_US + 1
"""Said in place of a watermark by an input that has fallen silent: its time stands still, and it holds nobody back."""


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Windows of ``size_us`` that end at every multiple of ``every_us``.

    ``versioned``: late records re-open their window and a new version of the result follows, for
    ``keep_us`` after the window ended.
    """

    size_us: int
    every_us: int
    versioned: bool = False
    keep_us: int = 0

    @property
    def pane_us(self) -> int:
        """Length of a pane: the highest common factor of size and slide (C-MR, section 2.5)."""
        return gcd(self.size_us, self.every_us)

    @property
    def tumbling(self) -> bool:
        return self.size_us == self.every_us

    def describe(self) -> str:
        kind = "tumbling" if self.tumbling else "sliding"
        every = "" if self.tumbling else f" every {self.every_us / 1e6:g} s"
        return f"{kind} {self.size_us / 1e6:g} s{every}{', versioned' if self.versioned else ''}"


@dataclass(frozen=True, slots=True)
class SessionWindow:
    """A key's records with no pause of ``gap_us`` or more between them."""

    gap_us: int
    versioned: bool = False

    def describe(self) -> str:
        return f"session, gap {self.gap_us / 1e6:g} s"


@dataclass(frozen=True, slots=True)
class CountWindow:
    """Every ``rows`` records of a key, in order of arrival; an unfilled window is not emitted."""

    rows: int
    versioned: bool = False

    def describe(self) -> str:
        return f"every {self.rows} records"


@dataclass(frozen=True, slots=True)
class WholeInput:
    """One window over all of the input; closes when the input ends."""

    versioned: bool = False

    def describe(self) -> str:
        return "the whole input"


@dataclass(frozen=True, slots=True)
class Interval:
    """Which records of two streams meet: from ``before_us`` before a left one's time to ``after_us`` after it."""

    before_us: int
    after_us: int

    def reach_us(self, port: int) -> int:
        """How long after its own time a record of a side may still meet one."""
        return self.before_us if port else self.after_us

    def describe(self) -> str:
        if self.before_us == self.after_us:
            return f"within {self.after_us / 1e6:g} s"
        return f"from {self.before_us / 1e6:g} s before to {self.after_us / 1e6:g} s after"


Window = TimeWindow | SessionWindow | CountWindow | WholeInput
