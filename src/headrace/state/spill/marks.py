"""Which keys may have something on disk, in bounded memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.state.compiled import U64
from headrace.state.spill.buckets import bucket_of

_LEVEL = 99
"""Of the family of hash functions, one that no level of buckets uses."""


class Marks:
    """A mark per hash of a key. Keys that share one are taken to be on disk without need, never wrongly not."""

    def __init__(self, marks: int) -> None:
        self._marks = np.zeros(marks, bool)

    def add(self, hashes: U64) -> None:
        self._marks[bucket_of(hashes, _LEVEL, len(self._marks))] = True

    def has(self, hashes: U64) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = self._marks[bucket_of(hashes, _LEVEL, len(self._marks))]
        return found

    def clear(self) -> None:
        self._marks[:] = False

    @property
    def nbytes(self) -> int:
        return self._marks.nbytes
