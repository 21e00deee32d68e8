"""Synthetic trades of the New York Stock Exchange, as in C-MR's TAQ data of January 2006 (spec section 3).

The paper gives ranges only: 100–1,703 trades/s of 71–794 symbols, times of 1 s grain. Kept are these and what they
imply, 3,500 symbols with Zipf frequencies; the rate is a clipped AR(1) in log space, each price a random walk.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet
from scipy.signal import lfilter

from headrace.bench.spilling.workloads import I64

SYMBOLS, SKEW = 3_500, 0.9
MIN_PER_S, MAX_PER_S = 100, 1_703
START_S = 1_136_298_600
"""3 January 2006, 14:30 UTC: the year's first session opens. A multiple of every window size in use."""
_MEMORY, _SPREAD = 0.98, 0.7
"""Of the rate's logarithm: correlation from one second to the next; with this deviation both bounds are two off."""
_STEP = 0.0005
_FIRST_CENTS = (500, 10_000)


@dataclass(frozen=True, slots=True)
class Tape:
    """Trades in the order of their times: second since the start, number of the symbol, price."""

    seconds: I64
    symbols: I64
    cents: I64
    per_second: I64


@dataclass(frozen=True, slots=True)
class Trades:
    """So many seconds of trading, for ``hr.generate``: trade ``n`` is the same whenever and wherever it is made.

    ``volume`` multiplies the number of trades in each second.

    >>> Trades(60)(np.arange(2))["at"].tolist() == [START_S * 1000] * 2
    True
    """

    seconds: int
    volume: int = 1
    seed: int = 1

    def __call__(self, numbers: I64) -> dict[str, Any]:
        """Columns ``symbol``, ``cents`` and ``at`` (milliseconds) of the trades with these numbers."""
        tape = self.tape()
        symbols = symbol_names().take(pa.array(tape.symbols[numbers]))
        return {"symbol": symbols, "cents": tape.cents[numbers], "at": (START_S + tape.seconds[numbers]) * 1000}

    @property
    def total(self) -> int:
        return len(self.tape().seconds)

    def tape(self) -> Tape:
        return _tape(self.seconds, self.volume, self.seed)

    def pace(self, speed: float) -> list[tuple[float, float]]:
        """The rate at which they come, ``speed`` times as fast as they were made: spread evenly over their second."""
        return [(1 / speed, float(n) * speed) for n in self.tape().per_second]


def written(trades: Trades, directory: Path, parts: int) -> Path:
    """The trades as Parquet files, dealt in turn; ``time`` is for ``hr.replay(..., speed=60, time="time")``."""
    directory.mkdir(parents=True)
    for part in range(parts):
        made = trades(np.arange(part, trades.total, parts))
        table = pa.table({**made, "time": pa.array(made["at"] * 1000, pa.timestamp("us", "UTC"))})
        pyarrow.parquet.write_table(table, directory / f"trades-{part}.parquet")
    return directory


def rates_per_s(seconds: int, seed: int) -> npt.NDArray[np.float64]:
    """Trades per second, second by second."""
    noise = np.random.default_rng(seed).standard_normal(seconds) * _SPREAD
    noise[1:] *= np.sqrt(1 - _MEMORY**2)
    middle = np.log(MIN_PER_S * MAX_PER_S) / 2
    rates: npt.NDArray[np.float64] = np.exp(middle + lfilter([1.0], [1.0, -_MEMORY], noise))
    return np.clip(rates, MIN_PER_S, MAX_PER_S)


def expected_symbols(trades: int) -> float:
    """How many different symbols so many trades have on average."""
    return float((1 - (1 - _shares()) ** trades).sum())


@lru_cache(maxsize=1)
def symbol_names() -> pa.Array:
    """Three letters for each symbol; a symbol's number is its rank by frequency, its name says nothing of that."""
    letters = np.array(list("ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    numbers = np.random.default_rng(0).permutation(len(letters) ** 3)[:SYMBOLS]
    places = np.unravel_index(numbers, (len(letters),) * 3)
    return pa.array(np.char.add(np.char.add(letters[places[0]], letters[places[1]]), letters[places[2]]))


def _shares() -> npt.NDArray[np.float64]:
    weights = np.arange(1, SYMBOLS + 1) ** -SKEW
    shares: npt.NDArray[np.float64] = weights / weights.sum()
    return shares


# In a worker only numbers are asked for: the tape is made there once, and not sent.
@lru_cache(maxsize=2)
def _tape(seconds: int, volume: int, seed: int) -> Tape:
    dice = np.random.default_rng(seed + 1)
    per_second = np.rint(rates_per_s(seconds, seed) * volume).astype(np.int64)
    total = int(per_second.sum())
    symbols = np.searchsorted(np.cumsum(_shares()), dice.random(total), side="right").clip(max=SYMBOLS - 1)
    return Tape(np.repeat(np.arange(seconds), per_second), symbols, _walks(symbols, dice), per_second)


def _walks(symbols: I64, dice: np.random.Generator) -> I64:
    """Each trade's price in cents: its symbol's last one, a little higher or lower."""
    order = np.argsort(symbols, kind="stable")
    walked = np.cumsum(dice.standard_normal(len(symbols)) * _STEP)
    heads = np.searchsorted(symbols[order], np.arange(SYMBOLS))
    before = np.concatenate(([0.0], walked))[heads]
    first = np.log(dice.integers(*_FIRST_CENTS, SYMBOLS))
    cents = np.empty(len(symbols), np.int64)
    cents[order] = np.rint(np.exp(first[symbols[order]] + walked - before[symbols[order]]))
    return cents
