"""Which residency policy suits, by what was seen of the keys (SCALLA 2.6, "policy choice").

All keys fit: first come (INC) costs no counters. Windows, or memory for a small part of the keys: keep
the frequent ones (DINC). Memory for a fair part of them: first come is good if the hot keys came early,
and marks (DINC-Marker) follow them if they change. The number of keys is estimated by a HyperLogLog
sketch over the hashes that the index has computed anyway (a compiled loop; per-record calls into a
sketch library would cost more than the lookup itself).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.state.compiled import U8, U64, compiled

_BITS = 12
_SMALL_SHARE = 0.08
_DRIFT = 1.25
"""By how much refused records must have become more frequent since memory was full: the hot keys have changed."""
_RECORDS_BETWEEN = 200_000


@dataclass(frozen=True, slots=True)
class Choice:
    """An engine's name and the reason for it."""

    engine: str
    reason: str


class DistinctKeys:
    """About how many distinct hashes were added (HyperLogLog, standard error 1.6 %)."""

    def __init__(self) -> None:
        self._registers = np.zeros(1 << _BITS, np.uint8)

    def add(self, hashes: U64) -> None:
        _add(np.ascontiguousarray(hashes), self._registers)

    def estimate(self) -> float:
        m = len(self._registers)
        raw = 0.7213 / (1 + 1.079 / m) * m * m / float(np.sum(np.exp2(-self._registers.astype(np.float64))))
        empty = int(np.count_nonzero(self._registers == 0))
        return m * float(np.log(m / empty)) if raw <= 2.5 * m and empty else raw

    @property
    def nbytes(self) -> int:
        return self._registers.nbytes


@compiled
def _add(hashes: U64, registers: U8) -> None:
    shift = np.uint64(64 - _BITS)
    for i in range(len(hashes)):
        at = hashes[i] >> shift
        rest = hashes[i] << np.uint64(_BITS)
        rank = 1
        while rank <= 64 - _BITS and not rest >> np.uint64(63):
            rest <<= np.uint64(1)
            rank += 1
        registers[at] = max(registers[at], np.uint8(rank))


class Chooser:
    """Looks at a table that began as INC, and says when another engine would suit better."""

    def __init__(self, slots: int, *, windowed: bool) -> None:
        self._slots, self._windowed = slots, windowed
        self._keys = DistinctKeys()
        self._asked_at = 0
        self._before: tuple[int, int] | None = None
        self._first_refused: float | None = None

    def see(self, hashes: U64) -> None:
        self._keys.add(hashes)

    def choose(self, tuples: int, refused: int) -> Choice | None:
        """An engine to change to, or None: stay, or not enough has been seen since the last time."""
        if not refused or tuples - self._asked_at < _RECORDS_BETWEEN:
            return None
        self._asked_at = tuples
        keys = self._keys.estimate()
        share = self._slots / max(keys, 1)
        seen = f"{self._slots} of about {keys:.0f} keys fit ({share:.0%})"
        if self._windowed:
            return Choice("dinc", f"{seen}, and windows end: keep the frequent ones")
        if share < _SMALL_SHARE:
            return Choice("dinc", f"{seen}: keep the frequent ones")
        return self._drifting(tuples, refused, seen)

    def _drifting(self, tuples: int, refused: int, seen: str) -> Choice | None:
        before, self._before = self._before, (tuples, refused)
        if before is None:
            return None
        now = (refused - before[1]) / (tuples - before[0])
        if self._first_refused is None:
            self._first_refused = now
        if now <= _DRIFT * self._first_refused:
            return None
        change = f"refused records went from {self._first_refused:.0%} to {now:.0%}"
        return Choice("dinc-marker", f"{seen}, but {change}: the hot keys change")
