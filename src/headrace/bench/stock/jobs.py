"""The same jobs on stock Spark, each in a process and session of its own, with sensible tuning.

``python -m headrace.bench.stock.jobs NAME OPTIONS`` prints one line of figures.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.bench.measuring.figures import TreeWatch, latency_figures
from headrace.bench.stock.counts import stock_counts
from headrace.bench.stock.opensource import paced_source
from headrace.bench.stock.stocksession import drained, open_stock
from headrace.errors import RunFailedError


def run_stock(name: str, **options: Any) -> dict[str, Any]:
    """Run an experiment on stock Spark in a process of its own."""
    command = [sys.executable, "-m", "headrace.bench.stock.jobs", name, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RunFailedError(f"stock Spark's run of {name!r} failed:\n{done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(lines[-1])
    return figures


def latency(rate: int, seconds: int) -> dict[str, Any]:
    """An open-loop Python source, a count per key, results timed when the driver has them.

    The count is Spark's own (JVM) aggregation with RocksDB, the shuffle has two partitions, and
    micro-batches follow each other without a pause: the friendliest set-up for stock Spark.
    """
    from pyspark.sql import functions as F

    begin_us = time.time_ns() // 1000

    def rows(n: npt.NDArray[np.int64]) -> pa.RecordBatch:
        due = begin_us + (n * 1e6 / rate).astype(np.int64)
        return pa.RecordBatch.from_pydict({"key": n % 1000, "due_us": due})

    session = open_stock()
    source = paced_source("bench_items", "key long, due_us long", begin_us, lambda us: int(us * rate / 1e6), rows)
    session.dataSource.register(source)
    results: list[Any] = []

    def take(batch: Any, number: int) -> None:
        rows = batch.select("due_us").toArrow().column(0).to_numpy()
        results.append((time.time_ns() // 1000, rows))

    with tempfile.TemporaryDirectory(prefix="stock-") as work, TreeWatch() as watch:
        counted = session.readStream.format("bench_items").load().groupBy("key")
        query = (
            counted.agg(F.count("*").alias("n"), F.max("due_us").alias("due_us"))
            .writeStream.outputMode("update")
            .foreachBatch(take)
            .option("checkpointLocation", work)
            .start()
        )
        query.awaitTermination(seconds)
        query.stop()
        session.stop()
    warm = results[0][0] + min(10, seconds / 3) * 1e6
    values = np.concatenate([(now - due) / 1000 for now, due in results if now > warm])
    return {"items": int(rate * seconds), **latency_figures(values), **watch.figures(), "epochs": len(results)}


def throughput(directory: str, output: str, warmup: str) -> dict[str, Any]:
    """Count per key and 10 s window over CSV files, until all are read; timed without start-up."""
    from pyspark.sql import functions as F

    session = open_stock()
    schema = "ts long, key long, value double"

    def count(path: str, out: str, checkpoint: str) -> float:
        events = session.readStream.schema(schema).option("header", "true").csv(path)
        at = F.timestamp_millis(F.col("ts"))
        counted = (
            events.select(at.alias("at"), "key").withWatermark("at", "1 second")
            .groupBy(F.window("at", "10 seconds"), "key").count()
        )  # fmt: skip
        rows = counted.select(F.unix_millis("window.start").alias("start"), "key", "count")
        return drained(rows, out, checkpoint).seconds

    with tempfile.TemporaryDirectory(prefix="stock-") as work:
        count(warmup, f"{work}/warm", f"{work}/warm-checkpoint")
        with TreeWatch() as watch:
            seconds = count(directory, output, f"{work}/checkpoint")
        session.stop()
    return {**watch.figures(), "seconds": round(seconds, 3)}


def _main(name: str, options: dict[str, Any]) -> None:
    peers: dict[str, Callable[..., dict[str, Any]]] = {
        "latency": latency,
        "throughput": throughput,
        "counts": stock_counts,
    }
    print(json.dumps(peers[name](**options)), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1], json.loads(sys.argv[2]))
