"""``bench throughput``: 5 M events in CSV files, 10 k Zipf keys, count per key and 10 s window."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

import headrace as hr
from headrace.bench.measuring.figures import TreeWatch, cut_figures, with_prefix
from headrace.bench.measuring.recorder import Recorder, Table
from headrace.bench.stock.jobs import run_stock
from headrace.spark.handle import Run
from headrace.spark.session import open_session

_KEYS, _FILES, _EVENTS_PER_S, _WINDOW_MS = 10_000, 8, 50_000, 10_000
_START_MS = 1_700_000_000_000
_SCHEMA = {"ts": "int64", "key": "int64", "value": "float64"}


def write_events(directory: Path, events: int, files: int, seed: int) -> npt.NDArray[np.int64]:
    """CSV files in time order; returns the reference: rows of window start (ms), key, count."""
    directory.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, _KEYS + 1)
    keys = rng.choice(_KEYS, events, p=weights / weights.sum())
    ts = _START_MS + np.arange(events) * 1000 // _EVENTS_PER_S
    value = rng.random(events).round(4)
    for i, part in enumerate(np.array_split(np.arange(events), files)):
        table = pa.table({"ts": ts[part], "key": keys[part], "value": value[part]})
        pyarrow.csv.write_csv(table, directory / f"events-{i:03d}.csv")
    window = ts // _WINDOW_MS * _WINDOW_MS
    code, counts = np.unique(window * _KEYS + keys, return_counts=True)
    return np.column_stack((code // _KEYS, code % _KEYS, counts))


def throughput(events: int, *, stock: bool = True, **settings: Any) -> dict[str, Any]:
    """As fast as possible through the real-time runtime; then stock Spark on the same files."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as work:
        root = Path(work)
        reference = write_events(root / "events", events, _FILES, seed=1)
        write_events(root / "warmup", max(events // 20, 1000), 2, seed=2)
        figures = _ours(root, reference, **{"flush": "100 ms", "flush_bytes": 16_000_000, **settings})
        figures["items"] = events
        figures["items_per_s"] = round(events / figures["busy_s"])
        if stock:
            peer = run_stock(
                "throughput", directory=str(root / "events"), output=str(root / "stock"), warmup=str(root / "warmup")
            )
            peer["items_per_s"] = round(events / peer["seconds"])
            peer["wrong"] = _differences(reference, _read_stock(root / "stock"))[2]
            figures |= with_prefix("stock", peer)
            figures["ratio"] = round(figures["items_per_s"] / peer["items_per_s"], 2)
    return figures


def _ours(root: Path, reference: npt.NDArray[np.int64], **settings: Any) -> dict[str, Any]:
    """Like stock Spark's turn: a small run first, then the measured one in the warm session."""
    session = open_session("realtime", "local[8]", "bench-throughput")
    try:
        _count(root / "warmup", root / "warm-out", session, **settings)
        with TreeWatch() as watch:
            run, table = _count(root / "events", root / "out", session, **settings)
    finally:
        session.stop()
    lost, duplicated, wrong = _differences(reference, np.column_stack((table["start"], table["key"], table["n"])))
    return {
        "busy_s": round(run.busy_s, 3),
        "lost": lost,
        "duplicated": duplicated,
        "wrong": wrong,
        **watch.figures(),
        **cut_figures(run),
    }


def _count(events_in: Path, out: Path, session: Any, **settings: Any) -> tuple[Run, Table]:
    out.mkdir()
    recorder = Recorder(out, ("start", "key", "n"))
    job = hr.Job("bench-throughput")
    events = job.source("events", hr.replay(events_in, schema=_SCHEMA), event_time="ts", lateness="1 s")
    counted = events.key_by("key").window(hr.tumbling("10 s")).reduce(name="count", n=hr.count())
    counted.map_batch(_as_numbers, name="numbers").sink("out", hr.callback(recorder))
    run = hr.run(job, spark=session, **settings)
    return run, recorder.read()


def _as_numbers(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Window starts in ms, as the recorder wants whole numbers."""
    start = rows.column("window_start").cast(pa.int64()).to_numpy() // 1000
    columns = {"start": start, "key": rows.column("key"), "n": rows.column("n")}
    return pa.RecordBatch.from_pydict(columns)


def _differences(reference: npt.NDArray[np.int64], got: npt.NDArray[np.int64]) -> tuple[int, int, int]:
    """Items missing, items too many, and windows whose count is not the reference's."""
    expected = {(int(w), int(k)): int(n) for w, k, n in reference}
    found: dict[tuple[int, int], int] = {}
    twice = 0
    for w, k, n in got.tolist():
        twice += (w, k) in found
        found[w, k] = n
    lost = sum(max(n - found.get(key, 0), 0) for key, n in expected.items())
    extra = sum(max(n - expected.get(key, 0), 0) for key, n in found.items())
    wrong = sum(expected.get(key) != n for key, n in found.items())
    return lost, extra + twice, wrong


def _read_stock(directory: Path) -> npt.NDArray[np.int64]:
    """The last update of each window and key: counts only grow."""
    table = pyarrow.parquet.read_table(directory)
    start, key, count = (table[name].to_numpy() for name in ("start", "key", "count"))
    order = np.lexsort((count, key, start))
    start, key, count = start[order], key[order], count[order]
    last = np.concatenate(((start[1:] != start[:-1]) | (key[1:] != key[:-1]), [True]))
    return np.column_stack((start[last], key[last], count[last]))
