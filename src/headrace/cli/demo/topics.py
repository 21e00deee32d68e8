"""The demo's job, and the check of its answers against a plain-Python reference."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from headrace.cli.demo.tweets import BURSTS, hashtags, score, tweets
from headrace.connect.pace import as_pace

HOT, SENTIMENT = "hot-topics", "sentiment"
_OVERLAP = 10
"""A record is in this many windows of hot-topics: 10 s long, one every second."""
_AT_ONCE = 50_000


def demo_job(directory: Path, total: int) -> hr.Job:
    """Tweets → hot topics (how often, over sliding windows) and sentiment (mean mood, over tumbling ones)."""
    job = hr.Job("demo")
    source = hr.generate(tweets, rate=BURSTS, total=total, due="ts")
    feed = job.source("tweets", source, event_time="ts", time_unit="us")
    topics = feed.map(score, name="score").flat_map(hashtags, name="hashtags").key_by("topic")
    hot = topics.window(hr.sliding("10 s", every="1 s")).reduce(name=HOT, n=hr.count(), likes=hr.sum("likes"))
    hot.sink("hot", hr.jsonl(directory / HOT, when="as_produced"))
    mood = topics.window(hr.tumbling("5 s")).reduce(name=SENTIMENT, n=hr.count(), mood=hr.mean("mood"))
    mood.sink("mood", hr.jsonl(directory / SENTIMENT, when="as_produced"))
    job.constrain(feed >> hot, mean="50 ms", over="5 s")
    job.constrain(feed >> mood, p99="250 ms", over="10 s")
    return job


def tweets_due(seconds: float) -> int:
    """How many tweets are due in so many seconds."""
    return max(1, as_pace(BURSTS).count_due(int(seconds * 1e6)))


@dataclass(slots=True)
class Totals:
    """Per topic: occurrences, likes and mood, summed over everything."""

    n: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    likes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    mood: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def expected(total: int) -> Totals:
    """The totals of the first ``total`` tweets, by the job's own functions in plain Python."""
    totals = Totals()
    for start in range(0, total, _AT_ONCE):
        columns = tweets(np.arange(start, min(start + _AT_ONCE, total)))
        for user, text, likes in zip(columns["user"].tolist(), columns["text"], columns["likes"].tolist()):
            for tag in hashtags(score({"user": user, "text": text, "likes": likes, "ts": 0})):
                totals.n[tag["topic"]] += 1
                totals.likes[tag["topic"]] += tag["likes"]
                totals.mood[tag["topic"]] += tag["mood"]
    return totals


def check(directory: Path, total: int) -> dict[str, int]:
    """Compare committed results with the reference: ``lost``, ``duplicated``, ``wrong``, and ``hashtags`` in all."""
    reference, hot, mood = expected(total), Totals(), Totals()
    for row in committed_rows(directory / HOT):
        hot.n[row["topic"]] += row["n"]
        hot.likes[row["topic"]] += row["likes"]
    for row in committed_rows(directory / SENTIMENT):
        mood.n[row["topic"]] += row["n"]
        mood.mood[row["topic"]] += row["mood"] * row["n"]
    lost = duplicated = wrong = 0
    for topic in reference.n | hot.n | mood.n:
        for difference in (
            reference.n[topic] * _OVERLAP - hot.n[topic],
            reference.n[topic] - mood.n[topic],
        ):
            lost, duplicated = lost + max(difference, 0), duplicated + max(-difference, 0)
        wrong += reference.likes[topic] * _OVERLAP != hot.likes[topic]
        wrong += abs(reference.mood[topic] - mood.mood[topic]) > 1e-6 * (1 + abs(reference.mood[topic]))
    return {"lost": lost, "duplicated": duplicated, "wrong": wrong, "hashtags": sum(reference.n.values())}


def committed_rows(directory: Path) -> Iterator[dict[str, Any]]:
    """The rows that a sink has published."""
    for path in sorted(directory.glob("part-*.jsonl")):
        with path.open() as lines:
            yield from map(json.loads, lines)


class Tail:
    """New rows of a JSON lines sink as they are produced; a file that takes its final name is the same file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[int, int] = {}

    def rows(self) -> list[dict[str, Any]]:
        """Rows since the last call; a line that is still being written waits for the next."""
        rows: list[dict[str, Any]] = []
        for path in self._directory.glob("*.jsonl"):
            try:
                with path.open("rb") as file:
                    inode = path.stat().st_ino
                    file.seek(self._read.get(inode, 0))
                    data = file.read()
            except FileNotFoundError:
                continue
            whole = data[: data.rfind(b"\n") + 1]
            self._read[inode] = self._read.get(inode, 0) + len(whole)
            rows += map(json.loads, whole.splitlines())
        return rows
