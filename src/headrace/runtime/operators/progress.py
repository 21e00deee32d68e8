"""How far time has come where several inputs meet, of which some may be silent."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.graph.windowing import FOREVER_US, IDLE_US, NEVER_US


class Progress:
    """The last watermark of each input: of a step's ports, an edge's senders, a source's partitions.

    One that is idle, or has ended, holds nobody back. Where all are idle, time has come as far as any of them ever was:
    the answer is then the same in whatever order they fell silent.
    """

    __slots__ = ("_furthest_us", "_of")

    def __init__(self, inputs: Iterable[int] = ()) -> None:
        self._of = dict.fromkeys(inputs, NEVER_US)
        self._furthest_us = NEVER_US

    def hear(self, source: int, watermark_us: int) -> None:
        """What an input says now; ``IDLE_US`` if it is silent, and what it says next wakes it."""
        self._of[source] = watermark_us
        if self._furthest_us < watermark_us < FOREVER_US and watermark_us != IDLE_US:
            self._furthest_us = watermark_us

    def rise(self, source: int, watermark_us: int) -> None:
        """The same of an input that takes nothing back."""
        known_us = self._of.get(source, NEVER_US)
        self.hear(source, watermark_us if watermark_us == IDLE_US else max(known_us, watermark_us))

    @property
    def idle(self) -> bool:
        """Whether all that have not ended are silent."""
        watermarks = self._of.values()
        return IDLE_US in watermarks and all(w in (IDLE_US, FOREVER_US) for w in watermarks)

    @property
    def reached_us(self) -> int:
        """All input before this has been seen, unless it comes from one that is silent."""
        awake = min((w for w in self._of.values() if w != IDLE_US), default=FOREVER_US)
        if awake < FOREVER_US:
            return awake
        return FOREVER_US if self._of and not self.idle else self._furthest_us
