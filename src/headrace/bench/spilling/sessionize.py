"""Sessions in fixed-size buffers, one per key, for whichever keys fit in memory (SCALLA 2.6, streaming variant).

A key in memory has a buffer that absorbs its records in any order. If the policy says so, a key whose sessions
have all expired makes way for a new one, and its sessions are output directly. The thesis asks that its counter
be zero as well; but nothing of an expired session is worth keeping, and with open sessions at zero no counter
would fall. Records that get no buffer go to disk and become sessions when the input ends. The thesis does not
say how a session is kept whole: here a key with a record on disk stays on disk until that record's session has
expired, and so does a session that outgrows its buffer. That is remembered by a hash of the key, in bounded
memory: keys that share a mark may go to disk without need, never wrongly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.bench.spilling.recordbuffers import RECORD_BYTES, RecordBuffers
from headrace.errors import StateError
from headrace.state.compiled import I64, U64
from headrace.state.durable.changes import PANE
from headrace.state.index.keyindex import KeyIndex
from headrace.state.index.layout import NEVER
from headrace.state.index.policies import ResidencyPolicy
from headrace.state.spill.buckets import bucket_of
from headrace.state.spill.diskrows import Buckets, DiskRows, Slices

_MARKS_PER_SLOT = 4
_DEEPEST = 8
"""Levels of recursion; beyond, a bucket is a few keys' records, which must be sorted at once."""
_MARK_LEVEL = _DEEPEST + 1
"""Of the family of hash functions, one that no level of buckets uses."""
_SORTING_COPIES = 4
_BUFFER_SHARE, _PAGE_BYTES = 0.1, 4096


@dataclass(frozen=True, slots=True)
class SessionBound:
    """``slots`` keys in memory, with room for ``buffer_records`` each.

    Records of a key belong together if less than ``gap`` (in the unit of their times) lies between them.
    """

    slots: int
    buffer_records: int
    gap: int
    directory: Path
    buckets: int = 64

    @property
    def buffers_bytes(self) -> int:
        return RECORD_BYTES * self.slots * self.buffer_records


class SessionBuffers:
    """``absorb`` records, get sessions; ``finish`` gives those that are left. INC keeps first-come keys for ever.

    Sessions come as batches with a row per record, sorted: key, start of its session, time, value. Not yet part
    of a step's changes: what is in the buffers does not outlive the process.
    """

    def __init__(self, key: pa.Field, bound: SessionBound, policy: ResidencyPolicy) -> None:
        if policy.evicts and not policy.complete_only:
            raise StateError(f"{policy} would push out open sessions; use INC, or a policy with complete_only")
        self._bound, self._watermark = bound, -NEVER
        self.index = KeyIndex([key], slots=bound.slots, policy=policy)
        self._buffers = RecordBuffers(bound.buffer_records)
        self._marks = np.full(_MARKS_PER_SLOT * bound.slots, -NEVER)
        self._turn_rows = max(bound.slots // 8, 16)
        numbers = [pa.field(name, pa.int64()) for name in ("session", "time", "value")]
        self._schema = pa.schema([key, *numbers])
        self._stored = pa.schema([pa.field(PANE, pa.int64()), key, *numbers[1:]])
        self._disk = self._disk_rows(level=0)
        self._below_bytes = 0

    @property
    def nbytes(self) -> int:
        """All memory held now."""
        return self.index.nbytes + self._buffers.nbytes + self._marks.nbytes + self._disk.nbytes

    @property
    def spill_bytes(self) -> int:
        """Written to disk so far."""
        return self._disk.written_bytes + self._below_bytes

    def absorb(self, keys: pa.Array, times: I64, values: I64, watermark: int) -> list[pa.RecordBatch]:
        """Add records, none older than ``watermark``, nor will any be; gives sessions of keys that make way."""
        self._watermark = max(watermark, self._watermark)
        if times.min(initial=NEVER) < self._watermark:
            raise StateError(f"a record of time {times.min()} came after watermark {self._watermark}")
        given: list[pa.RecordBatch] = []
        for start in range(0, len(times), self._turn_rows):
            at = slice(start, start + self._turn_rows)
            given += self._turn(keys.slice(start, self._turn_rows), times[at], values[at])
        return [batch for batch in given if batch.num_rows]

    def finish(self) -> Iterator[pa.RecordBatch]:
        """The input has ended: all sessions that are left, those in memory first."""
        rows = self.index.all_rows()
        for start in range(0, len(rows), self._turn_rows):
            yield self._sessions(rows[start : start + self._turn_rows])
        self.index.drop(rows)
        self._buffers = RecordBuffers(self._bound.buffer_records)
        yield from self._settled(self._disk, 0)

    def close(self) -> None:
        """Remove what is on disk."""
        self._disk.close()

    def _turn(self, keys: pa.Array, times: I64, values: I64) -> Iterator[pa.RecordBatch]:
        if self.index.policy.complete_only:  # a key that has a record in this turn is not complete
            self._prolong(self.index.find([keys], 0), times)
            if len(self.index) + len(times) > self._bound.slots:
                yield self._make_way()
        admission = self.index.admit([keys], 0, now=self._watermark)
        rows = admission.rows
        self._buffers.grow(self.index.capacity)
        yield self._sessions(admission.evicted)
        self.index.release(admission.evicted)
        self._mark(admission.hashes[rows < 0], times[rows < 0])
        yield self._expired(self._buffers.crowded(rows[rows >= 0]))
        leaving = np.union1d(
            self._buffers.crowded(rows[rows >= 0]),
            np.intersect1d(rows[self._is_marked(admission.hashes)], admission.fresh),
        )
        gone = (rows < 0) | np.isin(rows, leaving)
        self._banish(leaving)
        self._mark(admission.hashes[gone], times[gone])
        self._to_disk(keys.filter(pa.array(gone)), times[gone], values[gone])
        self._buffers.append(rows[~gone], times[~gone], values[~gone])
        if self.index.policy.complete_only:
            self._prolong(rows[~gone], times[~gone])

    def _make_way(self) -> pa.RecordBatch:
        """All keys whose sessions have expired leave memory: one look at each slot for an eighth as many records."""
        rows = self.index.all_rows()
        complete = rows[self.index.expires[rows] <= self._watermark]
        sessions = self._sessions(complete)
        self.index.drop(complete)
        return sessions

    def _prolong(self, rows: I64, times: I64) -> None:
        """Rows are complete a gap after these times; -1 is no row."""
        expires, ends = self.index.expires, times + self._bound.gap
        named = rows[rows >= 0]
        expires[named] = np.where(expires[named] == NEVER, -NEVER, expires[named])  # fresh rows never end yet
        np.maximum.at(expires, named, ends[rows >= 0])

    def _mark(self, hashes: U64, times: I64) -> None:
        """Keys that have records on disk, until those records' sessions have expired."""
        np.maximum.at(self._marks, bucket_of(hashes, _MARK_LEVEL, len(self._marks)), times + self._bound.gap)

    def _is_marked(self, hashes: U64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return self._marks[bucket_of(hashes, _MARK_LEVEL, len(self._marks))] > self._watermark

    def _sessions(self, rows: I64) -> pa.RecordBatch:
        """All sessions of some rows, whose buffers are empty then."""
        owners, times, values = self._buffers.take(rows)
        return self._cut(owners, self.index.key_columns(rows)[0], times, values)

    def _expired(self, rows: I64) -> pa.RecordBatch:
        """The sessions of some rows that have expired; their buffers keep the others."""
        owners, times, values = self._buffers.take(rows)
        order, _, ends = sessions_of(owners, times, self._bound.gap)
        over = np.zeros(len(order), bool)
        over[order] = ends + self._bound.gap <= self._watermark
        self._buffers.append(rows[owners[~over]], times[~over], values[~over])
        return self._cut(owners[over], self.index.key_columns(rows)[0], times[over], values[over])

    def _banish(self, rows: I64) -> None:
        """Rows leave memory; what they have goes to disk."""
        owners, times, values = self._buffers.take(rows)
        self._mark(self.index.hash_of(rows)[owners], times)
        self._to_disk(self.index.key_columns(rows)[0].take(pa.array(owners)), times, values)
        self.index.drop(rows)

    def _cut(self, codes: I64, keys: pa.Array, times: I64, values: I64) -> pa.RecordBatch:
        """Sessions of records whose keys are ``keys[codes]``."""
        order, starts, _ = sessions_of(codes, times, self._bound.gap)
        columns = [keys.take(pa.array(codes[order])), pa.array(starts), pa.array(times[order]), pa.array(values[order])]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _to_disk(self, keys: pa.Array, times: I64, values: I64) -> None:
        columns = [pa.array(np.zeros(len(times), np.int64)), keys, pa.array(times), pa.array(values)]
        rows = pa.RecordBatch.from_arrays(columns, schema=self._stored)
        self._disk.add(rows)

    def _disk_rows(self, level: int) -> DiskRows:
        buffer_bytes = max(_PAGE_BYTES, int(_BUFFER_SHARE * self._bound.buffers_bytes))
        return DiskRows(self._stored, partial(self._buckets_of, level), _one_slice, self._bound.directory, buffer_bytes)

    def _buckets_of(self, level: int, rows: pa.RecordBatch) -> Buckets:
        return bucket_of(self.index.key_hashes([rows.column(1)]), level, self._bound.buckets)

    def _settled(self, disk: DiskRows, level: int) -> Iterator[pa.RecordBatch]:
        """The sessions on disk, bucket by bucket; one too large to be sorted is spread by another hash function."""
        for bucket in range(self._bound.buckets):
            too_large = disk.size_of(0, bucket) * _SORTING_COPIES > self._bound.buffers_bytes
            if too_large and level < _DEEPEST:
                yield from self._spread(disk, bucket, level + 1)
            elif parts := list(disk.read(0, bucket)):
                rows = pa.concat_batches(parts)
                numbers = KeyIndex([rows.schema.field(1)])
                codes = numbers.admit([rows.column(1)], 0).rows
                keys = numbers.key_columns(numbers.all_rows())[0]
                yield self._cut(codes, keys, rows.column("time").to_numpy(), rows.column("value").to_numpy())

    def _spread(self, disk: DiskRows, bucket: int, level: int) -> Iterator[pa.RecordBatch]:
        below = self._disk_rows(level)
        try:
            for rows in disk.read(0, bucket):
                below.add(rows)
            yield from self._settled(below, level)
        finally:
            self._below_bytes += below.written_bytes
            below.close()


def _one_slice(rows: pa.RecordBatch) -> Slices:
    return np.zeros(rows.num_rows, np.uint16)


def sessions_of(codes: I64, times: I64, gap: int) -> tuple[I64, I64, I64]:
    """Records sorted by code and time, and when the session of each of them starts and ends.

    >>> sessions_of(np.array([7, 5, 7, 7]), np.array([40, 3, 10, 12]), 10)[1:]
    (array([ 3, 10, 10, 40]), array([ 3, 12, 12, 40]))
    """
    order = np.lexsort((times, codes))
    of, at = codes[order], times[order]
    heads = np.ones(len(order), bool)
    heads[1:] = (of[1:] != of[:-1]) | (at[1:] - at[:-1] >= gap)
    first = np.flatnonzero(heads)
    lengths = np.diff(np.append(first, len(order)))
    return order, np.repeat(at[first], lengths), np.repeat(at[first + lengths - 1], lengths)
