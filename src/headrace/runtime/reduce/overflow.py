"""States of keys in a table that may be too small for them, with disk buckets for the rest.

What is common to the table of a step (``runtime.reduce.deferring``) and to those that its buckets are read into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from headrace.graph.windowing import FOREVER_US
from headrace.runtime.batch import Batch
from headrace.runtime.reduce.keystates import KeyStates
from headrace.runtime.reduce.waiting import Form
from headrace.state.allocator import give_back_freed
from headrace.state.grouping import Rows
from headrace.state.spill.bounds import SETTLING_SHARE, TABLE_SHARE, Bound, keys_for
from headrace.state.spill.buckets import bucket_of
from headrace.state.spill.diskrows import Buckets
from headrace.state.spill.residents import Mask, Residents, resident_bytes
from headrace.state.spill.resting import Resting, RestingVersions, Shelf
from headrace.state.table.rowtable import GroupTable, nowhere, unnoticed

_RELIEF = 8
"""One of so many keys leaves when states that grow have filled their room."""


@dataclass(frozen=True, slots=True)
class OverflowParts:
    """How to make what is needed: ``table(slots)``, ``states(table, eager)``; records' keys; how input waits."""

    table: Callable[[int], GroupTable]
    states: Callable[[GroupTable, bool], KeyStates]
    key_columns: Callable[[pa.RecordBatch], list[pa.Array]]
    form: Form


class Overflow:
    """Resident keys in a table, the others on disk: their states in ``resting``, their input in ``waiting``."""

    def __init__(self, parts: OverflowParts, bound: Bound, *, eager: bool) -> None:
        give_back_freed()
        self._parts, self.bound = parts, bound
        probe = parts.table(1)
        keys = probe.key_fields
        more = resident_bytes(keys, bound.engine) + parts.states(probe, False).row_bytes
        slots, self._turn_rows = keys_for(probe, bound.memory_bytes, more, evicts=bound.engine != "inc")
        self._slots = bound.slots or slots
        self.residents = Residents(keys, self._slots, self._turn_rows, bound.engine)
        self.states = parts.states(parts.table(self._slots + self._turn_rows), eager)
        shelf = Shelf(self._bucket_of, bound.bucket_count, bound.slices, bound.directory, bound.buffer_bytes // 2)
        self.waiting = shelf.rows(parts.form.schema, parts.form.keys)
        self.resting = Resting(self.table.partial_schema, len(keys), shelf)
        self.held_us = FOREVER_US
        self.renewing = False
        self._dice = np.random.default_rng(0)
        self._below: Bucket | None = None
        self._below_bytes = 0

    @property
    def table(self) -> GroupTable:
        return self.states.table

    @property
    def nbytes(self) -> int:
        """All memory held now."""
        below = self._below.nbytes if self._below is not None else 0
        return self._table_bytes + self.waiting.nbytes + self.resting.disk.nbytes + below

    @property
    def spill_bytes(self) -> int:
        """Written to disk so far, at all levels."""
        return self.waiting.written_bytes + self.resting.disk.written_bytes + self._below_bytes

    def take_stored(self, rows: pa.RecordBatch) -> Iterator[Batch]:
        """Take input in the form in which it waits."""
        form = self._parts.form
        for start in range(0, rows.num_rows, self._turn_rows):
            part = rows.slice(start, self._turn_rows)
            here, evicted = self._admit(form.keys(part))
            if here.any():
                yield from form.feed(self.states, part.filter(pa.array(here)))
            self.waiting.add(part.filter(pa.array(~here)))
            yield from self._make_room(evicted)

    def take_up(self, partial: pa.RecordBatch) -> None:
        """States of keys that are not resident here, as they are now."""
        raise NotImplementedError

    def take_away(self, panes: Rows, keys: list[pa.Array]) -> None:
        """Rows that are no longer among the states of such keys."""
        raise NotImplementedError

    def close_files(self) -> None:
        """Leave nothing on disk."""
        self.waiting.close()
        self.resting.disk.close()
        self.table.overflow, self.table.dropping = nowhere, unnoticed  # as in DiskRows: no circle

    @property
    def _table_bytes(self) -> int:
        return self.table.nbytes + self.states.nbytes + self.residents.nbytes

    def _admit(self, keys: list[pa.Array]) -> tuple[Mask, Rows]:
        self.table.widen(len(self.table) + self._turn_rows)  # one key's states may be more than all others'
        return self.residents.admit(keys)

    def _make_room(self, evicted: Rows) -> Iterator[Batch]:
        """What the policy pushed out goes to disk, and more if states have grown beyond their room."""
        if len(evicted):
            yield from self._push_out(self.residents.index.key_columns(evicted))
            self.residents.release(evicted)
        yield from self._relieve()

    def _push_out(self, keys: list[pa.Array]) -> Iterator[Batch]:
        rows = np.unique(self.states.rows_of(keys))
        yield from self.states.parting(rows)
        self._push_rows(rows)

    def _push_rows(self, rows: Rows) -> None:
        """All rows of some keys leave memory."""
        for start in range(0, len(rows), self._turn_rows):
            some = rows[start : start + self._turn_rows]
            self.held_us = min(self.held_us, self.states.due_us(some))
            partial = self.table.export(some)
            self.states.drop(some)
            self._rest(partial)

    def _rest(self, partial: pa.RecordBatch) -> None:
        self.residents.mark(self._keys_in(partial))
        self.resting.add(partial)

    def _relieve(self) -> Iterator[Batch]:
        """Make room; where it is keys that are long, have slots for so many only from now on."""
        while (crowded := len(self.table) > self._slots) or self._too_large:
            index = self.residents.index
            if len(index) <= 1:
                return
            leaving = self.residents.fewest(-(-len(index) // _RELIEF), self._dice)
            yield from self._push_out(index.key_columns(leaving))
            self.residents.drop(leaving)
            if not crowded and not self.table.states_vary:  # those may be small again
                index.narrow(len(index))

    @property
    def _too_large(self) -> bool:
        varies = self.table.varies and self.bound.slots is None
        return varies and self._table_bytes > self.bound.memory_bytes * TABLE_SHARE

    def _settle_buckets(self, watermark_us: int) -> Iterator[Batch]:
        """Bring together what waits and what rests, bucket by bucket."""
        every = self.renewing or self.states.patience_us is not None
        self.held_us = FOREVER_US
        for bucket in range(self.bound.bucket_count):
            rest_bytes = self.resting.size_of(bucket)
            wait_bytes = self.waiting.size_of(0, bucket)
            if not wait_bytes and not (every and rest_bytes):
                continue
            self._below = Bucket(self._parts, self._bound_below(rest_bytes + wait_bytes), self)
            try:
                waiting = self.waiting.read(0, bucket)
                yield from self._below.settle(self.resting.read(bucket), waiting, watermark_us)
                self.held_us = min(self.held_us, self._below.held_us)
            finally:
                self._below_bytes += self._below.spill_bytes
                self._below.close_files()
                self._below = None

    def _bound_below(self, bucket_bytes: int) -> Bound:
        return replace(
            self.bound,
            memory_bytes=int(self.bound.memory_bytes * (SETTLING_SHARE if self.bound.level == 0 else 1.0)),
            engine="inc",
            level=self.bound.level + 1,
            buckets=self.bound.buckets and max(2, self.bound.buckets),  # one bucket of one would go on for ever
            bucket_bytes=bucket_bytes,
        )

    def _keys_in(self, partial: pa.RecordBatch) -> list[pa.Array]:
        keys: list[pa.Array] = partial.columns[1 : 1 + len(self.table.key_fields)]
        return keys

    def _bucket_of(self, keys: list[pa.Array]) -> Buckets:
        return bucket_of(self.residents.hashes(keys), self.bound.level, self.bound.bucket_count)


class Bucket(Overflow):
    """One bucket's keys, read into a table of their own; what changes is told ``above``."""

    def __init__(self, parts: OverflowParts, bound: Bound, above: Overflow) -> None:
        super().__init__(parts, bound, eager=False)
        self._above, self.renewing = above, above.renewing
        self._known = np.zeros(0, bool)  # rows that are on disk above
        self._loading = True  # nothing changes yet: what is there above is newer than what was read so far
        self.table.dropping = self._tell_dropped

    def settle(
        self, resting: Iterable[RestingVersions], waiting: Iterable[pa.RecordBatch], watermark_us: int
    ) -> Iterator[Batch]:
        for versions in resting:
            yield from self._load(versions)
        self._loading = False
        self.table.forget_changes()
        for rows in waiting:
            yield from self.take_stored(rows)
        yield from self.states.close(watermark_us)
        yield from self.states.end()
        held_us = self._hand_up()
        yield from self._settle_buckets(watermark_us)
        self.held_us = min(self.held_us, held_us)

    def take_up(self, partial: pa.RecordBatch) -> None:
        self._above.take_up(partial)

    def take_away(self, panes: Rows, keys: list[pa.Array]) -> None:
        self._above.take_away(panes, keys)

    def arrives(self, keys: list[pa.Array]) -> Mask:
        """Which keys are to be resident in the step's own table."""
        above = self._above
        return above.arrives(keys) if isinstance(above, Bucket) else above.residents.arrives(keys)

    def _load(self, versions: RestingVersions) -> Iterator[Batch]:
        for start in range(0, len(versions.gone), self._turn_rows):
            partial, gone = versions.partial.slice(start, self._turn_rows), versions.gone[start:][: self._turn_rows]
            here, evicted = self._admit(self._keys_in(partial))
            assert not len(evicted), "INC pushes nobody out"
            made, dropped = self.table.replace(partial.filter(pa.array(here)), gone[here])
            self.states.loaded(made)
            self.states.drop(dropped)
            self._know(made)
            self.resting.put(partial.filter(pa.array(~here)).columns, gone[~here])
            yield from self._relieve()

    def _know(self, rows: Rows) -> None:
        if (more := self.table.index.capacity - len(self._known)) > 0:
            self._known = np.concatenate((self._known, np.zeros(more, bool)))
        self._known[rows] = True

    def _tell_dropped(self, rows: Rows) -> None:
        rows = rows[rows < len(self._known)]
        rows = rows[self._known[rows]]
        self._known[rows] = False
        if len(rows) and not self._loading:
            self.take_away(self.table.pane_of(rows), self.table.key_columns(rows))

    def _rest(self, partial: pa.RecordBatch) -> None:
        super()._rest(partial)
        if not self._loading:
            self.take_up(partial)

    def _hand_up(self) -> int:
        """Tell what is to be written above, and give the memory to the next level; when the first result is due."""
        table, rows = self.table, self.table.all_rows()
        held_us = self.states.due_us(rows)
        if not self.renewing:
            rows = rows[table.changed(rows) | self.arrives(table.key_columns(rows))]
        for start in range(0, len(rows), self._turn_rows):
            self.take_up(table.export(rows[start : start + self._turn_rows]))
        table.dropping = unnoticed
        self.states = self._parts.states(self._parts.table(1), False)
        return held_us
