"""A session of stock Spark with sensible tuning, and a query that reads all there is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def open_stock(master: str = "local[2]", **more: str) -> Any:
    """A session with two threads, RocksDB for state and two partitions, unless told otherwise."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        **more,
    }
    return SparkSession.builder.master(master).config(map=settings).getOrCreate()


def run_updates(rows: Any, take: Callable[[Any, int], None], checkpoint: str) -> None:
    """Give every micro-batch's updates to ``take``, until the query or its process ends."""
    query = rows.writeStream.outputMode("update").foreachBatch(take).option("checkpointLocation", checkpoint).start()
    query.awaitTermination()


@dataclass(frozen=True, slots=True)
class Drained:
    """How long a query took: by the clock, and its micro-batches alone."""

    seconds: float
    batches_s: float


def drained(rows: Any, out: str, checkpoint: str) -> Drained:
    """Let a streaming query read all there is and write its updates."""
    began = time.monotonic()
    query = (
        rows.writeStream.outputMode("update")
        .foreachBatch(lambda batch, number: batch.write.mode("append").parquet(out))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    busy_ms = sum(progress["durationMs"]["triggerExecution"] for progress in query.recentProgress)
    return Drained(time.monotonic() - began, busy_ms / 1000)
