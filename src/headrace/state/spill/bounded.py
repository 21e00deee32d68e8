"""A reduce's state within a memory bound: a table of resident keys, and disk buckets for the rest.

The hash engines of SCALLA (2.4 to 2.6) as one mechanism. A batch is offered to the table, whose index
decides key by key; what it refuses, and the states it pushes out, are appended to buckets by a hash
of their key. When a pane is complete, its keys are settled bucket by bucket: all that memory and disk
have of a bucket's keys is merged into a small table of the same kind, which overflows into buckets of
the next level, by another hash function, if it must. Where the thesis has a write buffer per bucket,
one buffer serves all of them, so many buckets cost no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import DataError
from headrace.state.allocator import give_back_freed
from headrace.state.durable.changes import Store
from headrace.state.grouping import Rows
from headrace.state.hashing import slices_of
from headrace.state.index.choosing import Choice, Chooser
from headrace.state.index.keyindex import Admission
from headrace.state.index.policies import FREQUENT, INC, MARKER, SPACE_SAVING, ResidencyPolicy
from headrace.state.spill.bounds import SETTLING_SHARE, TABLE_SHARE, Bound, rows_for
from headrace.state.spill.buckets import bucket_of
from headrace.state.spill.diskrows import Buckets, DiskRows, Slices
from headrace.state.table.panes import Settled, at_pane_zero
from headrace.state.table.rowtable import GroupTable, Partials, nowhere

ENGINES: dict[str, ResidencyPolicy] = {
    "inc": INC,
    "dinc": FREQUENT,
    "dinc-space-saving": SPACE_SAVING,
    "dinc-marker": MARKER,
}
_EARLY = "__early"
"""The column that says whether a row was emitted before its window ended."""
_TOLD_BYTES = 100
"""A key that was emitted and has left memory, in a set."""
_RELIEF = 8
"""When growing states have filled their room, one row in so many leaves."""
_HARDLY_COMBINED, _UNCOMBINED_TURNS = 0.9, 15
"""Looking for records of one key costs about a third of writing them, so it has to save at least a tenth."""


@dataclass(frozen=True, slots=True)
class Parts:
    """How to make what a bounded table is made of; ``table(slots, policy)``."""

    table: Callable[[int | None, ResidencyPolicy], GroupTable]
    partials: Callable[[], Partials]


class BoundedTable:
    """``table`` holds the resident keys, ``disk`` the rest. Reducers must be mergeable."""

    def __init__(self, parts: Parts, bound: Bound) -> None:
        give_back_freed()
        self._parts, self.bound = parts, bound
        auto = bound.engine == "auto"
        widest = FREQUENT if auto else ENGINES[bound.engine]
        slots, self._turn_rows = rows_for(parts.table(1, widest), bound.memory_bytes)
        slots = bound.slots or slots
        self.table = parts.table(slots, INC if auto else widest)
        self.table.overflow = self._to_disk
        self.choice = Choice("inc" if auto else bound.engine, "nothing was refused yet" if auto else "as asked")
        self._chooser = Chooser(slots, windowed=bound.windowed) if auto else None
        self._dice = np.random.default_rng(0)
        self._left_out = np.zeros(0, bool)
        self.lossy = bound.frequent is not None and bound.frequent.needs_no_disk(slots)
        self._partials: Partials | None = None  # most tables of buckets get no records, only partials
        self._uncombined_turns = 0
        self.disk = DiskRows(
            self.table.partial_schema, self._buckets_of, self._slices_of, bound.directory, bound.buffer_bytes
        )
        self.disk.arriving = self._note_told
        self._told: dict[int, set[int]] = {}
        self._below_bytes = 0

    def stores(self) -> dict[str, Store]:
        """To be loaded in this order: what finds no room in the table gets new identities on disk."""
        return {"disk": self.disk, "": self.table}

    @property
    def nbytes(self) -> int:
        """All memory held now."""
        return self.table.nbytes + self.disk.nbytes + _TOLD_BYTES * sum(map(len, self._told.values()))

    @property
    def spill_bytes(self) -> int:
        """Written to disk so far, at all levels."""
        return self.disk.written_bytes + self._below_bytes

    def absorb(self, batch: pa.RecordBatch, key_columns: list[pa.Array], panes: Rows | int, times: Rows) -> Rows:
        """Add records; returns each record's row in the table, -1 if it went to disk."""
        rows = np.empty(batch.num_rows, np.int64)
        for start in range(0, batch.num_rows, self._turn_rows):
            part = batch.slice(start, self._turn_rows)
            at = slice(start, start + part.num_rows)
            keys = [column.slice(start, part.num_rows) for column in key_columns]
            rows[at] = self._turn(part, keys, panes if isinstance(panes, int) else panes[at], times[at])
        return rows

    def absorb_partial(self, partial: pa.RecordBatch) -> Rows:
        """The same for partials (columns of the table's ``partial_schema``)."""
        n_keys = len(self.table.key_fields)
        rows = np.empty(partial.num_rows, np.int64)
        for start in range(0, partial.num_rows, self._turn_rows):
            part = partial.slice(start, self._turn_rows)
            admission = self.table.admit(part.columns[1 : 1 + n_keys], part.column(0).to_numpy(zero_copy_only=False))
            kept = admission.rows >= 0
            if kept.all():
                self.table.merge(admission.rows, part.columns[1 + n_keys :])
            else:
                mask = pa.array(kept)
                self.table.merge(admission.rows[kept], part.filter(mask).columns[1 + n_keys :])
                self._to_disk(part.filter(pa.array(~kept)))
            self._push_out(admission)
            rows[start : start + part.num_rows] = admission.rows
        return rows

    def panes(self) -> list[int]:
        """Panes that hold anything, in memory or on disk."""
        return sorted({*self.table.panes(), *self.disk.panes()})

    def covered(self, share: float) -> tuple[Rows, npt.NDArray[np.float64]]:
        """Rows that have seen at least this share of their key's records, and which share each has (SCALLA 2.7)."""
        rows = self.table.all_rows()
        if not self.disk.panes() and not self.lossy:
            return rows, np.ones(len(rows))
        coverage = self.table.index.coverage_of(rows)
        return rows[coverage >= share], coverage[coverage >= share]

    def settled(
        self, panes: Sequence[int], rest: pa.RecordBatch | None = None, *, without: Rows | None = None
    ) -> Settled:
        """The whole states of some panes' keys, merged over the panes: tables, and which of their rows.

        Keys of the rows ``without`` are left out, with all that disk has of them.
        """
        self._left_out = np.zeros(0, bool)
        if without is not None and len(without):
            self._left_out = np.zeros(self.table.index.capacity, bool)
            self._left_out[without] = True
        spilled = sorted(set(self.disk.panes()) & set(panes))
        resident = [pane for pane in self.table.panes() if pane in set(panes)]
        if not spilled and rest is None and len(resident) <= 1:
            yield from ((self.table, self._kept(self.table.rows_of(pane))) for pane in resident)
            return
        if self.bound.level:  # the table is done; the next level's needs its memory
            for start in range(0, len(self.table), self._turn_rows):
                self._to_disk(self.table.export(self.table.all_rows()[start : start + self._turn_rows]))
            self.table, spilled, resident = self._parts.table(1, INC), [0], []
        rows = self._kept(np.concatenate([np.zeros(0, np.int64), *(self.table.rows_of(pane) for pane in resident)]))
        buckets = self._buckets_of_keys(self.table.key_columns(rows))
        rest_buckets = self._buckets_of(rest) if rest is not None else None
        for bucket in range(self.bound.bucket_count):
            extra = rest.filter(pa.array(rest_buckets == bucket)) if rest is not None else None
            yield from self._settle(bucket, rows[buckets == bucket], spilled, extra)

    def told(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which rows are of keys that left memory after they had been emitted, and have come back since."""
        panes, hashes = self.table.pane_of(rows).tolist(), self.table.index.hash_of(rows).tolist()
        none: set[int] = set()
        return np.array([hash in self._told.get(pane, none) for pane, hash in zip(panes, hashes)], bool)

    def drop_pane(self, pane: int) -> None:
        """Forget all that memory and disk have of a pane."""
        self._told.pop(pane, None)
        self.table.drop(self.table.rows_of(pane))
        self.disk.drop(pane)

    def close(self) -> None:
        self.disk.close()
        self.table.overflow = self.disk.arriving = nowhere  # as in DiskRows: no circle

    def _turn(self, batch: pa.RecordBatch, keys: list[pa.Array], panes: Rows | int, times: Rows) -> Rows:
        admission = self.table.admit(keys, panes)
        kept = admission.rows >= 0
        if kept.all():
            self.table.add(admission.rows, batch, times)
        else:
            mask, refused = pa.array(kept), pa.array(~kept)
            self.table.add(admission.rows[kept], batch.filter(mask), times[kept])
            left = panes if isinstance(panes, int) else panes[~kept]
            self._to_disk(
                self._partials_of(batch.filter(refused), [key.filter(refused) for key in keys], left, times[~kept])
            )
        self._push_out(admission)
        return admission.rows

    def _partials_of(
        self, batch: pa.RecordBatch, keys: list[pa.Array], panes: Rows | int, times: Rows
    ) -> pa.RecordBatch:
        """Records as partials; a turn's are combined unless hardly two of them had one key the last time."""
        self._partials = self._partials or self._parts.partials()
        if self._uncombined_turns:
            self._uncombined_turns -= 1
            return self._partials.of_each(batch, keys, panes, times)
        made = self._partials.of(batch, keys, panes, times)
        if made.num_rows > _HARDLY_COMBINED * batch.num_rows:
            self._uncombined_turns = _UNCOMBINED_TURNS
        return made

    def _push_out(self, admission: Admission) -> None:
        """What the policy pushed out goes to disk, and more if states have grown beyond their room."""
        if self._chooser is not None:
            self._choose(admission)
        if len(admission.evicted):
            self._to_disk(self.table.export(admission.evicted))
            self.table.release(admission.evicted)
        if self.table.varies and self.bound.slots is None:
            while self.table.nbytes > self.bound.memory_bytes * TABLE_SHARE and len(self.table) > 1:
                self._relieve()

    def _choose(self, admission: Admission) -> None:
        assert self._chooser is not None
        self._chooser.see(admission.hashes)
        figures = self.table.index.figures
        choice = self._chooser.choose(figures.tuples, figures.refused)
        if choice is not None:
            self.table.index.adopt(ENGINES[choice.engine])
            self.choice, self._chooser = choice, None

    def _relieve(self) -> None:
        """Make room; where it is keys that are long, have slots for so many only from now on."""
        if self.lossy:
            raise DataError(
                "keys are so long that fewer fit than max_records= relies on; give more memory=, or leave it out"
            )
        rows = self.table.all_rows()
        wanted = -(-len(rows) // _RELIEF)
        if self.table.index.policy.counts:
            leaving = rows[np.argsort(self.table.index.absorbed_of(rows), kind="stable")[:wanted]]
        else:
            leaving = self._dice.choice(rows, wanted, replace=False)
        for start in range(0, wanted, self._turn_rows):
            self._to_disk(self.table.export(leaving[start : start + self._turn_rows]))
        self.table.drop(leaving)
        if not self.table.states_vary:  # those may be small again in the next window
            self.table.index.narrow(len(self.table))

    def _to_disk(self, partial: pa.RecordBatch) -> None:
        if self.lossy:
            self._check_expected()
            return
        self._note_told(partial)
        columns = partial.columns
        missing = len(self.table.partial_schema) - len(columns)
        columns += [pa.array(np.zeros(partial.num_rows, np.int64))] * missing
        self.disk.add(pa.RecordBatch.from_arrays(columns, schema=self.table.partial_schema))

    def _note_told(self, partial: pa.RecordBatch) -> None:
        """Rows leave memory, or were on disk at the version that is loaded: those that were emitted are remembered."""
        at = partial.schema.get_field_index(_EARLY)
        if at < 0 or not (early := partial.column(at).to_numpy() > 0).any():
            return
        gone = partial.filter(pa.array(early))
        hashes = self.table.index.key_hashes(gone.columns[1 : 1 + len(self.table.key_fields)])
        for pane, hash in zip(gone.column(0).to_pylist(), hashes.tolist()):
            self._told.setdefault(pane, set()).add(hash)

    def _check_expected(self) -> None:
        frequent, tuples = self.bound.frequent, self.table.index.figures.tuples
        if frequent is not None and tuples > frequent.max_records:
            raise DataError(
                f"more records came than max_records={frequent.max_records}, on which it relied that nothing has to be "
                f"written to disk; give more, or leave out max_records="
            )

    def _buckets_of(self, rows: pa.RecordBatch) -> Buckets:
        return self._buckets_of_keys(rows.columns[1 : 1 + len(self.table.key_fields)])

    def _slices_of(self, rows: pa.RecordBatch) -> Slices:
        return slices_of(rows.columns[1 : 1 + len(self.table.key_fields)], self.bound.slices)

    def _buckets_of_keys(self, keys: list[pa.Array]) -> Buckets:
        return bucket_of(self.table.index.key_hashes(keys), self.bound.level, self.bound.bucket_count)

    def _kept(self, rows: Rows) -> Rows:
        return rows[~self._left_out[rows]] if len(self._left_out) else rows

    def _of_others(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows from disk, without those of keys that are left out."""
        if not len(self._left_out):
            return rows
        at = self.table.index.find(rows.columns[1 : 1 + len(self.table.key_fields)], rows.column(0).to_numpy())
        return rows.filter(pa.array((at < 0) | ~self._left_out[at]))

    def _settle(self, bucket: int, resident: Rows, panes: list[int], rest: pa.RecordBatch | None) -> Settled:
        """One bucket's keys in a table of the next level."""
        share = SETTLING_SHARE if self.bound.level == 0 else 1.0
        memory_bytes = int(self.bound.memory_bytes * share)
        bucket_bytes = sum(self.disk.size_of(pane, bucket) for pane in panes)
        bound = replace(
            self.bound,
            memory_bytes=memory_bytes,
            engine="inc",
            level=self.bound.level + 1,
            buckets=self.bound.buckets and max(2, self.bound.buckets),  # one bucket of one would go on for ever
            bucket_bytes=bucket_bytes,
            frequent=None,
        )
        small = BoundedTable(self._parts, bound)
        try:
            for start in range(0, len(resident), self._turn_rows):
                small.absorb_partial(at_pane_zero(self.table.export(resident[start : start + self._turn_rows])))
            for pane in panes:
                for rows in self.disk.read(pane, bucket):
                    small.absorb_partial(at_pane_zero(self._of_others(rows)))
            if rest is not None and rest.num_rows:
                small.absorb_partial(at_pane_zero(rest))
            yield from small.settled([0])
        finally:
            self._below_bytes += small.spill_bytes
            small.close()
