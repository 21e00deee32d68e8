"""Disk buckets of keys: a family of hash functions, one per level of recursion (SCALLA 2.4, 2.5)."""

from __future__ import annotations

import numpy as np

from headrace.state.compiled import I64, U64, compiled, mixed

_32 = np.uint64(32)
_PER_LEVEL = np.uint64(0xD6E8FEB86659FD93)


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
