"""Moving average: each stock's mean price over the last ten seconds, every second.

headrace run examples/moving_average.py
headrace run examples/moving_average.py --mode batch
"""

import headrace as hr
from headrace.bench.overlapping.trades import Trades

TRADES = Trades(seconds=30)
SPEED = 20
"""Half a minute of trading passes in one and a half seconds."""

job = hr.Job("moving-average")

(
    job.source("trades", hr.generate(TRADES, rate=TRADES.pace(SPEED), total=TRADES.total), event_time="at")
    .key_by("symbol")
    .window(hr.sliding("10 s", every="1 s"))
    .reduce(name="average", cents=hr.mean("cents"), trades=hr.count())
    .sink("out", hr.console(limit=10))
)

if __name__ == "__main__":
    hr.run(job, mode="batch")
