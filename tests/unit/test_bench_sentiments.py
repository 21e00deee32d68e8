"""The sentiments experiment: load, filter and windows as described, answers checked, reactions counted."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.actuate.controljob import control_job
from headrace.bench.guarantees.sentiments import Bounds, Judge, check, job_of, kept, reaction
from headrace.bench.guarantees.sentiments_tweets import (
    EVERY_MS,
    WINDOW_MS,
    TweetLoad,
    Tweets,
    hot_numbers,
    mood,
    window_counts,
)
from headrace.config import Settings
from headrace.control.decisions import Decision
from headrace.driver.planning import plan_job
from headrace.driver.status import Event
from headrace.testing import run_local

SHORT = TweetLoad(base=600, step_s=1, burst_s=1, ramp_s=0.5, hold_s=0, seconds=3)
NONE = {"lost": 0, "duplicated": 0, "wrong": 0}


def test_load_doubles_and_then_bursts() -> None:
    load = TweetLoad(300)
    assert [load.per_s(at_s) for at_s in (0, 19.9, 20, 44, 60, 65, 70, 90)] == [
        300,
        300,
        600,
        600,
        1200,
        1200,
        1200,
        600,
    ]
    due_s = load.due_us(np.arange(load.total)) / 1e6
    assert load.numbers(20) == 6000 and (due_s < 20).sum() == 6000
    assert load.total == sum(rate for _, rate in load.rate) and due_s[-1] < load.seconds


# latency-guarantees 3: a burst about few topics raises selectivity and loads Sentiment
def test_more_tweets_pass_the_filter_in_a_burst() -> None:
    load = TweetLoad(300)
    passed = np.zeros(load.total, bool)
    passed[hot_numbers(Tweets.of(load).topics(np.arange(load.total)))] = True
    calm = passed[1000 : load.numbers(load.burst_s)].mean()
    burst = passed[load.numbers(60) : load.numbers(70)].mean()
    assert 0.3 < calm < 0.45 and burst > 1.6 * calm


def test_any_part_is_the_part_of_the_whole() -> None:
    tweets, some = Tweets.of(SHORT), np.array([3, 500, SHORT.total - 1])
    whole = tweets(np.arange(SHORT.total))
    assert all((values[some] == tweets(some)[name]).all() for name, values in whole.items())


def test_the_job_gives_the_references_answers() -> None:
    found = run_local(job_of(SHORT, Judge(0.0), Bounds(), print, print), parallelism=1)
    moods, hot = (
        {name: np.array([row[name] for row in rows]) for name in rows[0]} for rows in (found["moods"], found["hot"])
    )
    assert check(SHORT, hot, moods) == NONE
    changed = {**hot, "n": hot["n"] + (hot["topic"] == 0)}  # each is one too many and one missing
    assert check(SHORT, changed, moods) == {**NONE, "wrong": 2 * (hot["topic"] == 0).sum()}
    assert check(SHORT, {name: values[1:] for name, values in hot.items()}, moods)["wrong"] == 1
    fewer = {name: values[1:] for name, values in moods.items()}
    assert check(SHORT, hot, fewer) == {**NONE, "lost": 1}
    twice = {name: np.append(values, values[:1]) for name, values in moods.items()}
    assert check(SHORT, hot, twice) == {**NONE, "duplicated": 1}
    assert check(SHORT, hot, {**moods, "mood": -moods["mood"]})["wrong"] == np.count_nonzero(moods["mood"])


def test_bounds_are_judged_by_branch_and_closed_windows_only() -> None:
    load, due_us = TweetLoad(10, seconds=30), np.arange(0, 30_000_000, 100_000)
    moods = {"seq": np.arange(300), "due_us": due_us, "now_us": due_us + 120_000}
    end_us = np.append(due_us, 31_000_000)  # the last one is closed by the end of the input
    hot = {"end_us": end_us, "now_us": np.append(due_us + 120_000, 99_000_000)}
    figures = kept(load, Bounds(hot_ms=200.0, sentiment_ms=100.0), hot, moods)
    assert (figures["hot_met_share"], figures["sentiment_met_share"]) == (1.0, 0.0)
    assert figures["hot_intervals"] == figures["sentiment_intervals"] > 10


def test_windows_of_the_reference_overlap() -> None:
    counts = window_counts(np.array([5, 5]), np.array([1_000_000, 1_250_000]))
    ends_us = counts[:, 0] // 1000
    assert ends_us.tolist() == [*range(1000 + EVERY_MS, 1000 + WINDOW_MS + 1, EVERY_MS), 1000 + WINDOW_MS + EVERY_MS]
    assert counts[:, 2].tolist() == [1, *[2] * 9, 1]


def test_a_judge_takes_its_time() -> None:
    words = np.arange(5)
    began_s = time.perf_counter()
    judged = Judge(0.004)(pa.RecordBatch.from_pydict({"words": words}))
    assert time.perf_counter() - began_s >= 0.02
    assert judged.column("mood").to_pylist() == mood(words).tolist() == [-3, -2, -1, 0, 1]


# latency-guarantees fact 6: the two constraints share tasks, not streams
def test_sentiment_scales_by_itself_and_while_a_batch_runs(tmp_path: Path) -> None:
    plan = plan_job(job_of(SHORT, Judge(0.0), Bounds(), print, print), tmp_path, Settings.of(parallelism=1))
    stage = plan.layout.stages[plan.layout.stage_of["sentiment"]]
    assert stage.steps == ("sentiment", "moods") and (stage.minimum, stage.active, stage.subtasks) == (1, 2, 8)
    assert not any(edge.keyed for edge in plan.layout.border(stage.index))  # a keyed stage waits for the next batch
    hot, sentiment = control_job(plan).constraints
    assert not hot.edges & sentiment.edges


def test_reaction_is_the_scale_ups_between_step_and_burst() -> None:
    def scaled(at_s: float, step: str, change: str) -> Event:
        decision = Decision(at_s, "scale", step, f"{change} subtasks", "of the load", {})
        return Event(at_s, decision.action, decision.sentence())

    load, began_s = TweetLoad(300), 1000.0
    events = [
        scaled(1005.0, "sentiment", "2 → 1"),
        scaled(1010.0, "sentiment", "1 → 2"),  # before the step
        scaled(1023.0, "sentiment", "2 → 3"),
        scaled(1024.0, "filter", "1 → 2"),
        scaled(1027.5, "sentiment", "3 → 5"),
        scaled(1035.0, "sentiment", "5 → 4"),
        scaled(1046.0, "sentiment", "4 → 8"),  # the burst
        Event(1028.0, "outcome", "scale sentiment: 1 → 2 subtasks"),
    ]
    found = reaction(events, "sentiment", load, int(began_s * 1e6))
    assert found.figures() == {"reaction_decisions": 2, "reaction_s": 7.5}
    assert reaction([], "sentiment", load, 0).figures() == {"reaction_decisions": 0, "reaction_s": 0.0}
