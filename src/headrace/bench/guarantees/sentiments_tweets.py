"""Tweets for ``bench sentiments``: a load with a step and a burst, and the reference of what becomes of them.

The thesis replays two weeks of tweets; ours are a fixed function of their number. Topics are Zipf-distributed; during the
burst most tweets are about three of them, so that more of all tweets pass the filter: load on sentiment rises faster
than the rate.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.connect.pace import as_pace

Ints = npt.NDArray[np.int64]
TOPICS = 200
EVERY_MS, WINDOW_MS = 200, 2_000
_BURST_TOPICS = 3
_BURST_SHARE = 0.6
_ZIPF = np.cumsum(1 / np.arange(1, TOPICS + 1))
HOT_TWEETS, HOT_WITHIN = 8, 200
"""A topic is hot if its last eight tweets are among the last 200 of all: four percent."""


@dataclass(frozen=True, slots=True)
class TweetLoad:
    """``base`` tweets per second; twice as many from ``step_s`` on; a burst to ``peak`` times as many at ``burst_s``.

    The burst rises and falls over ``ramp_s`` each, as events that people tweet about do, and holds in between.
    """

    base: int
    step_s: float = 20.0
    burst_s: float = 45.0
    ramp_s: float = 15.0
    hold_s: float = 10.0
    seconds: int = 100
    peak: float = 4.0

    def per_s(self, at_s: float) -> float:
        """Tweets per second."""
        since_s, left_s = at_s - self.burst_s, self.calm_s - at_s
        risen = min(1.0, max(0.0, min(since_s, left_s) / self.ramp_s))
        return self.base * (2 + (self.peak - 2) * risen) if at_s >= self.step_s else float(self.base)

    @property
    def calm_s(self) -> float:
        """When the burst is over."""
        return self.burst_s + 2 * self.ramp_s + self.hold_s

    @property
    def rate(self) -> list[tuple[float, float]]:
        return [(1.0, self.per_s(second)) for second in range(self.seconds)]

    @property
    def total(self) -> int:
        return self.numbers(self.seconds)

    def numbers(self, at_s: float) -> int:
        """How many tweets are due before a time."""
        return as_pace(self.rate).count_due(round(at_s * 1e6) - 1)

    def due_us(self, numbers: Ints) -> Ints:
        """When tweets are due after the first."""
        return as_pace(self.rate).due_us(numbers)


@dataclass(frozen=True, slots=True)
class Tweets:
    """The columns of tweets by number; the burst is from tweet ``first`` to tweet ``last``."""

    first: int
    last: int

    @staticmethod
    def of(load: TweetLoad) -> Tweets:
        return Tweets(load.numbers(load.burst_s), load.numbers(load.calm_s))

    def __call__(self, numbers: Ints) -> dict[str, Any]:
        return {"seq": numbers, "topic": self.topics(numbers), "words": numbers * 2_654_435_761 % 1_000_003}

    def topics(self, numbers: Ints) -> Ints:
        within = np.minimum(numbers - self.first, self.last - numbers) / (self.last - self.first)
        bursting = _dice(numbers, 2) < _BURST_SHARE * np.clip(4 * within, 0, 1)
        drawn = np.searchsorted(_ZIPF, _dice(numbers, 1) * _ZIPF[-1])
        found: Ints = np.where(bursting, TOPICS - 1 - numbers % _BURST_TOPICS, drawn)
        return found


def mood(words: Ints) -> Ints:
    """The sentiment: any fixed function will do, time is what it takes."""
    return words % 7 - 3


def is_hot(record: dict[str, Any], state: Any, out: Any) -> None:
    """The filter: passes tweets on topics that are hot."""
    recent = state["recent"]
    recent.append(record["seq"])
    if len(recent) > HOT_TWEETS:
        recent.popleft()
    if len(recent) == HOT_TWEETS and record["seq"] - recent.peek() < HOT_WITHIN:
        out({name: record[name] for name in ("seq", "words", "due_us")})


def hot_numbers(topics: Ints) -> Ints:
    """The reference of the filter: numbers of the tweets it passes."""
    recent: list[deque[int]] = [deque(maxlen=HOT_TWEETS) for _ in range(TOPICS)]
    passed = []
    for number, topic in enumerate(topics.tolist()):
        mine = recent[topic]
        mine.append(number)
        if len(mine) == HOT_TWEETS and number - mine[0] < HOT_WITHIN:
            passed.append(number)
    return np.array(passed, np.int64)


def window_counts(topics: Ints, due_us: Ints) -> Ints:
    """The reference of the windows: rows of end (µs), topic and count, in order."""
    pane_us = 1000 * EVERY_MS
    panes = due_us // pane_us
    codes = np.concatenate(
        [((panes + ahead + 1) * pane_us) * TOPICS + topics for ahead in range(WINDOW_MS // EVERY_MS)]
    )
    code, counts = np.unique(codes, return_counts=True)
    return np.column_stack((code // TOPICS, code % TOPICS, counts))


def _dice(numbers: Ints, salt: int) -> npt.NDArray[np.float64]:
    """A fixed number in [0, 1) for each number (splitmix64's finaliser)."""
    with np.errstate(over="ignore"):
        x = (numbers.astype(np.uint64) + np.uint64(salt << 40)) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = x ^ (x >> np.uint64(31))
    return (x >> np.uint64(11)).astype(np.float64) / 2.0**53
