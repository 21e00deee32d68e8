"""Made-up tweets for the demo: every tweet is a fixed function of its number, so answers can be checked."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

BURSTS = [("6 s", "400/s"), ("3 s", "2500/s"), ("1 s", "100/s")]
"""A calm, a burst and a lull, over and over."""

_TOPICS = (
    "spark", "python", "rust", "kafka", "arrow", "numpy", "pandas", "linux", "music", "football", "coffee",
    "weather", "climate", "election", "space", "mars", "film", "games", "fashion", "travel", "food", "cats",
    "dogs", "health", "science", "history", "books", "art", "chess", "cycling",
)  # fmt: skip
_GOOD = ("love", "great", "brilliant", "enjoying", "finally", "happy")
_BAD = ("hate", "awful", "broken", "tired", "sad", "annoying")
_PLAIN = ("reading", "about", "watching", "again", "today", "somehow")
_WORDS = (*_GOOD, *_BAD, *_PLAIN)
_MOOD = {**dict.fromkeys(_GOOD, 1.0), **dict.fromkeys(_BAD, -1.0)}
_TREND_TWEETS = 3000
"""How long a topic trends; in a burst that is about a second."""
_TREND_SHARE = 0.35
_SHARES = 1.0 / np.arange(1, len(_TOPICS) + 1)
_CUMULATIVE = np.cumsum(_SHARES) / _SHARES.sum()


def tweets(numbers: Numbers) -> dict[str, Any]:
    """The columns of the tweets with these numbers: ``user``, ``text``, ``likes``.

    >>> tweets(np.array([7]))["text"] == tweets(np.array([3, 7]))["text"][1:]
    True
    """
    first = np.searchsorted(_CUMULATIVE, _dice(numbers, 1))
    trending = (numbers // _TREND_TWEETS * 7 + 8) % len(_TOPICS)
    first = np.where(_dice(numbers, 2) < _TREND_SHARE, trending, first)
    second = np.searchsorted(_CUMULATIVE, _dice(numbers, 3))
    second = np.where((_dice(numbers, 4) < 0.5) & (second != first), second, -1)
    # A topic is liked more or less than others: its place decides how often good words are chosen.
    lean = 0.5 + 0.4 * np.sin(first * 2.3)
    words = [
        np.where(_dice(numbers, salt) < lean, _dice(numbers, salt + 1) * 6, 6 + _dice(numbers, salt + 1) * 12).astype(
            int
        )
        for salt in (5, 7)
    ]
    text = [
        f"{_WORDS[a]} {_WORDS[b]} #{_TOPICS[i]}" + (f" #{_TOPICS[j]}" if j >= 0 else "")
        for a, b, i, j in zip(words[0].tolist(), words[1].tolist(), first.tolist(), second.tolist())
    ]
    users = (_dice(numbers, 9) ** 2 * 5000).astype(np.int64)
    return {"user": users, "text": text, "likes": (_dice(numbers, 10) ** 4 * 200).astype(np.int64)}


def score(tweet: dict[str, Any]) -> dict[str, Any]:
    """A tweet with its mood: the mean of its good (+1) and bad (−1) words, 0 if it has none."""
    moods = [_MOOD[word] for word in tweet["text"].split() if word in _MOOD]
    return {**tweet, "mood": sum(moods) / len(moods) if moods else 0.0}


def hashtags(tweet: dict[str, Any]) -> list[dict[str, Any]]:
    """One record per hashtag of a scored tweet."""
    return [
        {"topic": topic, "likes": tweet["likes"], "mood": tweet["mood"], "ts": tweet["ts"]}
        for topic in re.findall(r"#(\w+)", tweet["text"])
    ]


def _dice(numbers: Numbers, salt: int) -> npt.NDArray[np.float64]:
    """A fixed random number in [0, 1) for each number (splitmix64: Steele, Lea, Flood, OOPSLA 2014)."""
    offset = np.uint64(salt * 0x632BE59BD9B4E019 % 2**64)
    with np.errstate(over="ignore"):
        x = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + offset
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return (x >> np.uint64(11)).astype(np.float64) / 2.0**53
