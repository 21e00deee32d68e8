"""``bench combine``: moving averages of trades by window size, with and without panes, and stock Spark (C-MR 4).

Windows end every second. Two streams are read as fast as possible, one of the rate of the paper's data, where few
trades of a symbol meet in a pane, and one with many times as many; stock Spark gets the latter.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr
from headrace.bench.measuring.cputime import Took, driver_cpu_s, worker_cpu_s
from headrace.bench.measuring.figures import TreeWatch
from headrace.bench.measuring.recorder import recording
from headrace.bench.overlapping.combine_figures import CombineOutcome, figures_of, load_of, rule_figures
from headrace.bench.overlapping.combine_stock import StockWindows
from headrace.bench.overlapping.trades import Trades, symbol_names, written
from headrace.bench.overlapping.trades_windows import TradeWindows, differences, windows_of
from headrace.spark.session import open_session

SIZES_S = (1, 2, 5, 15, 60)
_SPARSE_SIZES_S = (2, 15, 60)
_WARM_UP = Trades(5)
_LARGE_BUFFERS = {"flush": "100 ms", "flush_bytes": 16_000_000}
_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class TradeStream:
    """Trades, where they are stored, and the window sizes to try on them."""

    name: str
    trades: Trades
    directory: Path
    sizes_s: tuple[int, ...]


def combine(
    progress: Callable[[str], None],
    *,
    stock: bool = True,
    seconds: int = 20,
    **settings: Any,
) -> dict[str, Any]:
    """Every size and form in turn, each in a warm session; all answers are compared with numpy's.

    ``seconds`` of trading are in the dense stream, and ten times as many in the sparse one.
    """
    outcomes, dense, sparse = [], Trades(seconds, volume=100), Trades(10 * seconds)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=_MEMORY if _MEMORY.is_dir() else None) as work:
        root = Path(work)
        streams = (
            TradeStream("dense", dense, written(dense, root / "dense", parts=2), SIZES_S),
            TradeStream("sparse", sparse, written(sparse, root / "sparse", parts=2), _SPARSE_SIZES_S),
        )
        with TreeWatch() as watch:
            for outcome in _runs(root, streams, stock, {**_LARGE_BUFFERS, **settings}):
                outcomes.append(outcome)
                progress(_line(outcome))
    loads = {stream.name: load_of(stream.trades) for stream in streams}
    rule = rule_figures(outcomes, loads)
    return {**figures_of(outcomes), **rule, **watch.figures(), "settings": [asdict(outcome) for outcome in outcomes]}


def _runs(
    root: Path, streams: tuple[TradeStream, ...], stock: bool, settings: dict[str, Any]
) -> Iterator[CombineOutcome]:
    session = open_session("realtime", "local[8]", "bench-combine")
    peer = StockWindows(streams[0].directory) if stock else None
    try:
        warm_up = written(_WARM_UP, root / "warm-up", parts=2)
        for form in ("combine", "direct"):
            _average(session, warm_up, 5, form, settings)
        if peer is not None:
            peer.run(1, root / "stock-warm-up")
        for stream in streams:
            for size_s in stream.sizes_s:
                reference = windows_of(stream.trades, size_s, 1)
                # A window as long as its slide is a pane already.
                for form in ("combine", "direct") if size_s > 1 else ("direct",):
                    found, took = _average(session, stream.directory, size_s, form, settings)
                    yield _outcome(stream, size_s, form, took, differences(reference, found))
                if peer is not None and stream is streams[0]:
                    found, took = peer.run(size_s, root / f"stock-{size_s}")
                    yield _outcome(stream, size_s, "stock", took, differences(reference, found))
    finally:
        if peer is not None:
            peer.close()
        session.stop()


def _outcome(stream: TradeStream, size_s: int, form: str, took: Took, differing: dict[str, int]) -> CombineOutcome:
    items = stream.trades.total
    return CombineOutcome(
        stream.name,
        size_s,
        form,
        items,
        round(items / took.seconds),
        round(took.seconds / items * 1e9),
        round(took.cpu_s / items * 1e9),
        round(took.worker_s / items * 1e9) if took.worker_s is not None else None,
        **differing,
    )


def _average(session: Any, trades: Path, size_s: int, form: str, settings: dict[str, Any]) -> tuple[TradeWindows, Took]:
    """The answers, and the time. Means travel as sum and count, which can be compared exactly."""
    window = hr.sliding(f"{size_s} s", every="1 s")
    job = hr.Job("bench-combine")
    keyed = job.source("trades", hr.replay(trades), event_time="at").key_by("symbol").window(window)
    kept = hr.keep(combine=form == "combine")
    average = keyed.reduce(name="average", state=kept, cents=hr.sum("cents"), trades=hr.count())
    with recording(("end_s", "symbol", "cents", "trades")) as recorder:
        average.map_batch(as_numbers, name="numbers").sink("out", hr.callback(recorder))
        before_s = driver_cpu_s()
        run = hr.run(job, spark=session, **settings)
        worker_s = worker_cpu_s((heard.pid, heard.cpu_s) for heard in run.reports())
        took = Took(run.busy_s, driver_cpu_s() - before_s + worker_s, worker_s)
        table = recorder.read()
    return TradeWindows(table["end_s"], table["symbol"], table["cents"], table["trades"]), took


def as_numbers(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Window ends in seconds and symbols by number, as the recorder wants whole numbers."""
    ends_s = pc.divide(rows.column("window_end").cast(pa.int64()), 1_000_000)
    symbols = pc.index_in(rows.column("symbol"), symbol_names()).cast(pa.int64())
    columns = {"end_s": ends_s, "symbol": symbols, "cents": rows.column("cents"), "trades": rows.column("trades")}
    return pa.RecordBatch.from_pydict(columns)


def _line(outcome: CombineOutcome) -> str:
    return (
        f"{outcome.stream:7}{outcome.size_s:3} s  {outcome.form:8}{outcome.ns_per_item:8,} ns per item, "
        f"CPU {outcome.cpu_ns_per_item:8,} ns (workers {outcome.worker_ns_per_item}), {outcome.wrong} wrong"
    )
