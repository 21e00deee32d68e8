"""The sending end of a simulated channel: one open buffer, flushed by deadline or when full."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_NONE: Floats = np.zeros(0)


@dataclass(frozen=True, slots=True)
class Shipped:
    """Items that left: when each was emitted, born and shipped, and which began a buffer."""

    emitted: Floats
    born: Floats
    at: Floats
    first: npt.NDArray[np.bool_]
    lifetimes_s: list[float]


@dataclass(slots=True)
class OpenBuffer:
    """Items that were emitted and not yet shipped, oldest first."""

    emitted: Floats = field(default_factory=lambda: _NONE)
    born: Floats = field(default_factory=lambda: _NONE)

    def append(self, emitted: Floats, born: Floats) -> None:
        if len(self.emitted):
            emitted, born = np.concatenate((self.emitted, emitted)), np.concatenate((self.born, born))
        self.emitted, self.born = emitted, born

    def ship(self, from_s: float, until_s: float, deadline_s: float, capacity: int, *, flush: bool = False) -> Shipped:
        """What is flushed until then: when the deadline passes, or with the item that fills it.

        A deadline that was lowered to before ``from_s`` takes effect then.
        """
        if deadline_s <= 0 or capacity <= 1:
            return self._take(len(self.emitted), np.maximum(self.emitted, from_s), [0] * 0)
        emitted = self.emitted.tolist()
        sizes: list[int] = []
        flushes: list[float] = []
        i = 0
        while i < len(emitted):
            due = max(emitted[i] + deadline_s, from_s)
            j = min(bisect_right(emitted, due, i), i + capacity)
            leaves = max(emitted[j - 1], from_s) if j - i == capacity else due
            if leaves > until_s:
                if not flush or emitted[i] > until_s:
                    break
                j, leaves = min(j, bisect_right(emitted, until_s, i)), until_s
            sizes.append(j - i)
            flushes.append(leaves)
            i = j
        return self._take(i, np.repeat(flushes, sizes), sizes)

    def _take(self, n: int, at: Floats, sizes: list[int]) -> Shipped:
        emitted, born = self.emitted[:n], self.born[:n]
        self.emitted, self.born = self.emitted[n:], self.born[n:]
        if not sizes:  # every item is a buffer of its own
            return Shipped(emitted, born, at, np.ones(n, np.bool_), (at - emitted).tolist())
        starts = np.cumsum([0, *sizes[:-1]])
        first = np.zeros(n, np.bool_)
        first[starts] = True
        return Shipped(emitted, born, at, first, (at[starts] - emitted[starts]).tolist())
