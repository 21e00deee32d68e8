"""Whether overlapping windows should share panes (C-MR, section 2.5).

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

from dataclasses import dataclass
from math import gcd

GAMMA = 1.8
"""Cost of merging one pane's aggregate of a key, in values added; fitted by ``headrace bench combining``."""


SLIDING_MERGES = 4.0
"""Panes whose merging takes as long as a window's by suffix and prefix, the making of both included."""
MIN_PANES = 8
"""Windows of fewer panes are merged pane by pane."""


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


def _merged(size_us: int, slide_us: int, merges: float | None) -> float:
    """Panes that a window merges, or as many as its merging is worth."""
    panes = size_us // gcd(size_us, slide_us)
    return panes if merges is None or panes < MIN_PANES else min(panes, merges)


def merged_rows(size_us: int, slide_us: int, load: WindowLoad, merges: float | None) -> float:
    """Aggregates that a window merges: those of all its panes, or a few times its own keys if these are fewer."""
    panes = size_us // gcd(size_us, slide_us)
    if merges is None or panes < MIN_PANES:
        return panes * load.keys_per_pane
    return min(panes * load.keys_per_pane, merges * (load.keys_per_window or load.keys_per_pane))


def costs(
    size_us: int, slide_us: int, load: WindowLoad, gamma: float = GAMMA, merges: float | None = None
) -> PaneCosts:
    """Both costs of a slide.

    >>> costs(600_000_000, 60_000_000, WindowLoad(values_per_s=1.0, keys_per_pane=1.0), gamma=1.0)
    PaneCosts(direct=600.0, paned=70.0)
    """
    added = slide_us / 1e6 * load.values_per_s
    merged = merged_rows(size_us, slide_us, load, merges)
    return PaneCosts(size_us / 1e6 * load.values_per_s, added + gamma * merged)


def rows_held(size_us: int, slide_us: int, keys_per_pane: float, keys_per_window: float) -> PaneCosts:
    """Rows of state at any time: w/s open windows of so many keys, or w/k panes.

    The paper has no such rule: there a window without panes is a list of its values, which windows share. Ours
    are aggregates, a row per key and window, and if most keys are seen once that is many more rows than panes have.

    >>> rows_held(60_000_000, 1_000_000, keys_per_pane=100, keys_per_window=6000)
    PaneCosts(direct=360000.0, paned=6000)
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
