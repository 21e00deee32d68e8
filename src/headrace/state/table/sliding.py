"""Windows that slide over panes, each from two merges however many panes it has.

The line of panes is split into stretches as long as a window. Every window is the end of one stretch and the
beginning of the next: a suffix and a prefix (van Herk 1992, Gil and Werman 1993). Prefixes grow by a pane at a
time, suffixes are made once per stretch. Where stretches lie does not depend on where reading starts,
so neither do the answers, to the last bit of a sum.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from headrace.state.table.panes import at_pane_zero
from headrace.state.table.rowtable import GroupTable

MIN_PANES = 8
"""Fewer are merged as fast one by one."""
_MAX_ROWS = 1_000_000
"""Rows of a stretch's suffixes that are kept; a stretch with more is merged pane by pane, window for window."""

PartialOf = Callable[[int], pa.RecordBatch | None]
"""A pane's partials; None where it has none."""


class Sliding:
    """Merged windows of ``panes`` panes, one every ``slide``; a pane that was merged must not change any more."""

    def __init__(self, panes: int, slide: int, partial_of: PartialOf, new_table: Callable[[], GroupTable]) -> None:
        self._panes, self._slide = panes, slide
        self._partial_of, self._new_table = partial_of, new_table
        self.forget()

    def forget(self) -> None:
        """Merge anew: a pane was changed."""
        self._suffixes: dict[int, pa.RecordBatch] = {}
        self._stretch = -1
        self._prefix = self._new_table()
        self._start = self.upto = -1

    def window(self, first: int) -> GroupTable:
        """The states of panes ``first`` onwards, as pane 0 of a table that is the caller's until the next call."""
        split = -(-first // self._panes) * self._panes
        self._grow(split, first + self._panes)
        if first == split:
            return self._prefix
        merged = self._new_table()
        suffix = self._suffix(first, split)
        if suffix is None:
            for pane in range(first, split):
                self._add(merged, pane)
        else:
            merged.absorb_partial(suffix)
        merged.absorb_partial(self._prefix.export(self._prefix.rows_of(0)))
        return merged

    def _grow(self, start: int, upto: int) -> None:
        """Make the prefix that of panes ``start`` to ``upto``."""
        if start != self._start or upto < self.upto:
            self._prefix, self._start, self.upto = self._new_table(), start, start
        for pane in range(self.upto, upto):
            self._add(self._prefix, pane)
        self.upto = upto

    def _suffix(self, first: int, split: int) -> pa.RecordBatch | None:
        """The stretch's panes from ``first`` on; None if its suffixes are too many to keep."""
        if self._stretch != split:
            self._stretch, self._suffixes = split, {}
            merged, kept = self._new_table(), 0
            for pane in range(split - 1, first - 1, -1):
                self._add(merged, pane)
                if (pane - first) % self._slide == 0:
                    kept += len(merged)
                    if kept > _MAX_ROWS:
                        self._suffixes = {}
                        break
                    self._suffixes[pane] = merged.export(merged.rows_of(0))
        return self._suffixes.get(first)

    def _add(self, table: GroupTable, pane: int) -> None:
        partial = self._partial_of(pane)
        if partial is not None:
            table.absorb_partial(at_pane_zero(partial))
