"""The reference for windows over trades, made by numpy from prefix sums, and how answers differ from it."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np

from headrace.bench.overlapping.trades import START_S, SYMBOLS, Trades
from headrace.bench.spilling.workloads import I64


@dataclass(frozen=True, slots=True)
class TradeWindows:
    """One row per window and symbol, by the window's end (seconds) and the symbol's number."""

    ends_s: I64
    symbols: I64
    cents: I64
    trades: I64

    @property
    def codes(self) -> I64:
        """End and symbol as one number."""
        return self.ends_s * SYMBOLS + self.symbols


def windows_of(trades: Trades, size_s: int, slide_s: int) -> TradeWindows:
    """Sum and number of prices of every window that holds a trade of the symbol."""
    tape, pane_s = trades.tape(), gcd(size_s, slide_s)
    assert START_S % slide_s == 0
    panes, reach = -(-trades.seconds // pane_s), size_s // pane_s
    # A window's panes all exist: empty ones before the first trade and after the last.
    ends = np.arange(slide_s // pane_s, panes + reach, slide_s // pane_s)
    totals = []
    for weights in (tape.cents, None):
        cells = (tape.seconds // pane_s + reach) * SYMBOLS + tape.symbols
        table = np.bincount(cells, weights, (panes + 2 * reach) * SYMBOLS).reshape(-1, SYMBOLS)
        prefix = np.vstack((np.zeros((1, SYMBOLS)), np.cumsum(table, axis=0))).astype(np.int64)
        totals.append(prefix[ends + reach] - prefix[ends])
    cents, counts = totals
    at, symbols = np.nonzero(counts)
    return TradeWindows(START_S + ends[at] * pane_s, symbols, cents[at, symbols], counts[at, symbols])


def differences(reference: TradeWindows, found: TradeWindows) -> dict[str, int]:
    """Rows missing, rows too many, and rows whose values are not the reference's."""
    codes, first = np.unique(found.codes, return_index=True)
    at = np.searchsorted(codes, reference.codes).clip(max=max(len(codes) - 1, 0))
    there = codes[at] == reference.codes if len(codes) else np.zeros(len(reference.codes), bool)
    row = first[at[there]]
    same = (found.cents[row] == reference.cents[there]) & (found.trades[row] == reference.trades[there])
    return {
        "lost": int((~there).sum()),
        "duplicated": len(found.codes) - int(there.sum()),
        "wrong": int((~same).sum()),
    }
