"""Stock Spark's side of ``bench combine``: sliding windows by ``groupBy(window(...), key)``, in a process of its own.

``python -m headrace.bench.overlapping.combine_stock DIRECTORY`` reads lines ``SIZE OUTPUT`` and answers each with figures, so that
both sides can take turns in warm sessions.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet

from headrace.bench.measuring.cputime import Took, driver_cpu_s
from headrace.bench.overlapping.trades import symbol_names
from headrace.bench.overlapping.trades_windows import TradeWindows
from headrace.bench.stock.stocksession import drained, open_stock
from headrace.errors import RunFailedError


class StockWindows:
    """The process; ``run`` asks it for one window size."""

    def __init__(self, directory: Path) -> None:
        command = [sys.executable, "-m", "headrace.bench.overlapping.combine_stock", str(directory)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def run(self, size_s: int, output: Path) -> tuple[TradeWindows, Took]:
        """The answers, and the time."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{size_s} {output}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                took = json.loads(line)
                return _read(output), Took(took["seconds"], took["cpu_s"])
        raise RunFailedError(f"stock Spark's run with windows of {size_s} s failed")

    def close(self) -> None:
        """Let the process end."""
        self._process.communicate(timeout=60)


def _read(directory: Path) -> TradeWindows:
    table = pyarrow.parquet.read_table(directory)
    symbols = pc.index_in(table["symbol"], symbol_names()).to_numpy()
    return TradeWindows(table["end_s"].to_numpy(), symbols, table["cents"].to_numpy(), table["trades"].to_numpy())


def _answer(session: Any, trades: str, size_s: int, output: str) -> dict[str, float]:
    """All files are one micro-batch and results are written once: the friendliest set-up for stock Spark.

    Timed are its micro-batches, not the start of the query.
    """
    from pyspark.sql import functions as F

    stream = session.readStream.schema("symbol string, cents long, at long, time timestamp").parquet(trades)
    window = F.window("time", f"{size_s} seconds", "1 second")
    made = stream.withWatermark("time", "0 seconds").groupBy(window, "symbol")
    rows = made.agg(F.sum("cents").alias("cents"), F.count("*").alias("trades"))
    rows = rows.select(F.unix_seconds("window.end").alias("end_s"), "symbol", "cents", "trades")
    before_s = driver_cpu_s()
    with tempfile.TemporaryDirectory(prefix="stock-") as checkpoint:
        seconds = drained(rows, output, checkpoint).batches_s
    return {"seconds": seconds, "cpu_s": driver_cpu_s() - before_s}


if __name__ == "__main__":
    spark = open_stock()
    for line in sys.stdin:
        asked, where = line.split()
        print(json.dumps(_answer(spark, sys.argv[1], int(asked), where)), flush=True)
    spark.stop()
