"""Rows of one side of an interval join beyond memory, and the records that look for them there.

Rows leave memory earliest first, in *runs*. A run is a pane of the files, named by the latest time in it, so that its name
says when all of it has passed. Records of the other side that may meet rows here are written down and look for them
later, many at once: bucket by bucket a block of them is indexed, and the runs of their times are read past it. So memory
is bounded, whatever the keys are like: also one key's rows may be more than fit (MR-hash, SCALLA 2.4, would go on
dividing buckets for ever).

Nothing is added here while anybody waits for an answer; so who asked meets exactly the rows that were here then, and has
met those in memory already.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.graph.windowing import FOREVER_US, Interval
from headrace.state.compiled import I64, U64
from headrace.state.durable.changes import PANE, Store
from headrace.state.spill.bounds import Bound
from headrace.state.spill.buckets import Marks, bucket_of
from headrace.state.spill.diskrows import DiskRows
from headrace.state.stores.timedrows import KNOWN, MATCHED, TIME, Kept, Newcomers, TimedRows, equal_keys

HASH, COUNTER = "__hash", "__counter"
_OWN = (
    *((PANE, pa.int64()), (TIME, pa.int64()), (KNOWN, pa.int64())),
    *((MATCHED, pa.bool_()), (HASH, pa.uint64()), (COUNTER, pa.uint64())),
)
_MARK_SCHEMA = pa.schema([(PANE, pa.int64()), (HASH, pa.uint64()), (COUNTER, pa.uint64())])
_BUFFER_SHARE, _BLOCK_SHARE = 0.03, 0.05
"""Of the memory bound: each of a side's three buffers, and the records that are indexed at once."""
_FILTER_SHARE = 64
"""A byte in so many of the memory bound says which keys have rows here."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of this side, the records of the other that they meet, and the times of the pairs; hashes and counters of those
    who asked and met any.
    """

    rows: pa.RecordBatch
    records: pa.RecordBatch
    times: I64
    met: tuple[U64, U64]


class FarRows:
    """One side's rows on disk: ``port`` of the join; ``schemas`` of this side and the other."""

    def __init__(
        self, port: int, schemas: tuple[pa.Schema, pa.Schema], keys: tuple[str, ...], interval: Interval, bound: Bound, *,
        noting: bool,
    ) -> None:  # fmt: skip
        self._schemas, self._keys, self._noting, self._bound = schemas, keys, noting, bound
        self._ahead_us, self._back_us = interval.reach_us(port), interval.reach_us(1 - port)
        self._pane_us = interval.before_us + interval.after_us + 1
        self._buckets = bound.buckets_behind(int(bound.memory_bytes * _BUFFER_SHARE))
        self._written = tuple(pa.schema([*_OWN, *schema]) for schema in schemas)
        self._rows, self._asked = (self._disk(schema) for schema in self._written)
        self._marks = self._disk(_MARK_SCHEMA)
        self._filter = Marks(max(bound.memory_bytes // _FILTER_SHARE, 1024))
        self._earliest: dict[int, int] = {}
        self._asked_us = FOREVER_US

    def stores(self, side: str) -> dict[str, Store]:
        return {f"{side}-far": self._rows, f"{side}-asked": self._asked, f"{side}-marks": self._marks}

    @property
    def waiting(self) -> bool:
        """Whether anybody waits for an answer."""
        return self._asked_us < FOREVER_US

    @property
    def held_us(self) -> int:
        """The earliest result that may still come from here."""
        alone_us = min(self._earliest.values(), default=FOREVER_US) + self._ahead_us if self._noting else FOREVER_US
        return min(self._asked_us, alone_us)

    def put(self, kept: Kept) -> None:
        """One run of rows that leave memory."""
        assert not self.waiting, "whoever asked would meet rows that it has met"
        run = int(kept.new.times.max())
        self._rows.add(_written(kept, run, self._written[0]))
        self._know(run, kept.new)

    def ask(self, kept: Kept) -> None:
        """Records of the other side, of which some may meet rows here."""
        if not self._earliest:
            return
        new = kept.new
        may = ~new.lone & self._filter.has(new.hashes)
        may &= (new.knowns - self._ahead_us <= max(self._earliest)) & (
            new.times + self._back_us >= min(self._earliest.values())
        )
        if may.any():
            some = Kept(new.where(may), kept.counters[may], kept.matched[may])
            self._asked.add(_written(some, 0, self._written[1]))
            self._asked_us = min(self._asked_us, int(some.new.knowns.min()))

    def answers(self) -> Iterator[Answer]:
        """What all that asked meet here."""
        for bucket in range(self._buckets):
            if self._asked.size_of(0, bucket):
                for block in self._blocks(bucket):
                    yield from self._met(bucket, block)
        self._asked.drop(0)
        self._asked_us = FOREVER_US

    def passed(self, watermark_us: int) -> bool:
        """Whether a whole run has passed."""
        return bool(self._earliest) and min(self._earliest) + self._ahead_us < watermark_us

    def expire(self, watermark_us: int) -> Iterator[tuple[pa.RecordBatch, I64]]:
        """As ``TimedRows.expire``, for runs of which all has passed."""
        for run in sorted(run for run in self._earliest if run + self._ahead_us < watermark_us):
            if self._noting:
                for bucket in range(self._buckets):
                    yield from self._unmatched(run, bucket)
            self._rows.drop(run)
            self._marks.drop(run)
            del self._earliest[run]
        if not self._earliest:
            self._filter.clear()

    def restored(self) -> None:
        """The stores have been loaded: look at what is there."""
        for run in self._rows.panes():
            for bucket in range(self._buckets):
                for rows in self._rows.read(run, bucket):
                    self._know(run, self._newcomers(rows, 0))
        for bucket in range(self._buckets):
            for rows in self._asked.read(0, bucket):
                self._asked_us = min(self._asked_us, int(rows.column(KNOWN).to_numpy().min()))

    def close(self) -> None:
        for disk in (self._rows, self._asked, self._marks):
            disk.close()

    def _know(self, run: int, rows: Newcomers) -> None:
        self._earliest[run] = min(self._earliest.get(run, FOREVER_US), int(rows.times.min()))
        self._filter.add(rows.hashes)

    def _blocks(self, bucket: int) -> Iterator[list[pa.RecordBatch]]:
        """Records that asked, as many as are indexed at once."""
        block, size = list[pa.RecordBatch](), 0
        for rows in self._asked.read(0, bucket):
            block.append(rows)
            size += rows.nbytes
            if size >= self._bound.memory_bytes * _BLOCK_SHARE:
                yield block
                block, size = [], 0
        if block:
            yield block

    def _met(self, bucket: int, block: list[pa.RecordBatch]) -> Iterator[Answer]:
        asked = pa.concat_batches(block)
        new = self._newcomers(asked, 1)
        index = TimedRows(self._schemas[1], self._keys, 0, self._pane_us, self._bound.slices, noting=False)
        index.add(new, np.zeros(len(new.times), bool))
        counters = asked.column(COUNTER).to_numpy()
        first_us, last_us = int(new.knowns.min()) - self._ahead_us, int(new.times.max()) + self._back_us
        for run in [run for run, earliest in self._earliest.items() if run >= first_us and earliest <= last_us]:
            for rows in self._rows.read(run, bucket):
                mine = self._newcomers(rows, 0)
                for at, found in index.meeting(mine, self._back_us, self._ahead_us):
                    one, other = mine.records.take(pa.array(at)), index.records(found)
                    equal = equal_keys(one, other, self._keys)
                    if equal is not None:
                        at, found = at[equal], found[equal]
                        one, other = one.filter(pa.array(equal)), other.filter(pa.array(equal))
                    if self._noting:
                        self._mark(run, rows.take(pa.array(np.unique(at))))
                    who = np.unique(found)
                    times = np.maximum(mine.knowns[at], new.knowns[found])
                    yield Answer(one, other, times, (new.hashes[who], counters[who]))

    def _mark(self, run: int, rows: pa.RecordBatch) -> None:
        """Note that rows were matched, those that were not when they came here."""
        rows = rows.filter(pa.array(~rows.column(MATCHED).to_numpy(zero_copy_only=False)))
        columns = [pa.array(np.full(rows.num_rows, run)), rows.column(HASH), rows.column(COUNTER)]
        self._marks.add(pa.RecordBatch.from_arrays(columns, schema=_MARK_SCHEMA))

    def _unmatched(self, run: int, bucket: int) -> Iterator[tuple[pa.RecordBatch, I64]]:
        marks = [self._identities(rows) for rows in self._marks.read(run, bucket)]
        marked = np.concatenate([np.zeros(0, np.uint64), *marks])
        for rows in self._rows.read(run, bucket):
            alone = ~rows.column(MATCHED).to_numpy(zero_copy_only=False) & ~np.isin(self._identities(rows), marked)
            if alone.any():
                kept = rows.filter(pa.array(alone))
                yield kept.select(self._schemas[0].names), kept.column(TIME).to_numpy()

    def _identities(self, rows: pa.RecordBatch) -> U64:
        """A number for each row, of its slice and counter, as a row's identity is."""
        slices = np.uint64(self._bound.slices)
        numbers: U64 = rows.column(COUNTER).to_numpy() * slices + rows.column(HASH).to_numpy() % slices
        return numbers

    def _newcomers(self, rows: pa.RecordBatch, of: int) -> Newcomers:
        times, knowns, hashes = (np.array(rows.column(name)) for name in (TIME, KNOWN, HASH))
        return Newcomers.of(rows.select(self._schemas[of].names), self._keys, times, knowns, hashes)

    def _disk(self, schema: pa.Schema) -> DiskRows:
        buckets, slices = self._buckets, np.uint64(self._bound.slices)
        return DiskRows(
            schema,
            lambda rows: bucket_of(rows.column(HASH).to_numpy(), 0, buckets),
            lambda rows: (rows.column(HASH).to_numpy() % slices).astype(np.uint16),
            self._bound.directory,
            int(self._bound.memory_bytes * _BUFFER_SHARE),
        )


def _written(kept: Kept, run: int, schema: pa.Schema) -> pa.RecordBatch:
    new = kept.new
    facts = [np.full(len(new.times), run), new.times, new.knowns, kept.matched, new.hashes, kept.counters]
    return pa.RecordBatch.from_arrays([*map(pa.array, facts), *new.records.columns], schema=schema)
