"""How long sources stand still, by the parts of a stop: the cut before it, the query's end, the next one's start."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Moment = Literal["ordered", "logged", "stop", "stopped", "start", "started", "hello", "joined", "loaded", "began"]
_ORDER: tuple[Moment, ...] = (
    "ordered", "logged", "stop", "stopped", "start", "started", "hello", "joined", "loaded", "began",
)  # fmt: skip
_PARTS: dict[Moment, str] = {
    "logged": "cut", "stop": "leave", "stopped": "stop", "start": "between", "started": "start", "hello": "first hello",
    "joined": "all hello", "loaded": "load", "began": "go",
}  # fmt: skip
"""What a part is called, by the moment that ends it."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A stop of the sources, from the order of the cut before it, or else from when the query's failure was noticed.

    ``parts_ms`` follow each other: ``cut`` (until it was logged), ``leave``, ``stop`` (of the query), ``between`` two
    queries, ``start``, ``first hello``, ``all hello``, ``load`` (PLAN to LOADED) and ``go``. A batch that only follows
    another of its query lacks those of the query.
    """

    parts_ms: dict[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.parts_ms.values()) / 1e3

    @property
    def deliberate(self) -> bool:
        return "cut" in self.parts_ms

    @property
    def between_batches(self) -> bool:
        """Whether the query went on: the next batch just followed."""
        return "between" not in self.parts_ms

    def sentence(self) -> str:
        parts = ", ".join(f"{name} {ms:.0f} ms" for name, ms in self.parts_ms.items())
        return f"sources stood still for {self.seconds:.2f} s ({parts})"


class GapClock:
    """Takes the moments of a stop. A moment that comes again makes void what came after it the first time."""

    def __init__(self) -> None:
        self._at_s: dict[Moment, float] = {}

    def mark(self, moment: Moment, at_s: float) -> None:
        """Note when something happened, in seconds of one clock; a stop begins with ``ordered`` or ``stop``."""
        if moment == "ordered":
            self._at_s.clear()
        elif not self._at_s and moment != "stop":
            return
        if moment == "started" and "hello" in self._at_s:
            return  # the query was faster than its start returned
        if moment == "hello" and "hello" in self._at_s and "loaded" not in self._at_s:
            moment = "joined"
        for later in _ORDER[_ORDER.index(moment) + 1 :]:
            self._at_s.pop(later, None)
        self._at_s[moment] = at_s

    def began(self, at_s: float) -> Gap | None:
        """Sources were let go; the stop that this ends, if it is one."""
        at, self._at_s = self._at_s, {}
        if not at:
            return None
        at["began"] = at_s
        known = [moment for moment in _ORDER if moment in at]
        return Gap({_PARTS[end]: 1e3 * (at[end] - at[start]) for start, end in pairwise(known)})
