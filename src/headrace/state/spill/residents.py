"""Which keys are in memory, all of them or not at all; and which may have something on disk."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.compiled import U64
from headrace.state.grouping import Rows
from headrace.state.index.choosing import Choice, Chooser
from headrace.state.index.keyindex import Admission, KeyIndex
from headrace.state.index.policies import FREQUENT, INC
from headrace.state.spill.bounded import ENGINES
from headrace.state.spill.buckets import Marks

_MARKS_PER_SLOT = 8
Mask = npt.NDArray[np.bool_]


class Residents:
    """Keys with a slot. One of which something is on disk *arrives*: it is not here before ``arrived``.

    ``turn_rows`` is how many records are admitted at once. Engine ``"auto"`` begins as ``"inc"``.
    """

    def __init__(self, keys: list[pa.Field], slots: int, turn_rows: int, engine: str) -> None:
        auto = engine == "auto"
        self.index = KeyIndex(keys, slots=slots, policy=INC if auto else ENGINES[engine])
        self.marks = Marks(_MARKS_PER_SLOT * slots)
        self._arriving = np.zeros(slots + turn_rows, bool)
        self.choice = Choice("inc" if auto else engine, "nothing was refused yet" if auto else "as asked")
        self._chooser = Chooser(slots, windowed=False) if auto else None

    @property
    def nbytes(self) -> int:
        return self.index.nbytes + self.marks.nbytes + self._arriving.nbytes

    def admit(self, keys: list[pa.Array]) -> tuple[Mask, Rows]:
        """Which records' keys are here, and the slots of keys that are pushed out, to be released.

        A key that came before and after it was refused or pushed out is on disk for all of these records: what is
        here must not overtake what waits.
        """
        admission = self.index.admit(keys, 0)
        self._choose(admission)
        rows, fresh = admission.rows, admission.fresh
        self.marks.add(admission.hashes[rows < 0])
        self.marks.add(self.index.hash_of(admission.evicted))
        self._arriving[fresh] = self.marks.has(self.index.hash_of(fresh))
        here = rows >= 0
        here[here] = ~self._arriving[rows[here]]
        return here, admission.evicted

    def here(self, keys: list[pa.Array]) -> Mask:
        """Which keys are resident."""
        rows = self.index.find(keys, 0)
        return (rows >= 0) & ~self._arriving[rows]

    def arrives(self, keys: list[pa.Array]) -> Mask:
        """Which keys have a slot and wait for their states."""
        rows = self.index.find(keys, 0)
        return (rows >= 0) & self._arriving[rows]

    def arrived(self) -> list[pa.Array]:
        """All that arrives is here; their keys."""
        rows = np.flatnonzero(self._arriving)
        self._arriving[rows] = False
        return self.index.key_columns(rows)

    def place(self, keys: list[pa.Array]) -> None:
        """Give slots to keys whose states are in memory already; there must be enough."""
        self._arriving[self.index.admit(keys, 0).fresh] = False

    def leave(self, keys: list[pa.Array], *, but: list[pa.Array]) -> None:
        """Keys give back their slots, except some, and those that arrive."""
        rows = np.setdiff1d(self.index.find(keys, 0), self.index.find(but, 0))
        self.drop(rows[(rows >= 0) & ~self._arriving[rows]])

    def drop(self, slots: Rows) -> None:
        """Take away slots."""
        self._arriving[slots] = False
        self.index.drop(slots)

    def release(self, evicted: Rows) -> None:
        """Take away slots that the policy did."""
        self._arriving[evicted] = False
        self.index.release(evicted)

    def fewest(self, wanted: int, dice: np.random.Generator) -> Rows:
        """Slots to clear: of keys that absorbed the fewest tuples where those are counted, else any."""
        rows = self.index.all_rows()
        if self.index.policy.counts:
            return rows[np.argsort(self.index.absorbed_of(rows), kind="stable")[:wanted]]
        return dice.choice(rows, wanted, replace=False)

    def mark(self, keys: list[pa.Array]) -> None:
        """Something of these keys is on disk."""
        self.marks.add(self.hashes(keys))

    def hashes(self, keys: list[pa.Array]) -> U64:
        return self.index.key_hashes(keys)

    def _choose(self, admission: Admission) -> None:
        if self._chooser is None:
            return
        self._chooser.see(admission.hashes)
        choice = self._chooser.choose(self.index.figures.tuples, self.index.figures.refused)
        if choice is not None:
            self.index.adopt(ENGINES[choice.engine])
            self.choice, self._chooser = choice, None


def resident_bytes(keys: list[pa.Field], engine: str) -> int:
    """Memory per resident key, its bytes aside."""
    widest = FREQUENT if engine == "auto" else ENGINES[engine]
    return KeyIndex(keys, slots=1, policy=widest).row_bytes + _MARKS_PER_SLOT + 1
