"""The synthetic trades: what the paper says of its data, and that trades are the same wherever they are made."""

from __future__ import annotations

import numpy as np
import pytest

import headrace as hr
from headrace.bench.overlapping.trades import (
    MAX_PER_S,
    MIN_PER_S,
    SYMBOLS,
    Trades,
    expected_symbols,
    rates_per_s,
    symbol_names,
    written,
)
from headrace.connect.pace import as_pace
from headrace.testing import run_local


# cmr section 3: expected distinct symbols are 79 at 100 trades and 786 at 1,703
@pytest.mark.parametrize(("trades", "symbols"), [(100, 79), (1_703, 786)])
def test_distinct_symbols_are_as_in_the_paper(trades: int, symbols: int) -> None:
    assert round(expected_symbols(trades)) == symbols
    drawn = Trades(60, volume=10).tape().symbols
    seen = [len(np.unique(drawn[at : at + trades])) for at in range(0, len(drawn) - trades, trades)]
    assert np.mean(seen) == pytest.approx(symbols, rel=0.03)


# cmr section 3: 100–1,703 trades/s
def test_rates_reach_both_bounds_and_change_slowly() -> None:
    rates = rates_per_s(3600, seed=1)
    assert rates.min() == MIN_PER_S and rates.max() == MAX_PER_S
    steps = np.diff(np.log(rates))
    assert np.abs(steps).mean() < 0.2 and 200 < np.median(rates) < 800


def test_times_have_a_grain_of_a_second_and_never_go_back() -> None:
    trades = Trades(30)
    at_ms = trades(np.arange(trades.total))["at"]
    assert (at_ms % 1000 == 0).all() and (np.diff(at_ms) >= 0).all()
    assert np.array_equal(np.bincount((at_ms - at_ms[0]) // 1000), trades.tape().per_second)


def test_prices_walk() -> None:
    tape = Trades(300).tape()
    walk = tape.cents[tape.symbols == 0]
    assert len(walk) > 1000 and len(np.unique(walk)) > 10 and tape.cents.min() > 0
    assert (np.abs(np.diff(walk)) <= 1 + 0.005 * walk[:-1]).all()


def test_any_part_is_the_part_of_the_whole() -> None:
    trades = Trades(20)
    whole, some = trades(np.arange(trades.total)), np.array([3, 5, trades.total - 1])
    part = trades(some)
    assert part["symbol"].to_pylist() == [whole["symbol"][i].as_py() for i in some]
    assert np.array_equal(part["cents"], whole["cents"][some])
    assert len(set(symbol_names().to_pylist())) == SYMBOLS


def test_speed_up_makes_a_trade_due_within_its_second() -> None:
    trades, speed = Trades(40), 60.0
    due_s = as_pace(trades.pace(speed)).due_us(np.arange(trades.total)) / 1e6
    assert np.array_equal(np.floor(due_s * speed + 1e-3), trades.tape().seconds)


def test_generated_and_replayed_trades_are_the_same(tmp_path) -> None:
    trades = Trades(10)
    files = written(trades, tmp_path / "trades", parts=2)
    found = []
    for source in (
        hr.generate(trades, rate=trades.pace(100), total=trades.total),
        hr.replay(files, speed=100, time="time"),
    ):
        job = hr.Job("trades")
        stream = job.source("trades", source, event_time="at")
        stream.sink("out", hr.rows())
        found.append(sorted((r["at"], r["symbol"], r["cents"]) for r in run_local(job)["out"]))
    assert found[0] == found[1] and len(found[0]) == trades.total
