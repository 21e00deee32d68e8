"""Stock Spark's side of ``bench macd``: one query per mean, in a process of its own; results are joined as they come.

``python -m headrace.bench.overlapping.macd_stock OPTIONS`` prints one line of figures.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bench.overlapping.macd_answers import (
    FAST_S,
    SLIDE_S,
    SLOW_S,
    SPEED,
    Sums,
    differences,
    joined,
    latency_ms,
    reference,
)
from headrace.bench.overlapping.macd_jobs import Stored
from headrace.bench.overlapping.trades import START_S, SYMBOLS, Trades, symbol_names
from headrace.bench.stock.opensource import paced_source
from headrace.bench.stock.stocksession import open_stock
from headrace.connect.pace import as_pace
from headrace.errors import RunFailedError

_LEAD_S = 5.0
"""The clock starts when both queries surely run."""
_PATIENCE_S = 60.0
"""How much longer than the trades themselves it may take; what is not there by then is lost."""


def run_stock_macd(**options: Any) -> dict[str, Any]:
    """Figures of both queries on the trades that are kept in ``root``; see ``figures``."""
    command = [sys.executable, "-m", "headrace.bench.overlapping.macd_stock", json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RunFailedError(f"stock Spark's run failed:\n{done.stderr[-2000:]}")
    made: dict[str, Any] = json.loads(lines[-1])
    return made


class Means:
    """Both queries over a stream of trades; what they hand over, with the time."""

    def __init__(self, stream: Any, mode: str, trigger: dict[str, Any], work: Path) -> None:
        from pyspark.sql import functions as F

        self.rows: dict[int, list[tuple[int, pa.Table]]] = {FAST_S: [], SLOW_S: []}
        self.queries = []
        for size_s, parts in self.rows.items():
            window = F.window("time", f"{size_s} seconds", f"{SLIDE_S} seconds")
            grouped = stream.withWatermark("time", "0 seconds").groupBy(window, "symbol")
            sums = grouped.agg(F.sum("cents").alias("cents"), F.count("*").alias("trades"))
            result = sums.select(F.unix_seconds("window.end").alias("end_s"), "symbol", "cents", "trades")

            def take(batch: Any, number: int, parts: list[tuple[int, pa.Table]] = parts) -> None:
                made = batch.toArrow()
                parts.append((time.time_ns() // 1000, made))

            writer = result.writeStream.outputMode(mode).foreachBatch(take).trigger(**trigger)
            self.queries.append(writer.option("checkpointLocation", str(work / f"checkpoint-{size_s}")).start())

    def sums(self, size_s: int) -> Sums:
        """All that one query handed over."""
        tables = [table.append_column("now_us", pa.array(np.full(len(table), now))) for now, table in self.rows[size_s]]
        whole = pa.concat_tables(tables)
        symbols = pc.index_in(whole["symbol"], symbol_names()).to_numpy()
        codes = whole["end_s"].to_numpy() * SYMBOLS + symbols
        return Sums(codes, *(whole[name].to_numpy() for name in ("cents", "trades", "now_us")))

    def newest_s(self) -> int:
        """Up to which window end both have come."""
        ends = [[pc.max(table["end_s"]).as_py() for _, table in parts if len(table)] for parts in self.rows.values()]
        return min(max(of_query, default=0) for of_query in ends)


def saturation(session: Any, files: str, trades: Trades) -> dict[str, Any]:
    """Both queries at once over stored trades, each in one micro-batch."""
    schema = "symbol string, cents long, at long, time timestamp"
    with tempfile.TemporaryDirectory(prefix="stock-") as work:
        began = time.perf_counter()
        stream = session.readStream.schema(schema).parquet(files)
        means = Means(stream, "update", {"availableNow": True}, Path(work))
        for query in means.queries:
            query.awaitTermination()
        seconds = time.perf_counter() - began
    answers, _ = joined(means.sums(FAST_S), means.sums(SLOW_S))
    return {"items_per_s": round(trades.total / seconds), **differences(reference(trades), answers)}


def latency(session: Any, kept: str, trades: Trades) -> dict[str, Any]:
    """The open-loop clock of our own runs; micro-batches follow each other without a pause."""
    start_us = time.time_ns() // 1000 + int(_LEAD_S * 1e6)
    session.dataSource.register(_source(Stored(Path(kept)), trades, start_us))
    last_s = START_S + trades.seconds - SLIDE_S
    deadline_s = time.monotonic() + _LEAD_S + trades.seconds / SPEED + _PATIENCE_S
    with tempfile.TemporaryDirectory(prefix="stock-") as work:
        means = Means(session.readStream.format("trades").load(), "append", {"processingTime": "0 seconds"}, Path(work))
        while means.newest_s() < last_s and time.monotonic() < deadline_s:
            for query in means.queries:
                query.awaitTermination(0.2)
        for query in means.queries:
            query.stop()
    answers, now_us = joined(means.sums(FAST_S), means.sums(SLOW_S))
    expected = reference(trades)
    late_ms = latency_ms(answers.ends_s, now_us, start_us, trades)
    differing = differences(expected.of(expected.ends_s <= last_s), answers.of(answers.ends_s <= last_s))
    return {"mean_ms": round(float(late_ms.mean()), 1), **differing}


def _source(kept: Stored, trades: Trades, start_us: int) -> Any:
    pace, total = as_pace(trades.pace(SPEED)), trades.total

    def rows(n: npt.NDArray[np.int64]) -> pa.RecordBatch:
        made = kept(n)
        times = pa.array(made["at"] * 1000, pa.timestamp("us", "UTC"))
        return pa.RecordBatch.from_pydict({"symbol": made["symbol"], "cents": made["cents"], "time": times})

    schema = "symbol string, cents long, time timestamp"
    return paced_source("trades", schema, start_us, lambda us: min(pace.count_due(us), total), rows)


def figures(root: str, seconds: int, volume: int) -> dict[str, Any]:
    """Saturation on ``volume`` times the exchange's trades, then latency on these; answers of both are checked."""
    session = open_stock()
    saturation(session, f"{root}/files-1", Trades(seconds))
    full = saturation(session, f"{root}/files-{volume}", Trades(seconds, volume))
    paced = latency(session, f"{root}/volume-1", Trades(seconds))
    session.stop()
    return {**full, **paced, **{name: full[name] + paced[name] for name in ("lost", "duplicated", "wrong")}}


if __name__ == "__main__":
    print(json.dumps(figures(**json.loads(sys.argv[1]))), flush=True)
