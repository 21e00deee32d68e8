"""The store behind interval joins: one side's rows, found by key and time, dropped when their time has passed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.graph.windowing import FOREVER_US
from headrace.state.compiled import I64, U8, U64, read_only
from headrace.state.durable.changes import (
    ID_BYTES,
    ID_COLUMNS,
    ZERO_DIGEST,
    Change,
    Digest,
    Pending,
    id_batch,
    no_ids,
    plus,
    split_by_slice,
    stamps_of,
    total,
    with_ids,
)
from headrace.state.hashing import hash_columns
from headrace.state.stores.meeting import ALONE, END, link, meet, pop_rows, push_rows
from headrace.state.stores.rowchunks import RowChunks

TIME, KNOWN, MATCHED = "__time", "__known", "__matched"
_IS_MATCHED, _IS_TOLD, _TOLD_MATCHED, _IS_GONE = (np.uint8(1 << bit) for bit in range(4))
_FEWEST = 1024
_AT_ONCE = 65_536
"""Pairs, or rows whose time has passed, that are handed over at once: a key's may be many more than memory holds."""
Mask = npt.NDArray[np.bool_]
Slices = npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Newcomers:
    """Records on their way in: ``knowns`` are the later of each one's time and its own watermark (µs); ``lone`` ones have
    a null in their key, which equals nothing.
    """

    records: pa.RecordBatch
    hashes: U64
    lone: Mask
    times: I64
    knowns: I64

    @staticmethod
    def of(
        records: pa.RecordBatch, keys: tuple[str, ...], times: I64, knowns: I64, hashes: U64 | None = None
    ) -> Newcomers:
        """``hashes`` of their keys, if they are known."""
        columns = [records.column(key) for key in keys]
        lone = np.zeros(records.num_rows, bool)
        for column in columns:
            if column.null_count:
                lone |= pc.is_null(column).to_numpy(zero_copy_only=False)
        return Newcomers(records, hash_columns(columns) if hashes is None else hashes, lone, times, knowns)

    def where(self, mask: Mask) -> Newcomers:
        records = self.records.filter(pa.array(mask))
        return Newcomers(records, self.hashes[mask], self.lone[mask], self.times[mask], self.knowns[mask])


@dataclass(frozen=True, slots=True)
class Kept:
    """Records that are, or were, in memory: who they are, and whether they were matched."""

    new: Newcomers
    counters: U64
    matched: Mask


def equal_keys(one: pa.RecordBatch, other: pa.RecordBatch, keys: tuple[str, ...]) -> Mask | None:
    """Which pairs of equal hash have equal keys; None if all have."""
    equal = pc.equal(one.column(keys[0]), other.column(keys[0]))
    for key in keys[1:]:
        equal = pc.and_(equal, pc.equal(one.column(key), other.column(key)))
    if pc.all(equal, skip_nulls=False).as_py():
        return None
    mask: Mask = pc.fill_null(equal, False).to_numpy(zero_copy_only=False)
    return mask


@dataclass(slots=True)
class _Facts:
    """What is known of each row besides its columns; ``links`` leads to the next row of its chain."""

    hashes: U64
    times: I64
    knowns: I64
    counters: U64
    links: I64
    flags: U8

    @staticmethod
    def with_room(rows: int) -> _Facts:
        words = (np.empty(rows, np.uint64), np.empty(rows, np.int64), np.empty(rows, np.int64))
        return _Facts(*words, np.empty(rows, np.uint64), np.empty(rows, np.int64), np.zeros(rows, np.uint8))

    def moved(self, rows: I64 | slice, room: int) -> _Facts:
        """The facts of some rows, in as many places more than that as there is room."""
        made = _Facts.with_room(room)
        for field in fields(self):
            some = getattr(self, field.name)[rows]
            getattr(made, field.name)[: len(some)] = some
        return made

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, field.name).nbytes for field in fields(self))


@dataclass(frozen=True, slots=True)
class _Graves:
    """Rows that changes have told and that are gone: identities, and stamps as they were told."""

    slices: Slices
    counters: U64
    stamps: U64


class TimedRows:
    """Rows of one side, each kept until the watermark is more than ``reach_us`` past its time.

    ``pane_us`` is as long as the interval. ``noting``: it is remembered which rows were matched. A row's identity is its
    slice and a counter.
    """

    def __init__(
        self, schema: pa.Schema, keys: tuple[str, ...], reach_us: int, pane_us: int, slices: int, *, noting: bool
    ) -> None:
        self.schema, self.reach_us, self.noting = schema, reach_us, noting
        self._keys, self._pane_us, self._slices = keys, pane_us, slices
        self._stored_schema = pa.schema([*schema, (TIME, pa.int64()), (KNOWN, pa.int64()), (MATCHED, pa.bool_())])
        self._rows = RowChunks(schema)
        self._facts = _Facts.with_room(_FEWEST)
        self._queue = np.empty(_FEWEST, np.int64)
        self._queued = 0
        self._heads = self._tails = np.empty(0, np.int64)
        self._chains = 0
        self._new_table(_FEWEST)
        self._graves: list[_Graves] = []
        self._dirty_rows = 0
        self._digests: dict[int, Digest] = {}
        self._next = 1

    def __len__(self) -> int:
        return self._queued

    @property
    def held_us(self) -> int:
        """When the next row will have passed."""
        return int(self._facts.times[self._queue[0]]) + self.reach_us if self._queued else FOREVER_US

    def add(self, new: Newcomers, matched: Mask) -> Kept:
        """Keep records."""
        n = len(new.times)
        counters = np.arange(self._next, self._next + n, dtype=np.uint64)
        self._next += n
        self._dirty_rows += n
        self._append(new, counters, np.where(matched, _IS_MATCHED, np.uint8(0)))
        return Kept(new, counters, matched)

    def meeting(self, new: Newcomers, back_us: int, ahead_us: int) -> Iterator[tuple[I64, I64]]:
        """Which of the new records meet which rows, by hash and time, some at a time; rows ascend."""
        facts, place = self._facts, np.array([0, 0, ALONE], np.int64)
        asking = read_only(new.hashes), read_only(new.times), read_only(new.knowns), read_only(new.lone)
        while place[0] < len(new.times):
            found = np.empty(_AT_ONCE, np.int64), np.empty(_AT_ONCE, np.int64)
            count = int(
                meet(
                    self._heads, facts.hashes, facts.times, facts.knowns, facts.links, self._pane_us, *asking, back_us,
                    ahead_us, place, *found,
                )
            )  # fmt: skip
            if count:
                order = np.argsort(found[1][:count], kind="stable")
                yield found[0][order], found[1][order]

    def records(self, rows: I64) -> pa.RecordBatch:
        """Rows by their ascending numbers, which may occur more than once."""
        return self._rows.take(rows)

    def knowns(self, rows: I64) -> I64:
        return self._facts.knowns[rows]

    def match(self, rows: I64) -> None:
        """Note that rows were matched."""
        flags = self._facts.flags[rows]
        self._dirty_rows += int(np.count_nonzero((flags & (_IS_MATCHED | _IS_TOLD)) == _IS_TOLD))
        self._facts.flags[rows] = flags | _IS_MATCHED

    def expire(self, watermark_us: int) -> Iterator[tuple[pa.RecordBatch, I64]]:
        """Drop what has passed; if it is noted who was matched, the records that were not, with their times."""
        while True:
            found = np.empty(min(self._queued, _AT_ONCE), np.int64)
            count = int(pop_rows(self._queue, self._queued, self._facts.times, watermark_us - self.reach_us, found))
            if not count:
                break
            self._queued -= count
            rows = np.sort(found[:count])
            if self.noting and len(alone := rows[self._facts.flags[rows] & _IS_MATCHED == 0]):
                yield self.records(alone), self._facts.times[alone]
            self._facts.flags[rows] |= _IS_GONE
            self._dirty_rows += count
        if len(self._rows) > max(2 * self._queued, _FEWEST):
            self._keep(self._live())

    def match_kept(self, hashes: U64, counters: U64) -> None:
        """The same for rows that are known by their identities."""
        slices, facts, rows = np.uint64(self._slices), self._facts, slice(0, len(self._rows))
        wanted = counters * slices + hashes % slices
        here = np.isin(facts.counters[rows] * slices + facts.hashes[rows] % slices, wanted)
        self.match(np.flatnonzero(here & self._live()))

    def leave(self, runs: int) -> Iterator[Kept]:
        """The earlier half of the rows, dropped here: in runs, earlier times first."""
        facts, live = self._facts, np.flatnonzero(self._live())
        earliest = live[np.argsort(facts.times[live], kind="stable")][: -(-len(live) // 2)]
        for part in np.array_split(earliest, min(runs, len(earliest))):
            rows = np.sort(part)
            new = Newcomers.of(
                self.records(rows), self._keys, facts.times[rows], facts.knowns[rows], facts.hashes[rows]
            )
            yield Kept(new, facts.counters[rows], facts.flags[rows] & _IS_MATCHED != 0)
        facts.flags[earliest] |= _IS_GONE
        self._dirty_rows += len(earliest)
        self._keep(self._live())

    # As a store.

    def changes(self) -> list[Change]:
        return list(self.swap()())

    def copy_ahead(self) -> None:
        """A swap copies what is new, and leaves the rest for later."""

    def swap(self) -> Pending:
        self._bury()
        flags = self._facts.flags[: len(self._rows)]
        new = np.flatnonzero(flags & (_IS_TOLD | _IS_GONE) == 0)
        since = np.flatnonzero(flags & 15 == _IS_TOLD | _IS_MATCHED)
        told = self._stored(new), self._stored(since)
        for rows in (new, since):
            flags[rows] |= np.where(flags[rows] & _IS_MATCHED, _IS_TOLD | _TOLD_MATCHED, _IS_TOLD)
        graves, self._graves, self._dirty_rows = self._graves, [], 0
        return partial(self._changes, *told, graves)

    @property
    def nbytes(self) -> int:
        tables = self._heads.nbytes + self._tails.nbytes + self._queue.nbytes
        return self._rows.nbytes + self._facts.nbytes + tables

    def dirty_bytes(self) -> int:
        row_bytes = self._rows.nbytes // max(len(self._rows), 1) + 2 * ID_BYTES
        return self._dirty_rows * row_bytes

    def give_away(self, slices: frozenset[int]) -> None:
        self._keep(self._live() & ~np.isin(self._slices_of(slice(0, len(self._rows))), sorted(slices)))

    def expect(self, rows: int) -> None:
        """Room is made as rows come."""

    def load(self, slice: int, image: pa.RecordBatch, digest: Digest) -> None:
        self._digests[slice] = digest
        if not image.num_rows:
            return
        times, knowns = (np.array(image.column(name)) for name in (TIME, KNOWN))
        counters = image.column(ID_COLUMNS[1]).to_numpy()
        self._next = max(self._next, int(counters.max()) + 1)
        matched = image.column(MATCHED).to_numpy(zero_copy_only=False)
        flags = np.where(matched, _IS_MATCHED | _IS_TOLD | _TOLD_MATCHED, _IS_TOLD)
        self._append(Newcomers.of(image.select(self.schema.names), self._keys, times, knowns), counters, flags)

    def _append(self, new: Newcomers, counters: U64, flags: U8) -> None:
        start, end = len(self._rows), len(self._rows) + len(counters)
        if end > len(self._facts.times):
            self._facts = self._facts.moved(slice(0, start), 2 * end)
            self._queue = np.concatenate((self._queue[: self._queued], np.empty(2 * end - self._queued, np.int64)))
        facts = self._facts
        facts.hashes[start:end], facts.times[start:end], facts.knowns[start:end] = new.hashes, new.times, new.knowns
        facts.counters[start:end], facts.flags[start:end] = counters, flags
        facts.links[start:end] = np.where(new.lone, ALONE, END)
        self._rows.append(new.records)
        push_rows(self._queue, self._queued, facts.times, start, end)
        self._queued += end - start
        if 2 * (self._chains + end - start) > len(self._heads):
            self._new_table(self._chains + end - start)
            start = 0
        self._link(start)

    def _link(self, start: int) -> None:
        facts = self._facts
        made = link(
            self._heads, self._tails, facts.hashes, facts.times, facts.links, self._pane_us, start, len(self._rows)
        )
        self._chains += int(made)

    def _new_table(self, chains: int) -> None:
        slots = 1 << (2 * max(chains, _FEWEST) - 1).bit_length()
        self._heads, self._tails, self._chains = np.full(slots, END), np.empty(slots, np.int64), 0

    def _live(self) -> Mask:
        live: Mask = self._facts.flags[: len(self._rows)] & _IS_GONE == 0
        return live

    def _keep(self, kept: Mask) -> None:
        """Forget the other rows, wherever they are remembered."""
        self._bury()
        rows = np.flatnonzero(kept)
        self._facts = self._facts.moved(rows, max(2 * len(rows), _FEWEST))
        self._rows.keep(kept)
        self._queue, self._queued = np.empty(len(self._facts.times), np.int64), len(rows)
        self._queue[: len(rows)] = np.argsort(self._facts.times[: len(rows)])  # what is sorted is a heap
        self._new_table(len(rows))
        self._link(0)

    def _bury(self) -> None:
        """Set aside what changes have to say of rows that are gone and were told."""
        flags = self._facts.flags[: len(self._rows)]
        told = np.flatnonzero(flags & (_IS_TOLD | _IS_GONE) == _IS_TOLD | _IS_GONE)
        if len(told):
            stamps = stamps_of(self._stored(told, _TOLD_MATCHED))
            self._graves.append(_Graves(self._slices_of(told), self._facts.counters[told], stamps))
            flags[told] = _IS_GONE

    def _stored(self, rows: I64, matched: np.uint8 = _IS_MATCHED) -> pa.RecordBatch:
        facts = self._facts
        facts_of = [
            pa.array(facts.times[rows]),
            pa.array(facts.knowns[rows]),
            pa.array(facts.flags[rows] & matched != 0),
        ]
        stored = pa.RecordBatch.from_arrays([*self.records(rows).columns, *facts_of], schema=self._stored_schema)
        return with_ids(stored, (self._slices_of(rows).astype(np.uint64), facts.counters[rows]))

    def _slices_of(self, rows: I64 | slice) -> Slices:
        slices: Slices = (self._facts.hashes[rows] % np.uint64(self._slices)).astype(np.uint16)
        return slices

    def _changes(self, new: pa.RecordBatch, since: pa.RecordBatch, graves: list[_Graves]) -> list[Change]:
        """``since``: rows that were told as not matched, and have been since then."""
        before = since.set_column(
            since.schema.get_field_index(MATCHED), MATCHED, pa.array(np.zeros(since.num_rows, bool))
        )
        puts = pa.concat_batches([new, since])
        put_slices, since_slices = (batch.column(ID_COLUMNS[0]).to_numpy().astype(np.uint16) for batch in (puts, since))
        lost_slices = np.concatenate([*(grave.slices for grave in graves), since_slices])
        lost_stamps = np.concatenate([*(grave.stamps for grave in graves), stamps_of(before)])
        counters = np.concatenate([*(grave.counters for grave in graves), np.zeros(0, np.uint64)])
        put_stamps, put_at, lost_at = (
            stamps_of(puts),
            dict(split_by_slice(put_slices)),
            dict(split_by_slice(lost_slices)),
        )
        changes = []
        for of in sorted(put_at.keys() | lost_at.keys()):
            put, lost = put_at.get(of, _NONE), lost_at.get(of, _NONE)
            parent = self._digests.get(of, ZERO_DIGEST)
            self._digests[of] = plus(plus(parent, total(lost_stamps[lost]), -1), total(put_stamps[put]))
            gone = counters[lost[lost < len(counters)]]
            deletes = id_batch((np.full(len(gone), of, np.uint64), gone)) if len(gone) else no_ids()
            changes.append(Change(of, puts.take(pa.array(put)), deletes, parent, self._digests[of]))
        return changes


_NONE = np.zeros(0, np.int64)
