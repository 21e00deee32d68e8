"""64-bit hashes of panes and keys, different for each seed (compiled).

For finding keys in memory only: slices and digests, which outlive a process, have ``state.hashing``.
"""

from __future__ import annotations

import numpy as np

from headrace.state.compiled import U8, Int, compiled, inlined, mixed, word_at
from headrace.state.index import registers as reg
from headrace.state.index.layout import KeyBatch, Table

_NULL = np.uint64(0xA0761D6478BD642F)
_PER_BYTE = np.uint64(0x9E3779B97F4A7C15)


@inlined
def fill_hashes(table: Table, batch: KeyBatch) -> None:
    """Hash pane and key of each record: independent of all other records, so the loop pipelines well."""
    seed, mask = np.uint64(table.registers[reg.SEED]), np.uint64(table.registers[reg.HASH_MASK])
    step = 1 if len(batch.panes) > 1 else 0
    sized = len(batch.sizes) > 0
    for i in range(len(batch.words)):
        salt = mixed(np.uint64(batch.panes[i * step]) + seed)
        if sized and batch.sizes[i] < 0:
            found = mixed(salt ^ _NULL)
        elif batch.in_bytes:
            found = hash_bytes(batch.data, np.int64(batch.words[i]), batch.sizes[i], salt)
        else:
            found = mixed(salt ^ batch.words[i])
        batch.hashes[i] = found & mask


@compiled
def hash_all(table: Table, batch: KeyBatch) -> None:
    """Fill in a batch's hashes without looking for its keys."""
    fill_hashes(table, batch)


@inlined
def hash_bytes(data: U8, start: Int, size: Int, salt: np.uint64) -> np.uint64:
    """Eight bytes at a time; the last word overlaps the one before rather than being split into bytes."""
    found = mixed(salt + np.uint64(size) * _PER_BYTE)
    if size >= 8:
        for at in range(start, start + size - 8, 8):
            found = mixed(found ^ word_at(data, at))
        return mixed(found ^ word_at(data, start + size - 8))
    tail = np.uint64(0)
    for k in range(size):
        tail = (tail << np.uint64(8)) | np.uint64(data[start + k])
    return mixed(found ^ tail)
