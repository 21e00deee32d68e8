"""How many rows each pane holds."""

from __future__ import annotations

import sys

import numpy as np

from headrace.state.compiled import I64

_FEW = 64
"""Up to so many rows, counting in a Python loop beats sorting."""
_ENTRY_BYTES = 64
"""Two whole numbers, the pane and its count."""


class PaneCounts:
    """Counts rows as they come and go; a pane without rows is no pane."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def __getitem__(self, pane: int) -> int:
        return self._counts.get(pane, 0)

    def panes(self) -> list[int]:
        """Panes that hold rows, ascending."""
        return sorted(self._counts)

    def add(self, panes: I64, change: int) -> None:
        """One row more (1) or less (-1) for each entry of ``panes``."""
        if len(panes) <= _FEW:
            counted = [(pane, 1) for pane in panes.tolist()]
        elif panes.min() == panes.max():
            counted = [(int(panes[0]), len(panes))]
        else:
            distinct, counts = np.unique(panes, return_counts=True)
            counted = list(zip(distinct.tolist(), counts.tolist()))
        for pane, count in counted:
            left = self._counts.get(pane, 0) + change * count
            if left:
                self._counts[pane] = left
            else:
                del self._counts[pane]

    @property
    def nbytes(self) -> int:
        return sys.getsizeof(self._counts) + _ENTRY_BYTES * len(self._counts)
