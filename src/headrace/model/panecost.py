"""Whether overlapping windows should share panes (C-MR, section 2.5), and the fit of its one constant.

Windows of size w end every slide s; a pane is k = HCF(w, s) long. With t values per time unit and d distinct
keys per pane, a slide touches

- ``w t`` values if each window keeps its own aggregates: a value is added to all w/s windows it lies in;
- ``s t + γ (w/k) d`` if panes do: a value is added once, and a window merges w/k panes of d keys.

So panes pay iff ``t (w − s) > γ (w/k) d``. We depart from the paper in two places: d is 1 there, which holds for
one key only, and γ is 1, although merging a pane's aggregate costs more than adding a value (the paper's own
crossover lies at 15 s where its rule says 2 to 4 s). In values per key and pane, ``n = t k / d``, the rule is
``n > γ w / (w − s)``: whatever the rate, it asks how many values of one key meet in a pane.

Our windows of many panes are made of a suffix and a prefix of blocks (``state.table.sliding``), which costs as much as
merging a few panes however many there are: ``merges`` stands for w/k then. ``None`` is the paper's w/k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd, sqrt

GAMMA = 1.8
"""Cost of merging one pane's aggregate of a key, in values added; fitted by ``headrace bench combining``."""


SLIDING_MERGES = 4.0
"""Panes whose merging takes as long as a window's by suffix and prefix, the making of both included."""
_MIN_PANES = 8


@dataclass(frozen=True, slots=True)
class WindowLoad:
    """What a windowed reduce receives: values per second of event time (t), distinct keys per pane (d), and
    per window, if that is known; else as many as per pane.
    """

    values_per_s: float
    keys_per_pane: float
    keys_per_window: float | None = None


@dataclass(frozen=True, slots=True)
class PaneCosts:
    """Values touched per slide, merged ones weighted by γ, or rows held: with each window on its own, with panes."""

    direct: float
    paned: float

    @property
    def panes_pay(self) -> bool:
        return self.paned < self.direct


@dataclass(frozen=True, slots=True)
class Trial:
    """One window and load with the measured seconds of both ways."""

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
        return saved / _merged_rows(self.size_us, self.slide_us, self.load, self.merges)


def _merged(size_us: int, slide_us: int, merges: float | None) -> float:
    """Panes that a window merges, or as many as its merging is worth."""
    panes = size_us // gcd(size_us, slide_us)
    return panes if merges is None or panes < _MIN_PANES else min(panes, merges)


def _merged_rows(size_us: int, slide_us: int, load: WindowLoad, merges: float | None) -> float:
    """Aggregates that a window merges: those of all its panes, or a few times its own keys if these are fewer."""
    panes = size_us // gcd(size_us, slide_us)
    if merges is None or panes < _MIN_PANES:
        return panes * load.keys_per_pane
    return min(panes * load.keys_per_pane, merges * (load.keys_per_window or load.keys_per_pane))


def costs(
    size_us: int, slide_us: int, load: WindowLoad, gamma: float = GAMMA, merges: float | None = None
) -> PaneCosts:
    """Both costs of a slide.

    >>> costs(600_000_000, 60_000_000, Load(values_per_s=1.0, keys_per_pane=1.0), gamma=1.0)
    Costs(direct=600.0, paned=70.0)
    """
    added = slide_us / 1e6 * load.values_per_s
    merged = _merged_rows(size_us, slide_us, load, merges)
    return PaneCosts(size_us / 1e6 * load.values_per_s, added + gamma * merged)


def rows_held(size_us: int, slide_us: int, keys_per_pane: float, keys_per_window: float) -> PaneCosts:
    """Rows of state at any time: w/s open windows of so many keys, or w/k panes.

    The paper has no such rule: there a window without panes is a list of its values, which windows share. Ours
    are aggregates, a row per key and window, and if most keys are seen once that is many more rows than panes have.

    >>> rows_held(60_000_000, 1_000_000, keys_per_pane=100, keys_per_window=6000)
    Costs(direct=360000.0, paned=6000)
    """
    panes = size_us // gcd(size_us, slide_us)
    return PaneCosts(size_us / slide_us * keys_per_window, panes * keys_per_pane)


def needed_values_per_key(
    size_us: int, slide_us: int, gamma: float = GAMMA, merges: float | None = None
) -> float | None:
    """Values per key and pane above which panes pay; None if they never do, because windows do not overlap."""
    pane_us = gcd(size_us, slide_us)
    merged_us = _merged(size_us, slide_us, merges) * pane_us
    return gamma * merged_us / (size_us - slide_us) if slide_us < size_us else None


def needed_rate_per_s(size_us: int, slide_us: int, keys: float = 1.0, gamma: float = GAMMA) -> float | None:
    """Values per second above which panes pay; None if they never do.

    >>> round(needed_rate_per_s(600_000_000, 60_000_000, gamma=1.0), 4)
    0.0185
    """
    needed = needed_values_per_key(size_us, slide_us, gamma)
    return needed * keys / (gcd(size_us, slide_us) / 1e6) if needed is not None else None


def crossover_us(slide_us: int, load: WindowLoad, gamma: float = GAMMA, merges: float | None = None) -> int | None:
    """The smallest multiple of the slide from which panes pay as a window's size; None if none does.

    >>> crossover_us(1_000_000, Load(values_per_s=100.0, keys_per_pane=71.0), gamma=1.31)
    15000000
    """
    # With w = m s, k = s and n values per key and slide: n (m − 1) > γ m, or γ times the merges it is worth.
    values = load.values_per_s * slide_us / 1e6 / load.keys_per_pane
    spare = values - gamma
    by_panes = int((spare + gamma) / spare) + 1 if spare > 0 else None
    if merges is None or (by_panes is not None and by_panes < _MIN_PANES):
        return by_panes * slide_us if by_panes is not None else None
    return max(_MIN_PANES, int(gamma * merges / values) + 2) * slide_us


def fitted_gamma(trials: Sequence[Trial]) -> float | None:
    """The γ whose decisions would have cost the least measured time; None if one way won all trials.

    Any γ between two neighbouring indifference points decides alike, so one of each interval is tried: their
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
