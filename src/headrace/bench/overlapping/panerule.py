"""``bench combining``: panes against one aggregate per window, and the γ of the rule that chooses (C-MR 2.5, 4).

What one subtask does, without Spark: moving averages per symbol over windows of 2 to 64 s that end every second,
for several numbers of trades per symbol and second. The two forms take turns, and must give the same answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import headrace as hr
from headrace.bench.measuring.figures import TreeWatch
from headrace.bench.overlapping.gammafit import Trial, crossover_us, fitted_gamma
from headrace.graph.nodes import ReduceNode
from headrace.graph.windowing import FOREVER_US, TimeWindow
from headrace.model.panecost import GAMMA, SLIDING_MERGES, WindowLoad
from headrace.runtime.batch import Batch
from headrace.runtime.operators.usercode import Guard
from headrace.runtime.reduce.forms import PANES, WINDOWS, Forms
from headrace.runtime.reduce.paned import PanedReduce
from headrace.runtime.reduce.reduce import Place
from headrace.state.warming import warm

SIZES_S = (2, 4, 8, 16, 32, 64)
VALUES_PER_KEY = (1, 2, 3, 4, 8)
_SECOND_US = 1_000_000
_KEYS = 2_000
_BATCH_ROWS = 4_096
CHUNK_US = 5_000_000
"""How often changes are collected for a checkpoint, as in a run that keeps up with its input."""
_STAMP = pa.timestamp("us", "UTC")
_IN = pa.schema([("symbol", pa.int64()), ("price", pa.float64())])
_OUT = pa.schema([("symbol", pa.int64()), ("window_start", _STAMP), ("window_end", _STAMP), ("mean", pa.float64())])


class Pinned(Forms):
    """One form from the first value to the last."""

    def __init__(self, window: TimeWindow, form: str) -> None:
        super().__init__(window)
        self.paned = form == PANES

    def in_panes(self, panes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return np.full(len(panes), self.paned)

    def see(self, newest: int, values: int, values_in_panes: int, rows: int) -> None:
        """Nothing is decided."""


class _Sum:
    """Where results go: how many there were and what they add up to."""

    def __init__(self) -> None:
        self.rows, self.total = 0, 0.0

    def receive(self, port: int, batch: Batch) -> None:
        self.rows += batch.rows
        self.total += float(np.sum(batch.records.column("mean").to_numpy()))

    def watermark(self, port: int, watermark_us: int) -> None:
        """Nobody waits for it."""


def combining(items: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Run all trials with about ``items`` trades each; figures, the fitted γ, and how well it chooses."""
    warm()
    trials, wrong = [], 0
    with TreeWatch() as watch:
        for values_per_key in VALUES_PER_KEY:
            trades = list(trades_of(items, values_per_key))
            for size_s in SIZES_S:
                window = TimeWindow(size_s * _SECOND_US, _SECOND_US)
                trial, same = measured(trades, window, values_per_key)
                trials.append(trial)
                wrong += not same
                tell(
                    f"{values_per_key} values per key, {size_s} s: {trial.direct_s:.3f} s, panes {trial.paned_s:.3f} s"
                )
    gamma = fitted_gamma(trials)
    settings = [_row(trial, gamma or GAMMA) for trial in trials]
    crossover = crossover_us(_SECOND_US, WindowLoad(3.0 * _KEYS, _KEYS), gamma or GAMMA, SLIDING_MERGES)
    return {
        "gamma": round(gamma, 2) if gamma is not None else None,
        "default_gamma": GAMMA,
        "crossover_s_at_3_values_per_key": crossover / 1e6 if crossover is not None else None,
        "winners_predicted": sum(row["predicted"] == row["winner"] for row in settings),
        "trials": len(trials),
        "seconds_lost_to_best": round(sum(_lost_s(trial, gamma or GAMMA) for trial in trials), 3),
        "seconds_at_best": round(sum(min(t.direct_s, t.paned_s) for t in trials), 3),
        "items": items,
        "wrong": wrong,
        **watch.figures(),
        "settings": settings,
    }


def measured(
    trades: list[Batch], window: TimeWindow, values_per_key: int, *, chunk_us: int = CHUNK_US
) -> tuple[Trial, bool]:
    """The better of two turns of each form, alternating; whether they gave the same answers."""
    turns = [[_timed(trades, window, form, chunk_us) for form in (WINDOWS, PANES)] for _ in range(2)]
    direct, paned = zip(*turns)
    same = direct[0][1] == paned[0][1] and np.isclose(direct[0][2], paned[0][2], rtol=1e-9)
    load = WindowLoad(float(values_per_key * _KEYS), _KEYS)
    direct_s, paned_s = min(d[0] for d in direct), min(p[0] for p in paned)
    return Trial(window.size_us, window.every_us, load, direct_s, paned_s, SLIDING_MERGES), bool(same)


def _timed(trades: list[Batch], window: TimeWindow, form: str, chunk_us: int) -> tuple[float, int, float]:
    """CPU seconds, rows and sum of the results."""
    node = ReduceNode("mean", ("symbol",), window, (("mean", hr.mean("price")),), ("trades",))
    operator, results = PanedReduce(node, _IN, _OUT, Guard("mean", "fail"), Place(64)), _Sum()
    operator.feed(results)
    operator.restored([])
    operator.forms = Pinned(window, form)
    began, stored_us = time.process_time(), 0
    for batch in trades:
        operator.receive(0, batch)
        reached_us = int(batch.times[-1])
        operator.watermark(0, reached_us)
        if reached_us - stored_us >= chunk_us:
            stored_us = reached_us
            for store in operator.stores().values():
                store.changes()
    operator.watermark(0, FOREVER_US)
    return time.process_time() - began, results.rows, results.total


def trades_of(items: int, values_per_key: int) -> Iterator[Batch]:
    """Seconds in which each of the symbols is traded so many times, in any order."""
    dice = np.random.default_rng(values_per_key)
    per_second = values_per_key * _KEYS
    for second in range(max(items // per_second, 4)):
        symbols = dice.permutation(np.repeat(np.arange(_KEYS), values_per_key))
        records = pa.record_batch([pa.array(symbols), pa.array(dice.random(per_second))], schema=_IN)
        times = second * _SECOND_US + np.arange(per_second) * _SECOND_US // per_second
        whole = Batch(records, times, 0)
        for start in range(0, per_second, _BATCH_ROWS):
            part = records.slice(start, _BATCH_ROWS)
            yield replace(whole, records=part, times=times[start : start + _BATCH_ROWS])


def _row(trial: Trial, gamma: float) -> dict[str, Any]:
    return {
        "values_per_key": trial.load.values_per_s / _KEYS,
        "size_s": trial.size_us / 1e6,
        "windows_s": round(trial.direct_s, 4),
        "panes_s": round(trial.paned_s, 4),
        "winner": PANES if trial.paned_s < trial.direct_s else WINDOWS,
        "predicted": PANES if gamma < trial.indifferent_gamma else WINDOWS,
    }


def _lost_s(trial: Trial, gamma: float) -> float:
    chosen = trial.paned_s if gamma < trial.indifferent_gamma else trial.direct_s
    return chosen - min(trial.paned_s, trial.direct_s)
