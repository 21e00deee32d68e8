"""Counts per key on stock Spark with a bound on RocksDB's memory: the peers of ``bench.spilling.larger_state``.

One micro-batch reads all files, which is kindest to stock Spark: every key is fetched and stored once.
"""

from __future__ import annotations

import tempfile
from typing import Any

from headrace.bench.measuring.peakmemory import peak_rss_mb
from headrace.bench.stock.stocksession import drained, open_stock

_ROCKSDB = "spark.sql.streaming.stateStore.rocksdb"


def stock_counts(peer: str, directory: str, output: str, warmup: str, memory_mb: int) -> dict[str, Any]:
    """Count by the built-in aggregation ("agg") or by ``transformWithState`` in Python ("tws"), after a warm-up.

    State has one partition; RocksDB may take ``memory_mb`` (a soft limit). ``peak_rss_mb`` is the JVM's, in which
    RocksDB lives, and the Python worker's if there is one.
    """
    session = open_stock(
        **{
            "spark.sql.shuffle.partitions": "1",
            f"{_ROCKSDB}.boundedMemoryUsage": "true",
            f"{_ROCKSDB}.maxMemoryUsageMB": str(memory_mb),
        }
    )
    count = _aggregated if peer == "agg" else _transformed

    def run(path: str, out: str, checkpoint: str) -> float:
        return drained(count(session.readStream.schema("k string").parquet(path)), out, checkpoint).seconds

    with tempfile.TemporaryDirectory(prefix="stock-") as work:
        run(warmup, f"{work}/warm", f"{work}/warm-checkpoint")
        seconds = run(directory, output, f"{work}/checkpoint")
        figures = {"seconds": round(seconds, 3), "peak_rss_mb": peak_rss_mb("java", "python" if peer == "tws" else "")}
        session.stop()
    return figures


def _aggregated(rows: Any) -> Any:
    return rows.groupBy("k").count().withColumnRenamed("count", "n")


def _transformed(rows: Any) -> Any:
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Count(StatefulProcessor):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            self._n = handle.getValueState("n", "n long")

        def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:
            before = self._n.get()
            n = (before[0] if before else 0) + sum(1 for _ in rows)
            self._n.update((n,))
            yield Row(k=key[0], n=n)

        def close(self) -> None:
            """Nothing to close."""

    return rows.groupBy("k").transformWithState(Count(), "k string, n long", "Update", "None")
