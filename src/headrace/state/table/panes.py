"""A reduce's states by pane and key, whether all of them are in memory or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.durable.changes import PANE, Store
from headrace.state.grouping import Rows
from headrace.state.table.rowtable import GroupTable

Settled = Iterator[tuple[GroupTable, Rows]]
"""Tables, and which of their rows are whole states."""


class PaneStates(Protocol):
    """What reduce operators need of their state; ``table`` is the part of it that is in memory."""

    @property
    def table(self) -> GroupTable: ...

    @property
    def nbytes(self) -> int:
        """Memory held."""
        ...

    def stores(self) -> dict[str, Store]: ...

    def absorb(self, batch: pa.RecordBatch, key_columns: list[pa.Array], panes: Rows | int, times: Rows) -> Rows:
        """Add records; returns each record's row in the table, -1 if it has none."""
        ...

    def absorb_partial(self, partial: pa.RecordBatch) -> Rows:
        """The same for partials."""
        ...

    def panes(self) -> list[int]:
        """Panes that hold anything, ascending."""
        ...

    def told(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which rows are of keys that were emitted before they left memory and came back."""
        ...

    def settled(
        self, panes: Sequence[int], rest: pa.RecordBatch | None = None, *, without: Rows | None = None
    ) -> Settled:
        """The whole states of some panes' keys, merged over the panes and with the partials of ``rest``.

        Keys of the table's rows ``without`` are left out.
        """
        ...

    def drop_pane(self, pane: int) -> None: ...

    def close(self) -> None:
        """Leave nothing on disk."""
        ...


class Unbounded:
    """All states in memory. ``scratch`` makes an empty table for windows of several panes."""

    def __init__(self, table: GroupTable, scratch: Callable[[], GroupTable]) -> None:
        self.table, self._scratch = table, scratch
        self.absorb, self.absorb_partial, self.panes = table.absorb, table.absorb_partial, table.panes

    @property
    def nbytes(self) -> int:
        return self.table.nbytes

    def stores(self) -> dict[str, Store]:
        return {"": self.table}

    def told(self, rows: Rows) -> npt.NDArray[np.bool_]:
        return np.zeros(len(rows), bool)

    def settled(
        self, panes: Sequence[int], rest: pa.RecordBatch | None = None, *, without: Rows | None = None
    ) -> Settled:
        assert without is None, "nothing is on disk"
        held = [pane for pane in self.table.panes() if pane in set(panes)]
        if rest is None and len(held) <= 1:
            yield from ((self.table, self.table.rows_of(pane)) for pane in held)
            return
        scratch = self._scratch()
        for pane in held:
            scratch.absorb_partial(at_pane_zero(self.table.export(self.table.rows_of(pane))))
        if rest is not None:
            scratch.absorb_partial(at_pane_zero(rest))
        yield scratch, scratch.rows_of(0)

    def drop_pane(self, pane: int) -> None:
        self.table.drop(self.table.rows_of(pane))

    def close(self) -> None:
        """Nothing to leave."""


def at_pane_zero(partial: pa.RecordBatch) -> pa.RecordBatch:
    """Partials of any pane as partials of pane 0."""
    at = partial.schema.get_field_index(PANE)
    return partial.set_column(at, partial.schema.field(at), pa.array(np.zeros(partial.num_rows, np.int64)))
