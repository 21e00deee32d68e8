"""The MACD experiment: its variants give numpy's answers, its counts are those of C-MR, differences are found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import headrace as hr
from headrace.bench.overlapping.macd import orders_failed, rerun_sums, without_due
from headrace.bench.overlapping.macd_answers import (
    FAST_S,
    SLIDE_S,
    SLOW_S,
    Answers,
    Sums,
    differences,
    joined,
    latency_ms,
    reference,
    touched_per_slide,
)
from headrace.bench.overlapping.macd_jobs import Stored, averages, of_window, rerun_job, stored
from headrace.bench.overlapping.trades import START_S, SYMBOLS, Trades
from headrace.testing import run_local

TRADES = Trades(660)
NONE = {"lost": 0, "duplicated": 0, "wrong": 0}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return stored(TRADES, tmp_path_factory.mktemp("macd") / "trades")


@pytest.mark.parametrize("shared", [True, False])
def test_variants_give_the_same_answers(shared, kept) -> None:
    job = hr.Job("macd")
    trades = job.source("trades", hr.generate(kept, total=TRADES.total, due="due_us"), event_time="at")
    averages(trades.map_batch(without_due, name="prices"), combine=shared).sink("out", hr.rows())
    rows = run_local(job, share=shared)["out"]
    end_s, symbol, macd = (np.array([row[name] for row in rows]) for name in ("end_s", "symbol", "macd"))
    assert differences(reference(TRADES), Answers(end_s * SYMBOLS + symbol, macd)) == NONE


def test_a_rerun_gives_the_same_answers(kept) -> None:
    end_s = 600
    rows = run_local(rerun_job(kept, TRADES, end_s, {"fast": print, "slow": print}), mode="batch")
    sums = [
        rerun_sums(
            end_s,
            {
                "now_us": np.zeros(len(part), np.int64),
                **{name: np.array([row[name] for row in part]) for name in ("symbol", "cents", "trades")},
            },
        )
        for part in (rows["fast-out"], rows["slow-out"])
    ]
    expected = reference(TRADES)
    assert differences(expected.of(expected.ends_s == START_S + end_s), joined(*sums)[0]) == NONE


# cmr fact 21
@pytest.mark.parametrize("size_s", [FAST_S, SLOW_S])
def test_a_rerun_baseline_maps_each_trade_as_often_as_windows_overlap(size_s: int) -> None:
    mapped = np.zeros(TRADES.total, np.int64)
    for end_s in range(SLIDE_S, TRADES.seconds + size_s, SLIDE_S):
        numbers = of_window(TRADES, end_s, size_s)
        mapped[numbers.start : numbers.stop] += 1
    assert set(mapped.tolist()) == {size_s // SLIDE_S}


# cmr section 3: values touched per slide are 900 t without sharing, and 60 t + 15 d with it
def test_values_touched_per_slide() -> None:
    tape = TRADES.tape()
    panes = [tape.symbols[tape.seconds // SLIDE_S == minute] for minute in range(11)]
    apart, together = [], []
    for end in (10, 11):
        apart.append(sum(len(pane) for pane in [*panes[end - 5 : end], *panes[end - 10 : end]]))
        merged = sum(len(set(pane.tolist())) for pane in [*panes[end - 5 : end], *panes[end - 10 : end]])
        together.append(len(panes[end - 1]) + merged)
    assert touched_per_slide(TRADES) == {
        "unshared_touched_per_slide": np.mean(apart),
        "shared_touched_per_slide": np.mean(together),
    }


# cmr fact 22: MACD mean latency (c) < (b) < (a), measured by the bench, which fails if it is not so
def test_an_order_that_does_not_hold_is_counted() -> None:
    right = {"shared_mean_ms": 160.0, "unshared_mean_ms": 240.0, "rerun_mean_ms": 1150.0}
    assert orders_failed(right) == 0
    assert orders_failed({**right, "unshared_mean_ms": 150.0}) == 1
    assert orders_failed({**right, "shared_mean_ms": 5000.0}) == 1
    assert orders_failed({"shared_mean_ms": 3.0, "unshared_mean_ms": 2.0, "rerun_mean_ms": 1.0}) == 2


def test_every_difference_is_found() -> None:
    right = Answers(np.array([3, 5, 9]), np.array([1, 1, 2]))
    assert differences(right, Answers(np.array([9, 3, 5]), np.array([2, 1, 1]))) == NONE
    assert differences(right, Answers(right.codes[:2], right.macd[:2])) == {**NONE, "lost": 1}
    assert differences(right, Answers(np.array([3, 5, 9, 9]), np.array([1, 1, 2, 2]))) == {**NONE, "duplicated": 1}
    assert differences(right, Answers(np.array([3, 5, 9, 8]), np.array([1, 1, 2, 2]))) == {**NONE, "duplicated": 1}
    assert differences(right, replace(right, macd=np.array([1, 0, 2]))) == {**NONE, "wrong": 1}


def test_latency_counts_from_when_a_window_end_was_due() -> None:
    ends_s = START_S + np.array([60, 240, 300, 360])
    now_us = 5_000_000 + np.array([1_000_000, 4_000_000, 5_000_000, 6_000_000]) + 7_000
    assert latency_ms(ends_s, now_us, 5_000_000, Trades(360)).tolist() == pytest.approx([7.0, 7.0])


def test_a_result_is_there_when_both_means_are() -> None:
    fast = Sums(np.array([4, 7, 8]), np.array([10, 20, 30]), np.array([2, 2, 2]), np.array([100, 200, 300]))
    slow = Sums(np.array([7, 4, 4]), np.array([30, 1, 8]), np.array([2, 1, 2]), np.array([150, 160, 170]))
    answers, now_us = joined(fast, slow)
    assert answers.codes.tolist() == [4, 7] and now_us.tolist() == [170, 200]
    assert answers.macd.view(np.float64).tolist() == [1.0, -5.0]


def test_stored_trades_are_the_trades(kept: Stored) -> None:
    numbers = np.array([0, 7, 100])
    made, found = TRADES(numbers + 5), Stored(Path(kept.directory), 5)(numbers)
    assert found["symbol"].equals(made["symbol"])
    assert all(np.array_equal(found[name], made[name]) for name in ("cents", "at"))
