"""Disk buckets of keys, by a family of hash functions, one per level of recursion (SCALLA 2.4, 2.5); which keys are there."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.state.compiled import I64, U64, compiled, mixed

_32 = np.uint64(32)
_PER_LEVEL = np.uint64(0xD6E8FEB86659FD93)
_MARK_LEVEL = 99
"""Of the family of hash functions, one that no level of buckets uses."""


def bucket_of(hashes: U64, level: int, buckets: int) -> I64:
    """The bucket of each key by its 64-bit hash (``KeyIndex.hash_of``, ``Admission.hashes``).

    Every level is a function of its own: keys that share a bucket at one level spread over all buckets of the
    next. Only keys whose 64-bit hashes are equal stay together for ever.
    """
    found = np.empty(len(hashes), np.int64)
    _fill(np.ascontiguousarray(hashes), level, buckets, found)
    return found


@compiled
def _fill(hashes: U64, level: int, buckets: int, found: I64) -> None:
    salt = mixed(np.uint64(level + 1) * _PER_LEVEL)
    for i in range(len(hashes)):
        found[i] = np.int64(((mixed(hashes[i] ^ salt) >> _32) * np.uint64(buckets)) >> _32)


class Marks:
    """Which keys may have something on disk, in bounded memory: a mark per hash of a key.

    Keys that share a mark may be looked for in vain; none that is there is missed.
    """

    def __init__(self, marks: int) -> None:
        self._marks = np.zeros(marks, bool)

    def add(self, hashes: U64) -> None:
        self._marks[bucket_of(hashes, _MARK_LEVEL, len(self._marks))] = True

    def has(self, hashes: U64) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = self._marks[bucket_of(hashes, _MARK_LEVEL, len(self._marks))]
        return found

    def clear(self) -> None:
        self._marks[:] = False

    @property
    def nbytes(self) -> int:
        return self._marks.nbytes
