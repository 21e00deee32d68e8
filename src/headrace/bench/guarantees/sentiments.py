"""``bench sentiments``: the thesis's TwitterSentiments, two constraints under a step and a burst of load.

Tweets go two ways: counts of topics over sliding windows (hot topics), and through a filter that passes those on hot
topics to a slow step (sentiment), which scales. Departures: each filter knows its own topics by key, where the thesis
broadcasts a merged list to all of them; and the slow step waits as for a remote service, so that two cores can host many.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.bench.guarantees.sentiments_tweets import (
    EVERY_MS,
    WINDOW_MS,
    Ints,
    TweetLoad,
    Tweets,
    hot_numbers,
    is_hot,
    mood,
    window_counts,
)
from headrace.bench.measuring.boundkept import spans_of
from headrace.bench.measuring.figures import TreeWatch, cut_figures, latency_figures, longest_gap_ms, with_prefix
from headrace.bench.measuring.recorder import Table, recording
from headrace.driver.status import Event

_OVER_S = 5.0
_WARMUP_S = 10.0
_SCALED = re.compile(r"scale (\S+): (\d+) → (\d+) subtasks")


@dataclass(frozen=True, slots=True)
class Bounds:
    """On the mean of each branch. The thesis has 215 and 30 ms; sentiment is two shuffles away from tweets here."""

    hot_ms: float = 215.0
    sentiment_ms: float = 100.0


@dataclass(frozen=True, slots=True)
class Judge:
    """Finds the mood of tweets; each takes ``service_s``."""

    service_s: float

    def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
        until = time.perf_counter() + self.service_s * records.num_rows
        made = records.append_column("mood", pa.array(mood(records.column("words").to_numpy())))
        time.sleep(max(0.0, until - time.perf_counter()))
        return made


def ends(records: pa.RecordBatch) -> pa.RecordBatch:
    """Window ends in µs, as the recorder wants whole numbers."""
    end_us = records.column("window_end").cast(pa.int64())
    return pa.RecordBatch.from_pydict({"end_us": end_us, "topic": records.column("topic"), "n": records.column("n")})


def job_of(load: TweetLoad, judge: Judge, bounds: Bounds, hot: Any, moods: Any) -> hr.Job:
    job = hr.Job("bench-sentiments")
    source = hr.generate(Tweets.of(load), rate=load.rate, total=load.total, due="due_us")
    tweets = job.source("tweets", source, event_time="due_us", time_unit="us")
    topics = tweets.key_by("topic")
    window = hr.sliding(f"{WINDOW_MS} ms", every=f"{EVERY_MS} ms")
    counts = topics.window(window).reduce(name="hot-topics", n=hr.count()).map_batch(ends, name="ends")
    counts.sink("hot", hr.callback(hot))
    passed = topics.process(is_hot, name="filter", state={"recent": hr.queue()})
    judged = passed.map_batch(judge, name="sentiment", parallelism=(1, 2, 8))
    judged.sink("moods", hr.callback(moods))
    job.constrain(tweets >> counts, mean=f"{bounds.hot_ms} ms", over=f"{_OVER_S} s")
    job.constrain(tweets >> judged, mean=f"{bounds.sentiment_ms} ms", over=f"{_OVER_S} s")
    return job


def check(load: TweetLoad, hot: Table, moods: Table) -> dict[str, int]:
    """Exactly the tweets that pass the filter have a mood, each once; all windows are there, with their counts."""
    made = Tweets.of(load)
    topics = made.topics(np.arange(load.total))
    passes = np.zeros(load.total, bool)
    passes[hot_numbers(topics)] = True
    seen = np.bincount(moods["seq"], minlength=load.total)
    wrong_moods = (moods["mood"] != mood(made(moods["seq"])["words"])).sum() + seen[~passes].sum()
    due_us = started_us(load, moods) + load.due_us(np.arange(load.total))
    return {
        "lost": int((passes & (seen == 0)).sum()),
        "duplicated": int(np.maximum(seen - 1, 0).sum()),
        "wrong": int(wrong_moods) + wrong_windows(window_counts(topics, due_us), hot),
    }


def wrong_windows(expected: Ints, hot: Table) -> int:
    """Counts that are missing, too many or not as expected; one that is both there twice and wrong counts twice."""
    right = set(map(tuple, expected.tolist()))
    rows = list(zip(*(hot[name].tolist() for name in ("end_us", "topic", "n"))))
    return len(right ^ set(rows)) + len(rows) - len(set(rows))


def started_us(load: TweetLoad, moods: Table) -> int:
    """When the clock of the tweets began: any tweet tells."""
    return int(moods["due_us"][0] - load.due_us(moods["seq"][:1])[0])


@dataclass(frozen=True, slots=True)
class Reaction:
    """Scale-ups of a step in answer to a step of the load: how many, and how long until the last."""

    decisions: int
    seconds: float

    def figures(self) -> dict[str, float]:
        return {"reaction_decisions": self.decisions, "reaction_s": round(self.seconds, 2)}


def reaction(events: Iterable[Event], step: str, load: TweetLoad, began_us: int) -> Reaction:
    """To the load that comes at ``step_s`` and stays until the burst."""
    after = []
    for event in events:
        found = _SCALED.search(event.detail) if event.what == "scale" else None
        at_s = event.at_s - began_us / 1e6
        if found and found[1] == step and int(found[3]) > int(found[2]) and load.step_s <= at_s < load.burst_s:
            after.append(at_s - load.step_s)
    return Reaction(len(after), max(after, default=0.0))


def kept(load: TweetLoad, bounds: Bounds, hot: Table, moods: Table) -> dict[str, float]:
    """How well each bound was kept: of a window's count from its end, of a mood from when its tweet was due."""
    # Windows that the end of the input closes come before they are due.
    closed = hot["end_us"] <= started_us(load, moods) + load.seconds * 1e6
    spans = {
        "hot": spans_of(hot["end_us"][closed], hot["now_us"][closed], bounds.hot_ms, _OVER_S, warmup_s=_WARMUP_S),
        "sentiment": spans_of(moods["due_us"], moods["now_us"], bounds.sentiment_ms, _OVER_S, warmup_s=_WARMUP_S),
    }
    return {
        name: value for branch, found in spans.items() for name, value in with_prefix(branch, found.figures()).items()
    }


def sentiments(load: TweetLoad, bounds: Bounds, *, service_s: float = 0.006, **settings: Any) -> dict[str, Any]:
    """One run; ``p50_ms`` and its like are of moods."""
    with recording(("end_us", "topic", "n")) as counts, recording(("seq", "mood", "due_us")) as judged:
        job = job_of(load, Judge(service_s), bounds, counts, judged)
        with TreeWatch() as watch:
            run = hr.run(job, parallelism=1, **settings)
        hot, moods = counts.read(), judged.read()
    began_us, events = started_us(load, moods), run.decisions()
    return {
        "items": load.total,
        "items_per_s": round(load.total / ((moods["now_us"].max() - began_us) / 1e6), 1),
        "judged": len(moods["seq"]),
        **latency_figures((moods["now_us"] - moods["due_us"]) / 1000),
        **watch.figures(),
        **kept(load, bounds, hot, moods),
        "subtask_s": round(run.subtask_s().get("sentiment", float("nan")), 1),
        **cut_figures(run),
        "longest_gap_ms": longest_gap_ms(moods["now_us"]),
        "decisions": sum(event.what in ("batch", "scale", "chain") for event in events),
        **reaction(events, "sentiment", load, began_us).figures(),
        **check(load, hot, moods),
    }
