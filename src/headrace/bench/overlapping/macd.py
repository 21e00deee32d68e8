"""``bench macd``: moving average convergence over shared panes, without sharing, by re-run, and by stock Spark (C-MR 4).

Latency is from when a window's end is due, on a clock that passes a minute of trading per second, until its results are
handed to the sink. All variants get the exchange's own trades then; how many they can take is found with more of them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.bench.measuring.figures import TreeWatch, Values, latency_figures, with_prefix
from headrace.bench.measuring.recorder import Table, recording
from headrace.bench.overlapping.macd_answers import (
    SLIDE_S,
    SLOW_S,
    SPEED,
    Answers,
    Sums,
    differences,
    joined,
    latency_ms,
    reference,
    touched_per_slide,
)
from headrace.bench.overlapping.macd_jobs import Stored, averages, rerun_job, stored
from headrace.bench.overlapping.macd_stock import run_stock_macd
from headrace.bench.overlapping.trades import START_S, SYMBOLS, Trades, written
from headrace.spark.session import open_session

_VARIANTS = {"shared": True, "unshared": False}
"""With one table of one-minute panes for both means, or with every window of each by itself."""
_RERUNS = 3
_LARGE_BUFFERS = {"flush": "100 ms", "flush_bytes": 16_000_000}
_SLOW_FLUSH = {"flush": "50 ms"}
"""Without panes each buffer is added to fifteen windows: small ones alone would keep two cores busy."""
_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Input:
    """Trades, where they are kept, and the right answers."""

    trades: Trades
    kept: Stored
    expected: Answers


def orders_failed(figures: Mapping[str, Any]) -> int:
    """Of C-MR's findings, shared before unshared before re-run in latency, those that this run does not show."""
    means = [figures[f"{variant}_mean_ms"] for variant in ("shared", "unshared", "rerun")]
    return sum(one >= other for one, other in pairwise(means))


def macd(
    progress: Callable[[str], None],
    *,
    stock: bool = True,
    seconds: int = 720,
    volume: int = 6,
    **settings: Any,
) -> dict[str, Any]:
    """Saturation of both variants on ``volume`` times the trades, then latency of all; ``seconds`` of trading each.

    They are enough for one slide of full windows at least.
    """
    seconds = max(seconds, SLOW_S + SLIDE_S)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=_MEMORY if _MEMORY.is_dir() else None) as work:
        root = Path(work)
        session = open_session("realtime", "local[10]", "bench-macd")
        try:
            with TreeWatch() as watch:
                figures = _ours(session, root, seconds, volume, progress, settings)
                figures["orders_failed"] = orders_failed(figures)
        finally:
            session.stop()
        if stock:
            for of_volume in (1, volume):
                written(Trades(seconds, of_volume), root / f"files-{of_volume}", parts=2)
            peer = run_stock_macd(root=str(root), seconds=seconds, volume=volume)
            figures |= with_prefix("stock", peer)
            progress(f"stock: {peer['items_per_s']:,} items/s, latency {peer['mean_ms']:,.0f} ms")
    return {**figures, **watch.figures()}


def _ours(
    session: Any, root: Path, seconds: int, volume: int, progress: Callable[[str], None], settings: dict[str, Any]
) -> dict[str, Any]:
    figures: dict[str, Any] = {"lost": 0, "duplicated": 0, "wrong": 0}
    many, paced = (_input(root, Trades(seconds, of_volume)) for of_volume in (volume, 1))
    _flow(session, paced, "shared", None, {**_LARGE_BUFFERS, **settings})
    for name in _VARIANTS:
        flow, busy_s = _flow(session, many, name, None, {**_LARGE_BUFFERS, **settings})
        _add(figures, differences(many.expected, flow.answers))
        figures[f"{name}_items_per_s"] = round(many.trades.total / busy_s)
        progress(f"{name}: {figures[f'{name}_items_per_s']:,} items/s")
    for name in _VARIANTS:
        flow, _ = _flow(session, paced, name, SPEED, {**_SLOW_FLUSH, **settings})
        _add(figures, differences(paced.expected, flow.answers))
        late_ms = flow.latency_ms(paced.trades)
        figures[f"{name}_mean_ms"] = round(float(late_ms.mean()), 1)
        figures |= latency_figures(late_ms) if name == "shared" else {}
        progress(f"{name}: latency {figures[f'{name}_mean_ms']:,.1f} ms")
    rerun_ms, wrong = _reruns(session, paced)
    figures["wrong"] += wrong
    progress(f"re-run: latency {rerun_ms:,.0f} ms")
    return {
        "items": 2 * (many.trades.total + paced.trades.total),
        "items_per_s": figures["shared_items_per_s"],
        **figures,
        "rerun_mean_ms": round(rerun_ms, 1),
        **touched_per_slide(paced.trades),
    }


def _input(root: Path, trades: Trades) -> Input:
    return Input(trades, stored(trades, root / f"volume-{trades.volume}"), reference(trades))


def _flow(
    session: Any, given: Input, variant: str, speed: float | None, settings: dict[str, Any]
) -> tuple[TradeFlow, float]:
    """Run a variant, at a speed or as fast as possible: its results, and how long it was busy (s)."""
    rate = given.trades.pace(speed) if speed is not None else None
    job = hr.Job(f"bench-macd-{variant}")
    source = hr.generate(given.kept, rate=rate, total=given.trades.total, due="due_us")
    trades = job.source("trades", source, event_time="at")
    with recording(("end_s", "symbol", "macd")) as results, recording(("due_us",)) as clock:
        trades.map_batch(first_due, name="first").sink("clock", hr.callback(clock))
        prices = trades.map_batch(without_due, name="prices")
        averages(prices, combine=_VARIANTS[variant]).sink("out", hr.callback(results))
        run = hr.run(job, spark=session, share=_VARIANTS[variant], **settings)
        return TradeFlow(results.read(), int(clock.read()["due_us"].min())), run.busy_s


def first_due(rows: pa.RecordBatch) -> pa.RecordBatch:
    """A batch's first trade: the first of all says when the clock was started."""
    return rows.slice(0, 1).select(["due_us", "at"])


def without_due(rows: pa.RecordBatch) -> pa.RecordBatch:
    """What the exchange reports."""
    return rows.select(["symbol", "cents", "at"])


@dataclass(frozen=True, slots=True)
class TradeFlow:
    """What a streaming variant handed over, and when its first trade was due."""

    rows: Table
    start_us: int

    @property
    def answers(self) -> Answers:
        return Answers(self.rows["end_s"] * SYMBOLS + self.rows["symbol"], self.rows["macd"])

    def latency_ms(self, trades: Trades) -> Values:
        return latency_ms(self.rows["end_s"], self.rows["now_us"], self.start_us, trades)


def _reruns(session: Any, given: Input) -> tuple[float, int]:
    """Mean time of a batch run for one window end (ms), and how many of its results are wrong."""
    took_s, wrong = [], 0
    for end_s in range(given.trades.seconds - _RERUNS * SLIDE_S, given.trades.seconds, SLIDE_S):
        with recording(_SUMS) as fast, recording(_SUMS) as slow:
            began = time.perf_counter()
            job = rerun_job(given.kept, given.trades, end_s, {"fast": fast, "slow": slow})
            hr.run(job, spark=session, mode="batch")
            found, _ = joined(rerun_sums(end_s, fast.read()), rerun_sums(end_s, slow.read()))
            took_s.append(time.perf_counter() - began)
        expected = given.expected.of(given.expected.ends_s == START_S + end_s)
        wrong += sum(differences(expected, found).values())
    return 1000 * float(np.mean(took_s)), wrong


_SUMS = ("symbol", "cents", "trades")


def rerun_sums(end_s: int, rows: Table) -> Sums:
    """What one of a re-run's reduces wrote."""
    codes = (START_S + end_s) * SYMBOLS + rows["symbol"]
    return Sums(codes, rows["cents"], rows["trades"], rows["now_us"])


def _add(figures: dict[str, Any], more: dict[str, int]) -> None:
    for name, value in more.items():
        figures[name] += value
