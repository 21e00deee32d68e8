"""Where the state that an attempt started with came from."""

from __future__ import annotations

from collections import Counter

from headrace.runtime.messages import Loaded
from headrace.state.copies.nodestore import ORIGINS
from headrace.tokens import Attempt

_WORDS = {"memory": "memory", "node": "the node's disk", "peer": "a peer", "checkpoint": "the checkpoint"}


class Origins:
    """Adds up what subtasks say of an attempt. The caller sees to it that one thread at a time does so."""

    def __init__(self) -> None:
        self._attempt: Attempt | None = None
        self._slices: Counter[str] = Counter()
        self._damaged = 0

    def take(self, loaded: Loaded) -> None:
        if loaded.attempt != self._attempt:
            self._attempt, self._slices, self._damaged = loaded.attempt, Counter(), 0
        self._slices.update(loaded.loading.slices)
        self._damaged += loaded.loading.damaged

    @property
    def slices(self) -> dict[str, int]:
        """Slices of the newest attempt by where they were loaded from, nearest first."""
        return {origin: self._slices[origin] for origin in ORIGINS if self._slices[origin]}

    @property
    def damaged(self) -> int:
        """Copies that did not have their checksum, and were passed over."""
        return self._damaged

    def sentence(self) -> str | None:
        """In words; None if nothing was loaded."""
        if not self.slices:
            return None
        parts = ", ".join(f"{count} from {_WORDS[origin]}" for origin, count in self.slices.items())
        damaged = f"; {self.damaged} copies of blocks were damaged and passed over" if self.damaged else ""
        return f"slices loaded: {parts}{damaged}"
