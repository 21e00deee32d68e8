"""The driver's hand on the version log: one entry at a time, each with a certain outcome before the next.

The log is the only fence between drivers. Its rules (``docs/how-it-works.md``): an entry is created exclusively; what was
not answered is read, and created again only as the same entry; and after each creation the driver looks for a higher
number, since a number that was cleared away can be taken twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.driver.protocol.events import (
    Append,
    Appended,
    AppendFailed,
    EntryRead,
    Instruction,
    LogUnreadable,
    LookUp,
    NewestSeen,
    ReadEntry,
    ReadLog,
)
from headrace.state.durable.versionlog import Entry

LogEvent = Appended | AppendFailed | EntryRead | NewestSeen | LogUnreadable
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 5.0

Outcome = Literal["appended", "taken", "fenced", "looked"]
"""What came of it: our entry is the newest; another's has the number; a newer one exists; nobody has come since."""


@dataclass(slots=True)
class Appending:
    """``number`` is that of the newest entry that is known to be ours, or was read before ours. ``entry`` is the one to be
    appended: it may be in the log, or get there, until the outcome is known. ``trouble``: why there is none yet.
    """

    number: int = 0
    entry: Entry | None = None
    _asked: Instruction | None = None
    _again_s: float | None = None
    _wait_s: float = _FIRST_WAIT_S
    trouble: str | None = None

    @property
    def busy(self) -> bool:
        return self._asked is not None or self._again_s is not None

    def read(self) -> list[Instruction]:
        """Ask for the whole log."""
        assert not self.busy
        return self._ask(ReadLog())

    def take_read(self) -> bool:
        """The log was read; False if nobody had asked."""
        asked = isinstance(self._asked, ReadLog)
        if asked:
            self._done()
        return asked

    def append(self, entry: Entry) -> list[Instruction]:
        """Begin to append; nothing else may be under way."""
        assert not self.busy
        self.entry = entry
        return self._ask(Append(self.number + 1, entry))

    def look(self) -> list[Instruction]:
        """Ask whether another driver has come since."""
        assert not self.busy
        self.entry = None
        return self._ask(LookUp())

    def on(self, event: LogEvent, now_s: float) -> tuple[list[Instruction], Outcome | None]:
        """An answer; one to a question that was not asked, or asked before, changes nothing."""
        match event, self._asked:
            case Appended(number), Append(mine, _) if number == mine:
                return self._ask(LookUp()), None
            case AppendFailed(number, why), Append(mine, _) if number == mine:
                self.trouble = why
                return self._ask(ReadEntry(mine)), None
            case EntryRead(number, entry), ReadEntry(mine) if number == mine:
                return self._read(entry, now_s)
            case NewestSeen(number), LookUp():
                return [], self._seen(number)
            case LogUnreadable(why), _ if self._asked is not None:
                self.trouble = why
                self._later(now_s)
        return [], None

    def due(self, now_s: float) -> list[Instruction]:
        """What failed is asked again after a while, for as long as it takes."""
        if self._again_s is None or now_s < self._again_s:
            return []
        self._again_s = None
        return [self._asked] if self._asked is not None else []

    def give_up(self) -> None:
        """Wait for no answer any more. An ``entry`` stays: whether it is in the log will be seen by who reads it next."""
        self._done()

    def _read(self, entry: Entry | None, now_s: float) -> tuple[list[Instruction], Outcome | None]:
        if entry is None:
            assert self.entry is not None
            self._asked = Append(self.number + 1, self.entry)
            self._later(now_s)
            return [], None
        if entry == self.entry:
            return self._ask(LookUp()), None
        self.entry = None
        self._done()
        return [], "taken"

    def _seen(self, number: int) -> Outcome:
        mine = self.number + (self.entry is not None)
        appended, self.entry = self.entry is not None, None
        self._done()
        if number > mine:
            return "fenced"
        self.number = mine
        return "appended" if appended else "looked"

    def _ask(self, question: Instruction) -> list[Instruction]:
        self._asked, self._again_s = question, None
        return [question]

    def _later(self, now_s: float) -> None:
        self._again_s = now_s + self._wait_s
        self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)

    def _done(self) -> None:
        self._asked = self._again_s = self.trouble = None
        self._wait_s = _FIRST_WAIT_S
