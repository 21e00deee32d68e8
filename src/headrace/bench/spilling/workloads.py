"""Seeded synthetic data with the ratios of SCALLA's workloads (Li 2015, chapters 4 and 5), made with numpy.

The thesis has WorldCup'98 clicks and Twitter and GOV2 trigrams, and does not report their skew. What decides
about spill is kept instead: skew, how many states memory holds, in which order keys come, how long they live.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

I64 = npt.NDArray[np.int64]
VOCABULARIES = 8
_COMMON_SHARE = 0.05
"""Of each vocabulary's tuples, those whose keys all vocabularies share (names, numbers): near-disjoint."""
_WORD_BITS = 12
_SYLLABLES = np.array([a + b for a in "bcdfghklmnprstvz" for b in "aeiou"])
_SESSION_CLICKS = (1, 16)
"""Minimum and maximum number of clicks in a session."""


def zipf_keys(items: int, keys: int, skew: float, seed: int) -> I64:
    """Keys below ``keys`` with frequency ~ rank^-skew (0: uniform), in random order; ranks are shuffled."""
    dice = np.random.default_rng(seed)
    weights = np.cumsum(np.arange(1, keys + 1) ** -skew)
    ranks = np.searchsorted(weights, dice.random(items) * weights[-1], side="right")
    shuffled: I64 = dice.permutation(keys)[ranks]
    return shuffled


def all_of_zipf(items: int, keys: int, skew: float, seed: int) -> I64:
    """Zipf keys of which each of ``keys`` comes once at least, so that there are exactly so many states."""
    extra = zipf_keys(items - keys, keys, skew, seed)
    return np.random.default_rng(seed).permutation(np.concatenate((np.arange(keys), extra)))


def vocabulary_keys(items: int, keys: int, skew: float, order: str, seed: int) -> I64:
    """Zipf keys of eight near-disjoint vocabularies: one after the other ("separate"), or shuffled ("mixed").

    Both orders have exactly the same tuples.
    """
    if order not in ("mixed", "separate"):
        raise ValueError(f"orders are 'mixed' and 'separate', not {order!r}")
    dice, own = np.random.default_rng(seed), keys // (VOCABULARIES + 1)
    drawn = zipf_keys(items, own, skew, seed)
    vocabulary = np.arange(items) * VOCABULARIES // max(items, 1) + 1
    vocabulary[dice.random(items) < _COMMON_SHARE] = 0
    # Rank by rank the vocabularies have keys of their own, so that no number tells how frequent a key is.
    found = drawn + own * vocabulary
    return found if order == "separate" else dice.permutation(found)


def trigrams(keys: int) -> pa.Array:
    """As many distinct texts of three words; number ``i`` is the text of key ``i``."""
    size = 1 << _WORD_BITS
    dice = np.random.default_rng(0)
    stems = np.unravel_index(dice.permutation(len(_SYLLABLES) ** 2)[:size], (len(_SYLLABLES),) * 2)
    words = pa.array(np.char.add(_SYLLABLES[stems[0]], _SYLLABLES[stems[1]]))
    # Multiplying by an odd number is one to one, so no two keys share their three words.
    spread = np.arange(keys) * 0x9E3779B97 % size**3
    parts = [words.take(pa.array(spread // size**place % size)) for place in range(3)]
    return pc.binary_join_element_wise(*parts, " ")


@dataclass(frozen=True, slots=True)
class Clicks:
    """Clicks in the order of their times (seconds); a user's clicks less than ``gap_s`` apart are one session."""

    users: I64
    times_s: I64
    pages: I64
    gap_s: int


def clicks(items: int, *, active: int, seed: int, burst: float = 1.0, gap_s: int = 1800) -> Clicks:
    """About ``items`` clicks of sessions that come and go, ``active`` of them unexpired at a time on average.

    One session of eight is a returning user's, half a sweep later. During a hundredth of the time sessions
    start ``burst`` times as often.
    """
    dice = np.random.default_rng(seed)
    sessions = max(2 * items // sum(_SESSION_CLICKS), 1)
    lengths = dice.integers(_SESSION_CLICKS[0], _SESSION_CLICKS[1] + 1, sessions)
    pauses = dice.integers(1, gap_s // 8, int(lengths.sum()))
    heads = np.cumsum(lengths) - lengths
    elapsed = np.cumsum(pauses)
    within = elapsed - np.repeat(elapsed[heads], lengths)
    lifetime_s = float(lengths.mean() - 1) * gap_s / 16 + gap_s
    waits = np.full(sessions, lifetime_s / active)
    waits[sessions // 2 : sessions // 2 + max(sessions // 100, 1)] /= burst
    starts = np.cumsum(waits).astype(np.int64)
    owners = np.arange(sessions)
    back = (owners % 8 == 7) & (owners > sessions // 2)
    owners[back] -= sessions // 2
    users, times = np.repeat(owners, lengths), np.repeat(starts, lengths) + within
    order = np.argsort(times, kind="stable")
    return Clicks(users[order], times[order], dice.integers(0, 1 << 40, len(order)), gap_s)


def sessions_of(made: Clicks) -> tuple[I64, I64]:
    """The reference: clicks sorted by user and time, and for each of them when its session began."""
    order = np.lexsort((made.times_s, made.users))
    users, times = made.users[order], made.times_s[order]
    begins = np.ones(len(order), bool)
    begins[1:] = (users[1:] != users[:-1]) | (times[1:] - times[:-1] >= made.gap_s)
    return order, times[np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))]
