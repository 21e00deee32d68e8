"""``KeyIndex``: which row of memory a (pane, key) pair has, and which keys have one at all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import StateError
from headrace.state.compiled import I64, U64
from headrace.state.index import registers as reg
from headrace.state.index.keycodes import KeyCodes, Keys
from headrace.state.index.keyhash import hash_all
from headrace.state.index.layout import EVICTED, HASH, LIVE, NEVER, PANE, SIZE, WORD, KeyBatch
from headrace.state.index.policies import INC, ResidencyPolicy
from headrace.state.index.probing import find_all, give_back, rows_in_pane
from headrace.state.index.residency import admit
from headrace.state.index.tables import (
    PaneCounts,
    new_table,
    reserved,
    row_bytes,
    with_policy,
    with_room,
    without_waste,
)

Rows = I64


@dataclass(frozen=True, slots=True)
class Admission:
    """What became of a batch: ``rows[i]`` is the row of record ``i``, -1 if it was refused (goes to disk).

    ``fresh`` are the rows made, by first appearance; ``evicted`` the rows pushed out, whose key, pane and
    number stay until ``release``: first absorb the whole batch, then export the evicted rows, then release
    them. A row can be in both. ``hashes`` are the records' own, for ``bucket_of``.
    """

    rows: Rows
    fresh: Rows
    evicted: Rows
    hashes: U64


@dataclass(frozen=True, slots=True)
class Figures:
    """Tuples so far, by weight: M, absorbed on arrival, refused; rows pushed out; rise of FREQUENT's level."""

    tuples: int
    absorbed: int
    refused: int
    evictions: int
    decrements: int


def _fixed(numbers: Rows | int) -> Rows:
    """A read-only view of whole numbers: kernels are compiled for those, whoever owns the memory."""
    view = np.ascontiguousarray(numbers, np.int64).reshape(-1)[:]
    view.flags.writeable = False
    return view


_NONE = _fixed(np.zeros(0, np.int64))


class KeyIndex:
    """Maps (pane, key) to dense row numbers, for ``slots`` keys at a time (None: as many as come).

    What happens to a new key when all slots are taken is up to the policy (``state.index.residency``; SCALLA 2.5,
    2.6). The caller keeps its accumulators in columns of ``capacity`` rows. A key that is dropped starts anew:
    no figure remembers it.

    >>> index = KeyIndex([pa.field("user", pa.string())])
    >>> index.admit([pa.array(["ann", "bob", "ann"])], 0).rows.tolist()
    [0, 1, 0]
    """

    def __init__(
        self, fields: list[pa.Field], *, slots: int | None = None, policy: ResidencyPolicy = INC, seed: int = 0
    ) -> None:
        if slots is not None and slots < 1:
            raise StateError(f"an index needs at least one slot, not {slots}")
        self._codes = KeyCodes(fields)
        self._table = new_table(slots, seed)
        self._panes = PaneCounts()
        self._overtaken = False  # whether a row's key may have lost tuples that INC does not know of
        self.policy = INC
        if policy != INC:
            self.adopt(policy)

    def admit(
        self, columns: list[pa.Array], panes: Rows | int, *, weights: Rows | None = None, now: int | None = None
    ) -> Admission:
        """Admit records in order; ``panes`` is one for all records or one each.

        A record of weight n stands for n tuples (one each if None) and is absorbed or refused as a whole; all
        figures and guarantees are by weight. ``now`` says which rows are complete to a policy that pushes out only
        those; None: no row is.
        """
        batch = self._batch(columns, panes, weights)
        n = len(batch.words)
        rows, fresh, evicted = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
        made = np.zeros(2, np.int64)
        self._table.registers[reg.NOW] = -NEVER if now is None else now
        stop = int(admit(self._table, batch, 0, made, rows, fresh, evicted))
        while stop < n:
            key_bytes = max(int(batch.sizes[stop]), 0) if self._codes.in_bytes else 0
            self._table = with_room(self._table, n - stop, key_bytes)
            stop = int(admit(self._table, batch, stop, made, rows, fresh, evicted))
        fresh, evicted = fresh[: made[0]], evicted[: made[1]]
        if len(fresh):
            self._panes.add(self.pane_of(fresh), 1)
            self._panes.add(self.pane_of(evicted), -1)
        return Admission(rows, fresh, evicted, batch.hashes)

    def find(self, columns: list[pa.Array], panes: Rows | int) -> Rows:
        """The row of each record, -1 where the key is absent."""
        batch = self._batch(columns, panes, None)
        rows = np.empty(len(batch.words), np.int64)
        find_all(self._table, batch, rows)
        return rows

    def key_hashes(self, columns: list[pa.Array]) -> U64:
        """Hashes of keys alone, whatever their pane: the same in all indexes of one seed."""
        batch = self._batch(columns, 0, None)
        hash_all(self._table, batch)
        return batch.hashes

    def drop(self, rows: Rows) -> None:
        """Forget live rows; their numbers may be used again at once."""
        self._give_back(rows, LIVE, "is not in the index")
        self._panes.add(self.pane_of(rows), -1)
        self._overtaken |= self.figures.refused > 0

    def release(self, rows: Rows) -> None:
        """Forget evicted rows; their numbers may be used again."""
        self._give_back(rows, EVICTED, "was not evicted, or was released before")

    def narrow(self, slots: int) -> None:
        """Have at most so many slots from now on; there must be no more live rows than that."""
        if not len(self) <= slots:
            raise StateError(f"{len(self)} rows do not fit in {slots} slots; drop some first")
        self._table.registers[reg.LIMIT] = min(self._table.registers[reg.LIMIT], max(slots, 1))

    def widen(self, slots: int) -> None:
        """Have at least so many slots from now on."""
        self._table.registers[reg.LIMIT] = max(self._table.registers[reg.LIMIT], slots)

    def reserve(self, rows: int) -> None:
        """Have room for so many rows, without growing on the way."""
        self._table = reserved(self._table, rows)

    def adopt(self, policy: ResidencyPolicy) -> None:
        """Go on under another policy. Rows stay; counters start anew, so guarantees are about tuples from now on."""
        if policy.complete_only and not policy.evicts:
            raise StateError("INC never pushes a row out, complete or not; use INC, or another rule")
        if self.policy != INC:
            self._overtaken |= self.figures.refused + self.figures.evictions > 0
        self._table = with_policy(self._table, policy)
        self.policy = policy

    @property
    def expires(self) -> Rows:
        """When each row is complete; fresh rows never are until told: ``index.expires[rows] = ...``.

        Only policies with ``complete_only`` have it. Ask for it after each ``admit``, which may replace it.
        """
        if not self.policy.complete_only:
            raise StateError(f"{self.policy} does not ask whether rows are complete")
        return self._table.expires

    def panes(self) -> list[int]:
        """Panes that hold live rows, ascending."""
        return self._panes.panes()

    def rows_of(self, pane: int) -> Rows:
        """A pane's live rows, ascending; reads the table up to the last of them."""
        rows = np.empty(self._panes[pane], np.int64)
        rows_in_pane(self._table, pane, rows)
        return rows

    def all_rows(self) -> Rows:
        """Live rows, ascending."""
        return np.flatnonzero(self._table.life[: self.capacity] == LIVE)

    def pane_of(self, rows: Rows) -> Rows:
        panes: Rows = self._table.cells[rows, PANE]
        return panes

    def hash_of(self, rows: Rows) -> U64:
        hashes: U64 = self._table.cells[rows, HASH].view(np.uint64)
        return hashes

    def key_columns(self, rows: Rows) -> list[pa.Array]:
        """Keys as columns of the fields' types."""
        cells = self._table.cells
        keys = Keys(cells[rows, WORD].view(np.uint64), cells[rows, SIZE], self._table.arena[:])
        return self._codes.decode(keys)

    def absorbed_of(self, rows: Rows) -> Rows:
        """Tuples that each row absorbed since its key last entered (t)."""
        if not self.policy.counts:
            raise StateError(f"{self.policy.rule.name} does not count what a row absorbs; use FREQUENT or SPACE_SAVING")
        return self._table.absorbed[rows]

    def coverage_of(self, rows: Rows) -> npt.NDArray[np.float64]:
        """At least which share of its key's tuples each live row absorbed (gamma, SCALLA 2.7).

        t / (t + e), where e is the level at which the row entered: for FREQUENT the decrements observed by
        then, which is at most M / (s + 1) of the thesis. 1 under INC, unless rows were dropped after tuples had
        been refused. Raises StateError where the policy bounds nothing.
        """
        policy = self.policy
        if policy == INC and not self._overtaken:
            return np.ones(len(rows))
        if policy.complete_only or not policy.counts:
            raise StateError(f"{policy} gives no coverage guarantee; use FREQUENT or SPACE_SAVING")
        return self._table.absorbed[rows] / np.maximum(self._table.counters[rows], 1)

    @property
    def figures(self) -> Figures:
        tuples, refused, evictions, decrements = self._table.registers[
            [reg.TUPLES, reg.REFUSED, reg.EVICTIONS, reg.DECREMENTS]
        ].tolist()
        return Figures(tuples, tuples - refused, refused, evictions, decrements)

    @property
    def capacity(self) -> int:
        """One more than the highest row number ever given."""
        return int(self._table.registers[reg.TOP])

    @property
    def varies(self) -> bool:
        """Whether keys vary in size."""
        return self._codes.in_bytes

    @property
    def row_bytes(self) -> int:
        """Memory that one more key takes at most, its bytes aside."""
        return row_bytes(self._table)

    @property
    def nbytes(self) -> int:
        """All memory held between two calls; growing holds a column's old and new arrays for a moment."""
        return sum(array.nbytes for array in self._table) + self._panes.nbytes

    def __len__(self) -> int:
        return int(self._table.registers[reg.LIVE_ROWS])

    def _batch(self, columns: list[pa.Array], panes: Rows | int, weights: Rows | None) -> KeyBatch:
        keys = self._codes.encode(columns)
        n = len(keys.words)
        if isinstance(panes, np.ndarray) and len(panes) != n:
            raise StateError(f"{n} records, but {len(panes)} panes")
        if weights is not None and (len(weights) != n or weights.min(initial=1) < 1):
            raise StateError(f"{n} records need as many weights, all of them positive, not {weights!r:.80}")
        counted = _NONE if weights is None else _fixed(weights)
        hashes = np.empty(n, np.uint64)
        return KeyBatch(keys.words, keys.sizes, keys.data, _fixed(panes), counted, hashes, self._codes.in_bytes)

    def _give_back(self, rows: Rows, life: int, problem: str) -> None:
        bad = give_back(self._table, _fixed(rows), life, self._codes.in_bytes)
        if bad >= 0:
            raise StateError(f"row {rows[bad]} {problem}")
        self._table = without_waste(self._table)
