"""Stock Spark's driver killed and started anew on its own checkpoint: the peer of ``bench recovery``.

The same records into the same windows; in update mode, so that each micro-batch has results and none waits for a window's
end. ``python -m headrace.bench.durability.stockrestart OPTIONS`` is the job.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.bench.durability.outages import NewsDesk
from headrace.bench.durability.victims import Victim, kill_victim, last_words, start_victim, wait_for
from headrace.bench.stock.opensource import paced_source
from headrace.bench.stock.stocksession import open_stock, run_updates
from headrace.errors import RunFailedError

_START_S = 180.0
_NEWEST = "newest"


def stock_outages(root: Path, rate: int, keys: int, kills: int, dice: random.Random) -> list[float]:
    """Seconds without new results after each kill."""
    root.mkdir()
    options = {"root": str(root), "rate": rate, "keys": keys, "begin_us": time.time_ns() // 1000}
    desk, log, killed_us = NewsDesk(root, _NEWEST), root / "log.txt", []
    victim = start_victim(__name__, options, log)
    try:
        for _ in range(kills):
            await_news(desk, victim, log, desk.newest())
            time.sleep(dice.uniform(3.0, 6.0))
            killed_us.append(time.time_ns() // 1000)
            newest = desk.newest()
            kill_victim(victim)
            victim = start_victim(__name__, options, log)
            await_news(desk, victim, log, newest)
    finally:
        kill_victim(victim)
    news, ends_us = desk.read(), [*killed_us[1:], time.time_ns() // 1000]
    outages = [news.outage_s(kill_us, end_us) for kill_us, end_us in zip(killed_us, ends_us, strict=True)]
    return [outage for outage in outages if outage is not None]


def await_news(desk: NewsDesk, victim: Victim, log: Path, newest: int, patience_s: float = _START_S) -> None:
    """Until stock Spark has results of records after ``newest``."""
    came = wait_for(lambda: desk.newest() > newest or victim.poll() is not None, patience_s)
    if not came or victim.poll() is not None:
        raise RunFailedError(f"stock Spark had no results{last_words(log)}")


def _run(root: Path, rate: int, keys: int, begin_us: int) -> None:
    from pyspark.sql import functions as F

    def rows(n: npt.NDArray[np.int64]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict(
            {"seq": n, "key": n * 2_654_435_761 % 4_294_967_291 % keys, "ts": n * 1000 // rate}
        )

    session, desk = open_stock(), NewsDesk(root, _NEWEST)
    session.dataSource.register(
        paced_source("bench_items", "seq long, key long, ts long", begin_us, lambda us: int(us * rate / 1e6), rows)
    )
    items = session.readStream.format("bench_items").load().withColumn("at", F.timestamp_millis(F.col("ts")))
    counted = items.withWatermark("at", "1 second").groupBy(F.window("at", "1 second"), "key")
    totals = counted.agg(F.count("*").alias("n"), F.sum("seq").alias("total"), F.max("seq").alias(_NEWEST))

    def take(batch: Any, number: int) -> None:
        desk(batch.select(_NEWEST).toArrow())

    run_updates(totals, take, str(root / "checkpoint"))


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    _run(Path(given["root"]), given["rate"], given["keys"], given["begin_us"])
