"""How a reduce over sliding windows keeps its states, decided again and again from what it receives.

Either each pane has an aggregate, which windows share, or each window has its own (C-MR, section 2.5; the costs
are in ``model.panecost``). While windows have their own, every eighth pane is still kept as a pane: that shows
how many values of one key meet in a pane, and costs at most an eighth of what panes cost.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.graph.windowing import TimeWindow
from headrace.model.panecost import SLIDING_MERGES, PaneCosts, WindowLoad, costs, rows_held
from headrace.state.index.choosing import Choice

PANES, WINDOWS = "panes", "windows"
_PERIOD_PANES = 8
_MIN_VALUES = 100
"""Fewer values in panes say too little about how many keys there are."""
_CLEARLY = 0.9
"""The other form must cost less than this share: near the crossover noise would change it every time."""
_MAX_ROWS = 2.0
"""Windows of their own may hold so many times the rows that panes would; all of them are kept in memory and stored."""


class Forms:
    """The form in use, and the figures for the next decision.

    Decisions are made when event time enters a new period of eight panes, so that they see whole panes. Until
    windows have closed, how many rows they would hold is unknown, and panes are kept: so they are wherever a
    whole input is read before the first window closes.
    """

    def __init__(self, window: TimeWindow) -> None:
        self._window = window
        self.paned = True
        self._reason: str | None = None
        self._began: int | None = None
        self._newest = 0
        self._values = self._values_in_panes = self._rows = 0
        self._keys_per_window: int | None = None

    @property
    def choice(self) -> Choice | None:
        """The form and the figures it was chosen by; None until something has been measured."""
        return Choice(PANES if self.paned else WINDOWS, self._reason) if self._reason is not None else None

    def in_panes(self, panes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which values, by their pane, are to be kept in panes."""
        return np.ones(len(panes), bool) if self.paned else panes % _PERIOD_PANES == 0

    def see(self, newest: int, values: int, values_in_panes: int, rows: int) -> None:
        """Count values that came, the newest of them in pane ``newest``, and the rows they made in panes."""
        if self._began is None:
            self._began = self._newest = newest
        if newest // _PERIOD_PANES > self._newest // _PERIOD_PANES and self._values_in_panes >= _MIN_VALUES:
            self._decide(newest)
        self._newest = max(self._newest, newest)
        self._values += values
        self._values_in_panes += values_in_panes
        self._rows += rows

    def closed(self, keys: int) -> None:
        """A window has closed that had so many keys."""
        self._keys_per_window = max(keys, self._keys_per_window or 0)

    def _decide(self, newest: int) -> None:
        assert self._began is not None
        window = self._window
        per_pane = self._values / max(newest - self._began, 1)
        load = WindowLoad(
            per_pane / (window.pane_us / 1e6), per_pane * self._rows / self._values_in_panes, self._keys_per_window
        )
        cost = costs(window.size_us, window.every_us, load, merges=SLIDING_MERGES)
        now, other = (cost.paned, cost.direct) if self.paned else (cost.direct, cost.paned)
        cheaper = self.paned if other >= _CLEARLY * now else not self.paned
        paned = cheaper or not self._windows_fit(load)
        if paned != self.paned or self._reason is None:
            why = "" if paned == cheaper else "; but windows of their own would hold too many rows"
            self.paned, self._reason = paned, _figures(load, cost) + why
        self._began, self._values, self._values_in_panes, self._rows = newest, 0, 0, 0
        self._keys_per_window = None

    def _windows_fit(self, load: WindowLoad) -> bool:
        """Whether the state stays about as small with windows of their own; False if that is unknown."""
        if self._keys_per_window is None:
            return False
        held = rows_held(self._window.size_us, self._window.every_us, load.keys_per_pane, self._keys_per_window)
        return held.direct <= _MAX_ROWS * held.paned


def _figures(load: WindowLoad, cost: PaneCosts) -> str:
    seen = f"{load.values_per_s:,.4g} values per second and {load.keys_per_pane:,.4g} keys per pane"
    return f"{seen} make {cost.paned:,.0f} values touched per slide with panes, {cost.direct:,.0f} without"
