"""The reference of the experiments with trades, against a plain loop; and that no difference escapes it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from headrace.bench.overlapping.trades import START_S, Trades
from headrace.bench.overlapping.trades_windows import TradeWindows, differences, windows_of


@pytest.mark.parametrize(("size_s", "slide_s"), [(1, 1), (5, 1), (60, 1), (6, 4), (7, 5), (60, 60)])
def test_the_reference_is_what_a_loop_finds(size_s: int, slide_s: int) -> None:
    trades = Trades(23)
    tape = trades.tape()
    sums: Counter[tuple[int, int]] = Counter()
    counts: Counter[tuple[int, int]] = Counter()
    for second, symbol, cents in zip(tape.seconds.tolist(), tape.symbols.tolist(), tape.cents.tolist()):
        for end in range((second // slide_s + 1) * slide_s, second + size_s + 1, slide_s):
            sums[START_S + end, symbol] += cents
            counts[START_S + end, symbol] += 1
    made = windows_of(trades, size_s, slide_s)
    keys = list(zip(made.ends_s.tolist(), made.symbols.tolist()))
    assert dict(zip(keys, made.cents.tolist())) == sums
    assert dict(zip(keys, made.trades.tolist())) == counts and len(keys) == len(counts)


def test_every_difference_is_found() -> None:
    right = windows_of(Trades(5), 2, 1)
    order = np.random.default_rng(1).permutation(len(right.codes))
    assert differences(right, take(right, order)) == {"lost": 0, "duplicated": 0, "wrong": 0}
    assert differences(right, take(right, order[1:])) == {"lost": 1, "duplicated": 0, "wrong": 0}
    assert differences(right, take(right, [*order, 0])) == {"lost": 0, "duplicated": 1, "wrong": 0}
    assert differences(right, take(right, [])) == {"lost": len(order), "duplicated": 0, "wrong": 0}
    assert differences(right, replace(right, ends_s=right.ends_s + 100))["duplicated"] == len(order)
    for column in ("cents", "trades"):
        off = getattr(right, column) + (np.arange(len(order)) == 3)
        assert differences(right, replace(right, **{column: off})) == {"lost": 0, "duplicated": 0, "wrong": 1}


def take(windows: TradeWindows, rows: object) -> TradeWindows:
    at = np.array(rows, np.int64)
    return TradeWindows(windows.ends_s[at], windows.symbols[at], windows.cents[at], windows.trades[at])
