"""States of keys in bounded memory, where records change states one by one (SCALLA 2.5, 2.6, streaming variant).

A key is either *resident*, with all of its state in memory and results at once; or its state rests on disk, its
records wait there too, and its results are *deferred*. When they are wanted (at a cut every few seconds, or the watermark has
passed what is on disk for long enough), waiting records and resting states are brought together bucket by bucket: the
states of a bucket are read into a table of the same kind, its records go through the same code as those of resident
keys, and what changed is written back. That table is bounded as well: what does not fit goes to buckets of the next
level, by another hash function (``runtime.reduce.overflow``).

Where we depart from the thesis: it merges the parts of a key's state at the end of the input. Here results are wanted
while the input goes on, and a count window or a session cannot be divided anywhere, so a state is never in two places.
A key that the policy wants in memory while something of it is on disk therefore *arrives*: it has its slot, and gets
its state when its bucket is next read. Whether something is on disk is remembered by a hash of the key.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headrace.graph.windowing import FOREVER_US, NEVER_US
from headrace.runtime.batch import Batch
from headrace.runtime.reduce.overflow import Overflow, OverflowParts
from headrace.state.durable.changes import Store
from headrace.state.grouping import Rows
from headrace.state.spill.bounds import Bound
from headrace.state.spill.buckets import Marks

_SPLIT_MARKS = 65_536
"""Bytes, while slices are loaded."""


class Deferring(Overflow):
    """All states of a step in one subtask.

    ``held_us`` is the earliest result that may still follow from what is on disk: no later watermark may be passed
    on. ``keeps_slots``: a key without a state keeps its slot.
    """

    def __init__(self, parts: OverflowParts, bound: Bound, *, eager: bool, keeps_slots: bool) -> None:
        super().__init__(parts, bound, eager=eager)
        self._keeps_slots = keeps_slots
        self._split = Marks(_SPLIT_MARKS)
        self.table.overflow = self._overflow

    def stores(self) -> dict[str, Store]:
        """To be loaded in this order: what finds no room in the table gets new identities on disk."""
        return {"waiting": self.waiting, "resting": self.resting.disk, "": self.table}

    def restored(self) -> None:
        """The stores have been loaded, maybe into less memory than before."""
        self.resting.restored()
        for bucket in range(self.bound.bucket_count):
            for versions in self.resting.read(bucket):
                self.residents.mark(self._keys_in(versions.partial))
            for waiting in self.waiting.read(0, bucket):
                self.residents.mark(self._parts.form.keys(waiting))
        if self.on_disk and self.states.patience_us is not None:
            self.held_us = NEVER_US  # not known, so look at the first watermark
        self.states.loaded(self.table.all_rows())
        self._push_rows(self._split_rows())
        rows = self.table.all_rows()
        for start in range(0, len(rows), self._turn_rows):
            some = rows[start : start + self._turn_rows]
            room = max(self._slots - start, 0)
            self.residents.place(self.table.key_columns(some[:room]))
            beyond = some[room:]
            self._push_rows(beyond[~self.residents.here(self.table.key_columns(beyond))])

    def take(self, batch: Batch) -> Iterator[Batch]:
        for start in range(0, batch.rows, self._turn_rows):
            at = np.arange(start, min(start + self._turn_rows, batch.rows))
            part = batch.take(at) if len(at) < batch.rows else batch
            here, evicted = self._admit(self._parts.key_columns(part.records))
            if here.any():
                yield from self.states.take(part if here.all() else part.where(here))
            if not here.all():
                away = part.where(~here)
                self.held_us = min(self.held_us, self.states.waits_us(away.times))
                self.waiting.add(self._parts.form.stored(away))
            yield from self._make_room(evicted)

    def close(self, watermark_us: int) -> Iterator[Batch]:
        """All input up to the watermark has been seen."""
        for results in self.states.close(watermark_us):
            yield results
            if not self._keeps_slots:
                self._retire(results.records.columns[: len(self.table.key_fields)])
        patience_us = self.states.patience_us
        if watermark_us >= FOREVER_US or (patience_us is not None and watermark_us - patience_us >= self.held_us):
            yield from self.settle(watermark_us)

    def end(self, watermark_us: int) -> Iterator[Batch]:
        """Results that were deferred are wanted."""
        yield from self.states.end()
        if self.states.patience_us is None or watermark_us > self.held_us:
            yield from self.settle(watermark_us)

    def settle(self, watermark_us: int) -> Iterator[Batch]:
        """Bring together what waits and what rests."""
        if not self.on_disk:
            return
        if self.resting.worn:
            self.renewing = True
            self.resting.renew()
            self.residents.marks.clear()
        yield from self._settle_buckets(watermark_us)
        self.waiting.drop(0)
        if self.renewing:
            self.renewing = False
            self.resting.renewed()
        arrived = self.residents.arrived()
        if not self._keeps_slots:
            self._retire(arrived)
        yield from self._relieve()

    def take_up(self, partial: pa.RecordBatch) -> None:
        arrives = self.residents.arrives(self._keys_in(partial))
        if not arrives.all():
            self._rest(partial.filter(pa.array(~arrives)))
        if arrives.any():
            coming = partial.filter(pa.array(arrives))
            self.table.widen(len(self.table) + coming.num_rows)
            made, _ = self.table.replace(coming, np.zeros(coming.num_rows, bool))
            self.states.loaded(made)
            if not self.renewing:
                self.resting.forget(coming.column(0).to_numpy(), self._keys_in(coming))

    def take_away(self, panes: Rows, keys: list[pa.Array]) -> None:
        rows = self.table.index.find(keys, panes)
        self.states.drop(rows[rows >= 0])  # it may have arrived before
        self.resting.forget(panes, keys)

    @property
    def on_disk(self) -> bool:
        """Whether there is anything on disk."""
        return bool(self.waiting.panes() or self.resting.disk.panes())

    def _retire(self, keys: list[pa.Array]) -> None:
        """Keys that have no state any more give back their slots."""
        left = self.table.key_columns(self.states.rows_of(keys))
        self.residents.leave(keys, but=left)

    def _overflow(self, partial: pa.RecordBatch) -> None:
        """Rows that found no room when they were loaded; what else there is of their keys must follow."""
        self.resting.resume()
        self._split.add(self.residents.hashes(self._keys_in(partial)))
        self._rest(partial)

    def _split_rows(self) -> Rows:
        rows = self.table.all_rows()
        split = [
            self._split.has(self.residents.hashes(self.table.key_columns(rows[start : start + self._turn_rows])))
            for start in range(0, len(rows), self._turn_rows)
        ]
        found: Rows = rows[np.concatenate([np.zeros(0, bool), *split])]
        return found
