"""MACD: where each stock's mean price of five minutes stands above or below that of ten minutes, every minute.

Means are simple, not exponential, as in C-MR. Both are made of the same one-minute panes.

headrace explain examples/macd.py
headrace run examples/macd.py
headrace run examples/macd.py --mode batch
"""

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr
from headrace.bench.overlapping.trades import Trades

TRADES = Trades(seconds=12 * 60)
SPEED = 600
"""Ten minutes of trading pass in a second."""


def subtract(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Fast mean minus slow mean, by symbol and end of both windows."""
    return pa.RecordBatch.from_pydict(
        {
            "symbol": rows.column("symbol"),
            "window_end": rows.column("window_end"),
            "macd": pc.subtract(rows.column("mean"), rows.column("mean_right")),
        }
    )


job = hr.Job("macd")

trades = job.source("trades", hr.generate(TRADES, rate=TRADES.pace(SPEED), total=TRADES.total), event_time="at")

by_symbol = trades.key_by("symbol")
fast = by_symbol.window(hr.sliding("5 min", every="1 min")).reduce(name="fast", mean=hr.mean("cents"))
slow = by_symbol.window(hr.sliding("10 min", every="1 min")).reduce(name="slow", mean=hr.mean("cents"))

# A result's time is the last instant of its window, so windows that end together meet in one minute.
(
    fast.key_by("symbol", "window_end")
    .window(hr.tumbling("1 min"))
    .join(slow.key_by("symbol", "window_end"), name="pairs")
    .map_batch(subtract, name="macd")
    .sink("out", hr.console(limit=10))
)

if __name__ == "__main__":
    hr.run(job, mode="batch")
