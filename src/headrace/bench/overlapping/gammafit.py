"""From which window size panes pay, and the constant γ of that rule fitted to measured times (C-MR, section 2.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

from headrace.model.panecost import GAMMA, MIN_PANES, WindowLoad, merged_rows


@dataclass(frozen=True, slots=True)
class Trial:
    """One window and load with the measured seconds that each way took."""

    size_us: int
    slide_us: int
    load: WindowLoad
    direct_s: float
    paned_s: float
    merges: float | None = None

    @property
    def indifferent_gamma(self) -> float:
        """The γ at which both costs are equal, ``t (w − s) / ((w/k) d)``: panes pay below it."""
        saved = self.load.values_per_s * (self.size_us - self.slide_us) / 1e6
        return saved / merged_rows(self.size_us, self.slide_us, self.load, self.merges)


def crossover_us(slide_us: int, load: WindowLoad, gamma: float = GAMMA, merges: float | None = None) -> int | None:
    """The smallest multiple of the slide from which panes pay as a window's size; None if none does.

    >>> crossover_us(1_000_000, WindowLoad(values_per_s=100.0, keys_per_pane=71.0), gamma=1.31)
    15000000
    """
    # With w = m s, k = s and n values per key and slide: n (m − 1) > γ m, or γ times the merges it is worth.
    values = load.values_per_s * slide_us / 1e6 / load.keys_per_pane
    spare = values - gamma
    by_panes = int((spare + gamma) / spare) + 1 if spare > 0 else None
    if merges is None or (by_panes is not None and by_panes < MIN_PANES):
        return by_panes * slide_us if by_panes is not None else None
    return max(MIN_PANES, int(gamma * merges / values) + 2) * slide_us


def fitted_gamma(trials: Sequence[Trial]) -> float | None:
    """The γ whose decisions would have taken the shortest measured time; None if one way won all trials.

    Any γ between two neighbouring indifference points decides the same way, so one of each interval is tried: their
    geometric mean, since γ is a ratio.
    """
    if len({trial.paned_s < trial.direct_s for trial in trials}) < 2:
        return None
    points = sorted({trial.indifferent_gamma for trial in trials})
    between = [sqrt(low * high) for low, high in pairwise(points)]
    candidates = [points[0] / 2, *between, points[-1] * 2]

    def taken_s(gamma: float) -> float:
        chosen = (t.paned_s if gamma < t.indifferent_gamma else t.direct_s for t in trials)
        return sum(chosen, 0.0)

    return min((taken_s(gamma), gamma) for gamma in candidates)[1]
