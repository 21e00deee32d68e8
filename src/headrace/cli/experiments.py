"""The experiments of ``headrace bench``: what each is about, and how the command's options become its arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.units import size_bytes

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line may say; None leaves it to the experiment."""

    rate: int | None = None
    seconds: int | None = None
    warmup: int = 10
    events: int | None = None
    items: int = 100_000
    kills: int = 10
    seed: int = 1
    bound_ms: float | None = None
    stock: bool = True
    quick: bool = False
    state: str | None = None
    standby: bool = False
    executor: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)


def latency(options: Options) -> Figures:
    """each item timed through one shuffle and a keyed Python step; stock PySpark in the same run"""
    from headrace.bench.latency import latency as run

    stock_s = 45 if options.stock else 0
    return run(options.rate or 2000, options.seconds or 140, options.warmup, stock_s, **options.settings)


def keyed_count(options: Options) -> Figures:
    """running count per key at a high rate, vectorised"""
    from headrace.bench.latency import keyed_count as run

    settings = {"flush": "10 ms", **options.settings}
    return run(options.rate or 100_000, options.seconds or 60, options.warmup, **settings)


def throughput(options: Options) -> Figures:
    """CSV files as fast as possible into windowed counts; stock Spark SQL on the same files"""
    from headrace.bench.throughput import throughput as run

    return run(options.events or 5_000_000, stock=options.stock, **options.settings)


def buffer_tradeoff(options: Options) -> Figures:
    """latency at three rates and saturated throughput by deadline and by size of buffers"""
    from headrace.bench.guarantees.buffer_tradeoff import buffer_tradeoff as run

    return run(_tell)


def primetest(options: Options) -> Figures:
    """an elastic step under a staircase of load with a latency bound; fixed and immediate peers"""
    from headrace.bench.guarantees.primetest import BOUNDS_MS, STAIRS, StairLoad
    from headrace.bench.guarantees.primetest import primetest as run

    asked_ms = 50.0 if options.bound_ms is None else options.bound_ms
    load = StairLoad(options.rate or 300, (options.seconds or 270) / len(STAIRS))
    return run((asked_ms,) if asked_ms else BOUNDS_MS, load, _tell, peers=options.stock, **options.settings)


def livestream(options: Options) -> Figures:
    """video decoded, merged, overlaid and encoded: unchained, with chains made by control, chained from the start"""
    from headrace.bench.guarantees.livestream import VideoLoad
    from headrace.bench.guarantees.livestream import livestream as run

    return run(VideoLoad(options.rate or 50, options.seconds or 30), options.bound_ms or 50.0, _tell)


def sentiments(options: Options) -> Figures:
    """hot topics and the mood of tweets under a step and a burst of load, with a bound on each"""
    from headrace.bench.guarantees.sentiments import Bounds
    from headrace.bench.guarantees.sentiments import sentiments as run
    from headrace.bench.guarantees.sentiments_tweets import TweetLoad

    bounds = Bounds() if options.bound_ms is None else Bounds(sentiment_ms=options.bound_ms)
    return run(TweetLoad(options.rate or 200), bounds, **options.settings)


def hash_engines(options: Options) -> Figures:
    """hash engines and sort-merge by skew, order of keys and memory; sessions; stock Spark on the same files"""
    from headrace.bench.spilling.hash_engines import hash_engines as run

    return run(options.items, _tell, stock=options.stock)


def combining(options: Options) -> Figures:
    """sliding windows from panes or one by one, by size and values per key; the constant of the rule"""
    from headrace.bench.overlapping.panerule import combining as run

    return run(options.items, _tell)


def combine(options: Options) -> Figures:
    """moving averages of trades by window size, with panes, without, and by stock Spark"""
    from headrace.bench.overlapping.combine import combine as run

    return run(_tell, stock=options.stock, seconds=options.seconds or 20, **options.settings)


def macd(options: Options) -> Figures:
    """two moving averages over shared panes, unshared, by re-run batch jobs and by stock Spark"""
    from headrace.bench.overlapping.macd import macd as run

    return run(_tell, stock=options.stock, seconds=options.seconds or 720, **options.settings)


def scheduling(options: Options) -> Figures:
    """a burst beyond the memory budget under each schedule: latency, memory, how long reading stopped"""
    from headrace.bench.burst_on_spark import scheduling as run

    return run(_tell, **options.settings)


def model_accuracy(options: Options) -> Figures:
    """predicted against measured latency over rates, deadlines, subtasks and service times"""
    from headrace.bench.guarantees.model_accuracy import model_accuracy as run

    return run(_tell, quick=options.quick)


def recovery(options: Options) -> Figures:
    """kill -9 of drivers and workers, or of executors: exact answers, and for how long none came; stock Spark's beside"""
    from headrace.bench.durability.executorloss import executor_loss
    from headrace.bench.recovery import recovery as run

    kills, standby = options.kills, options.standby
    stock_kills = max(1, min(5, kills // 4)) if options.stock else 0
    if options.executor:
        state_bytes, rate = size_bytes(options.state or "1 GB", "--state"), options.rate or 5000
        return executor_loss(
            state_bytes, kills, rate, options.seed, _tell, stock_kills=stock_kills, **options.settings
        )  # fmt: skip
    return run(kills, options.rate or 5000, options.seed, standby=standby, stock_kills=stock_kills, **options.settings)


def checkpoint(options: Options) -> Figures:
    """keyed state of a given size with cuts, with none, and stopping for each snapshot; when rows are visible"""
    from headrace.bench.durability.checkpoint import checkpoint as run

    rate, seconds, burst = options.rate or 10_000, options.seconds or 60, options.events or 10_000_000
    state_bytes, settings = size_bytes(options.state or "10 MB", "--state"), {"flush": "10 ms", **options.settings}
    return run(state_bytes, rate, seconds, options.warmup, burst, _tell, **settings)


def restart(options: Options) -> Figures:
    """deliberate restarts of the query, and of its batch alone, under load: how long each part of them takes"""
    from headrace.bench.durability.restartgap import restart as run

    return run(options.rate or 2000, options.seconds or 120, options.warmup, **options.settings)


def slices(options: Options) -> Figures:
    """a running reduce and a Python step with one slice per subtask, ten, 64 and 256, in turn: CPU time per record"""
    from headrace.bench.elasticity.slicecost import slices as run

    return run(options.seconds or 10, 1 if options.quick else 3, _tell, **options.settings)


def migrate(options: Options) -> Figures:
    """slices change hands under load, with state of growing size up to --state: how long their records wait"""
    from headrace.bench.elasticity.migration import migrate as run

    largest, sizes = size_bytes(options.state or "1 GB", "--state"), (64_000_000, 256_000_000, 1_000_000_000)
    settings = {"flush": "10 ms", **options.settings}
    return run([*(s for s in sizes if s < largest), largest], options.rate or 5000, _tell, **settings)


def rescale(options: Options) -> Figures:
    """a keyed step goes from 1 subtask to 2, 4, 2 and 1 while it runs: pauses of the slices that move"""
    from headrace.bench.elasticity.rescaling import rescale as run

    return run(options.rate or 2000, options.seconds or 8, _tell, **options.settings)


def topk(options: Options) -> Figures:
    """top words over a sliding count window: rate and latency against state, up to --state; ChronoStream's Fig. 12"""
    from headrace.bench.elasticity.curves import topk as run

    load = options.rate or 5000, options.seconds or 10, options.events or 200_000
    return run(size_bytes(options.state or "256 MB", "--state"), *load, _tell, **options.settings)


def similarity(options: Options) -> Figures:
    """similar messages, each compared with a whole window: time against state, up to --state; ChronoStream's Fig. 13"""
    from headrace.bench.elasticity.curves import similarity as run

    load = options.rate or 100, options.seconds or 10, options.events or 4000
    return run(size_bytes(options.state or "256 MB", "--state"), *load, _tell, **options.settings)


def _tell(line: str) -> None:
    """Progress of an experiment with many runs."""
    print(line, file=sys.stderr, flush=True)


_ALL: tuple[Callable[[Options], Figures], ...] = (
    latency, keyed_count, throughput, buffer_tradeoff, primetest, livestream, sentiments, hash_engines, combining,
    combine, macd, scheduling, model_accuracy, recovery, checkpoint, restart, slices, migrate, rescale, topk,
    similarity,
)  # fmt: skip
EXPERIMENTS = {run.__name__.replace("_", "-"): run for run in _ALL}
"""By the name that users give; each one's docstring is its line in the list."""
