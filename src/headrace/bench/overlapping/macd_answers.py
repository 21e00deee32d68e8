"""Answers of ``bench macd``: the reference, what was found and when, and how they differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.bench.measuring.figures import Values
from headrace.bench.overlapping.trades import START_S, SYMBOLS, Trades
from headrace.bench.overlapping.trades_windows import windows_of
from headrace.bench.spilling.workloads import I64

FAST_S, SLOW_S, SLIDE_S = 300, 600, 60
SPEED = 60
"""A minute of trading passes in a second."""
WARM_UP_S = 180
"""Of trading: the first three results do not count."""


@dataclass(frozen=True, slots=True)
class Sums:
    """One mean's rows: window end and symbol as one number, sum and number of prices, when they were there."""

    codes: I64
    cents: I64
    trades: I64
    now_us: I64


@dataclass(frozen=True, slots=True)
class Answers:
    """Rows of window end and symbol as one number, and the bits of the result."""

    codes: I64
    macd: I64

    def of(self, rows: npt.NDArray[np.bool_]) -> Answers:
        return Answers(self.codes[rows], self.macd[rows])

    @property
    def ends_s(self) -> I64:
        return self.codes // SYMBOLS


def reference(trades: Trades) -> Answers:
    """What every variant must give."""
    fast, slow = (windows_of(trades, size_s, SLIDE_S) for size_s in (FAST_S, SLOW_S))
    never = np.zeros(len(slow.codes), np.int64)
    sums = (Sums(made.codes, made.cents, made.trades, never[: len(made.codes)]) for made in (fast, slow))
    return joined(*sums)[0]


def joined(fast: Sums, slow: Sums) -> tuple[Answers, I64]:
    """Fast minus slow mean where both are there, and since when. Of a row that came twice, the last counts."""
    slow_codes, last = np.unique(slow.codes[::-1], return_index=True)
    last = len(slow.codes) - 1 - last
    both = np.isin(fast.codes, slow_codes)
    at = last[np.searchsorted(slow_codes, fast.codes[both])]
    macd = fast.cents[both] / fast.trades[both] - slow.cents[at] / slow.trades[at]
    return Answers(fast.codes[both], macd.view(np.int64)), np.maximum(fast.now_us[both], slow.now_us[at])


def differences(expected: Answers, found: Answers) -> dict[str, int]:
    """Rows missing, rows too many, and rows with another result."""
    codes, first = np.unique(found.codes, return_index=True)
    there = np.isin(expected.codes, codes)
    same = found.macd[first[np.searchsorted(codes, expected.codes[there])]] == expected.macd[there]
    return {
        "lost": int((~there).sum()),
        "duplicated": len(found.codes) - int(there.sum()),
        "wrong": int((~same).sum()),
    }


def latency_ms(ends_s: I64, now_us: I64, start_us: int, trades: Trades) -> Values:
    """From when a window's end was due; the last one's results come because the input ends, and do not count."""
    elapsed_s = ends_s - START_S
    counts = (elapsed_s > WARM_UP_S) & (elapsed_s < trades.seconds)
    late_us: Values = now_us - start_us - elapsed_s / SPEED * 1e6
    return late_us[counts] / 1000


def touched_per_slide(trades: Trades) -> dict[str, float]:
    """Values that (b) and (c) touch per slide, counted: 900 t and 60 t + 15 d, with t trades/s and d symbols per pane."""
    tape = trades.tape()
    minutes = tape.seconds // SLIDE_S
    counts = np.bincount(minutes)
    symbols = np.bincount(np.unique(minutes * SYMBOLS + tape.symbols) // SYMBOLS)
    apart, together = [], []
    for end in range(SLOW_S // SLIDE_S, len(counts) + 1):
        spans = [slice(end - size_s // SLIDE_S, end) for size_s in (FAST_S, SLOW_S)]
        apart.append(sum(int(counts[span].sum()) for span in spans))
        together.append(int(counts[end - 1]) + sum(int(symbols[span].sum()) for span in spans))
    return {
        "unshared_touched_per_slide": round(float(np.mean(apart)), 1),
        "shared_touched_per_slide": round(float(np.mean(together)), 1),
    }
