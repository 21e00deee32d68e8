"""The MACD workflow, for C-MR's variants (b), two MapReduce jobs and a join, and (c), the same over shared panes.

(a), re-run batch jobs, is one job per window end over the trades of its windows alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr
from headrace.api.stream import Stream
from headrace.bench.overlapping.macd_answers import FAST_S, SLIDE_S, SLOW_S
from headrace.bench.overlapping.trades import START_S, Trades, symbol_names
from headrace.bench.spilling.workloads import I64


@dataclass(frozen=True, slots=True)
class Stored:
    """Trades kept in files, since each worker would need seconds to make many of them; ``first`` is number 0."""

    directory: Path
    first: int = 0

    def __call__(self, numbers: I64) -> dict[str, Any]:
        seconds, symbols, cents = _columns(self.directory)
        at = numbers + self.first
        names = symbol_names().take(pa.array(symbols[at]))
        return {"symbol": names, "cents": cents[at], "at": (START_S + seconds[at]) * 1000}


def stored(trades: Trades, directory: Path) -> Stored:
    """Write the trades' columns."""
    directory.mkdir()
    tape = trades.tape()
    for name, column in zip(_COLUMNS, (tape.seconds, tape.symbols, tape.cents)):
        np.save(directory / name, column)
    return Stored(directory)


_COLUMNS = ("seconds.npy", "symbols.npy", "cents.npy")


@lru_cache(maxsize=2)
def _columns(directory: Path) -> tuple[I64, ...]:
    return tuple(np.load(directory / name, mmap_mode="r") for name in _COLUMNS)


def averages(trades: Stream, *, combine: bool) -> Stream:
    """Both means, joined by symbol and window end and subtracted."""
    fast, slow = (
        trades.key_by("symbol")
        .window(hr.sliding(size_s, every=SLIDE_S))
        .reduce(name=name, cents=hr.sum("cents"), trades=hr.count(), state=hr.keep(combine=combine))
        for name, size_s in (("fast", FAST_S), ("slow", SLOW_S))
    )
    pairs = fast.key_by("symbol", "window_end").window(hr.tumbling(SLIDE_S))
    return pairs.join(slow.key_by("symbol", "window_end"), name="pairs").map_batch(difference, name="macd")


def difference(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Window ends in seconds, symbols by number, and the bits of fast minus slow mean."""
    fast, slow = (
        pc.divide(rows.column(f"cents{side}").cast(pa.float64()), rows.column(f"trades{side}").cast(pa.float64()))
        for side in ("", "_right")
    )
    ends_s = pc.divide(rows.column("window_end").cast(pa.int64()), 1_000_000)
    symbols = pc.index_in(rows.column("symbol"), symbol_names()).cast(pa.int64())
    bits = pc.subtract(fast, slow).view(pa.int64())
    return pa.RecordBatch.from_pydict({"end_s": ends_s, "symbol": symbols, "macd": bits})


def of_window(trades: Trades, end_s: int, size_s: int) -> range:
    """The numbers of the trades in the window that ends so many seconds after the start: what a re-run maps."""
    seconds = trades.tape().seconds
    return range(int(np.searchsorted(seconds, end_s - size_s)), int(np.searchsorted(seconds, end_s)))


def rerun_job(kept: Stored, trades: Trades, end_s: int, recorders: dict[str, Any]) -> hr.Job:
    """(a): both means of one window end from the trades themselves; each goes to its recorder."""
    job = hr.Job("bench-macd-rerun")
    for name, size_s in (("fast", FAST_S), ("slow", SLOW_S)):
        numbers = of_window(trades, end_s, size_s)
        source = hr.generate(Stored(kept.directory, numbers.start), total=len(numbers))
        keyed = job.source(f"{name}-trades", source).key_by("symbol").window(hr.whole_input())
        sums = keyed.reduce(name=name, cents=hr.sum("cents"), trades=hr.count())
        sums.map_batch(_numbered, name=f"{name}-numbers").sink(f"{name}-out", hr.callback(recorders[name]))
    return job


def _numbered(rows: pa.RecordBatch) -> pa.RecordBatch:
    symbols = pc.index_in(rows.column("symbol"), symbol_names()).cast(pa.int64())
    return pa.RecordBatch.from_pydict(
        {"symbol": symbols, "cents": rows.column("cents"), "trades": rows.column("trades")}
    )
