"""Synthetic texts after ChronoStream's data: encyclopaedia abstracts by category, and short messages by location.

The paper's texts are real: millions of abstracts of 100 categories, 474 bytes on average, and tweets. Kept is what it says
of them; categories and words have Zipf frequencies, three of ten words of an abstract are stop words, lengths are
log-normal. Text ``n`` is a function of ``n`` and the seed, whenever and wherever it is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from scipy.special import ndtri

from headrace.state.hashing import mix

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

CATEGORIES, LOCATIONS, VOCABULARY = 100, 200, 50_000
STOP_WORDS = (
    *("the", "of", "and", "in", "to", "a", "is", "was", "for", "on"),
    *("as", "by", "with", "from", "at", "it", "an", "that", "its", "are"),
)
MESSAGE_WORDS = 12
_CATEGORY_SKEW, _WORD_SKEW, _STOP_SHARE = 0.8, 1.1, 0.3
_MEAN_WORDS, _SPREAD = 116, 0.5
"""As words are spelled here this gives the mean of 474 bytes."""
_MESSAGES_PER_S = 1000
_SPELLED = VOCABULARY + len(STOP_WORDS)


@dataclass(frozen=True, slots=True)
class Documents:
    """Abstracts, for ``hr.generate``: columns ``number``, ``category`` and ``text``.

    >>> made = Documents()(np.arange(3))
    >>> made["category"].tolist() == Documents()(np.arange(3))["category"].tolist()
    True
    """

    seed: int = 1

    def __call__(self, numbers: Ints) -> dict[str, Any]:
        offsets, words = self.words(numbers)
        lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), _spelled().take(pa.array(words % _SPELLED)))
        return {"number": numbers, "category": self.categories(numbers), "text": pc.binary_join(lists, " ")}

    def categories(self, numbers: Ints) -> Ints:
        return _drawn(_chances(numbers, self.seed, 0), CATEGORIES, _CATEGORY_SKEW)

    def words(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Where each document begins, and the words of all: numbers of the vocabulary, stop words below zero."""
        lengths = _lengths(_chances(numbers, self.seed, 1))
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        places = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        of_word = (np.repeat(numbers, lengths) << 12) + places
        words = _drawn(_chances(of_word, self.seed, 2), VOCABULARY, _WORD_SKEW)
        stops = (_chances(of_word, self.seed, 3) / _STOP_SHARE * len(STOP_WORDS)).astype(np.int64)
        return offsets, np.where(stops < len(STOP_WORDS), -1 - stops, words)


@dataclass(frozen=True, slots=True)
class Messages:
    """Short messages of twelve words, for ``hr.generate``: ``number``, ``location``, ``text`` and ``at`` (milliseconds)."""

    seed: int = 1

    def __call__(self, numbers: Ints) -> dict[str, Any]:
        words = self.words(numbers)
        offsets = pa.array(np.arange(len(numbers) + 1) * MESSAGE_WORDS, pa.int32())
        lists = pa.ListArray.from_arrays(offsets, _spelled().take(pa.array(words.ravel())))
        at = numbers * 1000 // _MESSAGES_PER_S
        return {
            "number": numbers, "location": self.locations(numbers), "text": pc.binary_join(lists, " "), "at": at
        }  # fmt: skip

    def locations(self, numbers: Ints) -> Ints:
        return (_chances(numbers, self.seed, 4) * LOCATIONS).astype(np.int64)

    def words(self, numbers: Ints) -> Ints:
        """A row of words for each message; a word may occur twice."""
        of_word = (numbers[:, None] << 12) + np.arange(MESSAGE_WORDS)
        return _drawn(_chances(of_word, self.seed, 5), VOCABULARY, _WORD_SKEW)


def _chances(numbers: Ints, seed: int, lane: int) -> Floats:
    """Evenly spread over [0, 1), a function of the numbers."""
    salt = mix(np.array([seed * 64 + lane], np.uint64))
    with np.errstate(over="ignore"):
        bits = mix(mix(numbers.astype(np.uint64) + salt)) >> np.uint64(11)
    chances: Floats = bits.astype(np.float64) * 2.0**-53
    return chances


def _lengths(chances: Floats) -> Ints:
    deviations = ndtri(np.clip(chances, 1e-9, 1 - 1e-9))
    words = np.exp(np.log(_MEAN_WORDS) - _SPREAD**2 / 2 + _SPREAD * deviations)
    lengths: Ints = np.clip(words, 1, 4095).astype(np.int64)
    return lengths


def _drawn(chances: Floats, n: int, skew: float) -> Ints:
    """Which of ``n`` things, the first of them the most frequent."""
    return np.searchsorted(_zipf(n, skew), chances, side="right")


@lru_cache
def _zipf(n: int, skew: float) -> Floats:
    """Sums of Zipf frequencies: that of thing ``i`` is in proportion to ``1 / (i + 1) ** skew``."""
    sums: Floats = np.cumsum(np.arange(1, n + 1, dtype=np.float64) ** -skew)
    shares: Floats = sums / sums[-1]
    return shares


@lru_cache
def _spelled() -> pa.Array:
    """The vocabulary; stop words are at its end, where numbers below zero point."""
    return pa.array([f"w{i}" for i in range(VOCABULARY)] + list(reversed(STOP_WORDS)))
