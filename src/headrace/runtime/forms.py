"""How a reduce over sliding windows keeps its states, decided again and again from what it receives.

Either each pane has an aggregate, which windows share, or each window has its own (C-MR, section 2.5; the costs
are in ``model.combining``). While windows have their own, every eighth pane is still kept as a pane: that shows
how many values of one key meet in a pane, and costs at most an eighth of what panes cost.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.graph.windows import TimeWindow
from headrace.model.combining import Costs, Load, costs
from headrace.state.choosing import Choice

PANES, WINDOWS = "panes", "windows"
_PERIOD_PANES = 8
_LEAST_VALUES = 100
"""Fewer values in panes say too little about how many keys there are."""
_CLEARLY = 0.9
"""The other form must cost less than this share: near the crossover noise would change it every time."""


class Forms:
    """The form in use, and the figures for the next decision.

    Decisions are made when event time enters a new period of eight panes, so that they see whole panes.
    """

    def __init__(self, window: TimeWindow) -> None:
        self._window = window
        self.choice = Choice(PANES, "nothing measured yet")
        self._began: int | None = None
        self._newest = 0
        self._values = self._values_in_panes = self._rows = 0

    @property
    def paned(self) -> bool:
        return self.choice.engine == PANES

    def resume(self, *, paned: bool) -> None:
        """Go on in the form that a restored state was kept in."""
        self.choice = Choice(PANES if paned else WINDOWS, "as in the checkpoint")

    def in_panes(self, panes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which values, by their pane, are to be kept in panes."""
        return np.ones(len(panes), bool) if self.paned else panes % _PERIOD_PANES == 0

    def see(self, newest: int, values: int, values_in_panes: int, rows: int) -> None:
        """Count values that came, the newest of them in pane ``newest``, and the rows they made in panes."""
        if self._began is None:
            self._began = self._newest = newest
        if newest // _PERIOD_PANES > self._newest // _PERIOD_PANES and self._values_in_panes >= _LEAST_VALUES:
            self._decide(newest)
        self._newest = max(self._newest, newest)
        self._values += values
        self._values_in_panes += values_in_panes
        self._rows += rows

    def _decide(self, newest: int) -> None:
        assert self._began is not None
        window = self._window
        per_pane = self._values / max(newest - self._began, 1)
        load = Load(per_pane / (window.pane_us / 1e6), per_pane * self._rows / self._values_in_panes)
        cost = costs(window.size_us, window.every_us, load)
        now, other = (cost.paned, cost.direct) if self.paned else (cost.direct, cost.paned)
        if other < _CLEARLY * now:
            self.choice = Choice(WINDOWS if self.paned else PANES, _reason(load, cost))
        elif self.choice.reason == "nothing measured yet":
            self.choice = Choice(self.choice.engine, _reason(load, cost))
        self._began, self._values, self._values_in_panes, self._rows = newest, 0, 0, 0


def _reason(load: Load, cost: Costs) -> str:
    seen = f"{load.values_per_s:,.4g} values per second and {load.keys_per_pane:,.4g} keys per pane"
    return f"{seen} make {cost.paned:,.0f} values touched per slide with panes, {cost.direct:,.0f} without"
