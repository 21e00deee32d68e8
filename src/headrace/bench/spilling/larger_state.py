"""Trigram counts with ten times as many states as memory holds, on Spark: Headrace against stock Spark.

One subtask keeps the state. All read the same Parquet files, once, in a warm session of two threads, and write
all counts as Parquet. Headrace runs in batch mode; stock Spark has its state in RocksDB with the same bound.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import headrace as hr
from headrace.bench.measuring.peakmemory import peak_rss_mb
from headrace.bench.spilling.engineruns import table_of
from headrace.bench.spilling.resident import NO_STATE, resident
from headrace.bench.spilling.workloads import I64, all_of_zipf, trigrams
from headrace.bench.stock.jobs import run_stock
from headrace.graph.nodes import Engine
from headrace.spark.session import open_session
from headrace.state.index.policies import INC
from headrace.state.spill.bounded import ENGINES

STATES_PER_BOUND = 10
_JOB_ENGINES: tuple[Engine, ...] = ("auto", "inc", "dinc")
_SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
_SKEW, _FILES, _WARM_ITEMS = 1.0, 4, 2000


@dataclass(frozen=True, slots=True)
class Counted:
    """The files of an experiment, and the right answers: key ``i`` is ``texts[i]`` and comes ``counts[i]`` times."""

    directory: Path
    texts: pa.Array
    counts: I64

    def differences(self, output: Path) -> tuple[int, int, int]:
        """Tuples lost, tuples too many, and keys that are missing, repeated, or have another count."""
        rows = pq.read_table(output, columns=["k", "n"])
        at = pc.index_in(rows["k"].combine_chunks(), self.texts).to_numpy(zero_copy_only=False)
        found, times = np.zeros_like(self.counts), np.zeros_like(self.counts)
        np.add.at(found, at, rows["n"].to_numpy())
        np.add.at(times, at, 1)
        lost, more = np.maximum(self.counts - found, 0), np.maximum(found - self.counts, 0)
        return int(lost.sum()), int(more.sum()), int(((found != self.counts) | (times != 1)).sum())


def write_trigrams(directory: Path, items: int, keys: int) -> Counted:
    """Zipf-distributed trigrams in some Parquet files; all keys appear."""
    directory.mkdir(parents=True)
    numbers, texts = all_of_zipf(items, keys, _SKEW, seed=1), trigrams(keys)
    for i, part in enumerate(np.array_split(numbers, _FILES)):
        pq.write_table(pa.table({"k": texts.take(pa.array(part))}), directory / f"part-{i}.parquet")
    return Counted(directory, texts, np.bincount(numbers, minlength=keys))


def bound_for(keys: int) -> int:
    """A tenth of what the states of so many trigrams take without a bound."""
    text_bytes = trigrams(1)[0].as_buffer().size
    return int(keys * (table_of(_SCHEMA)(1, INC).row_bytes + text_bytes) / STATES_PER_BOUND)


def against_stock(items: int, keys: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Headrace's engines and both ways to count on stock Spark; ``ratio`` is to ``transformWithState``."""
    memory_bytes = bound_for(keys)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as work:
        root = Path(work)
        counted = write_trigrams(root / "trigrams", items, keys)
        write_trigrams(root / "warmup", _WARM_ITEMS, _WARM_ITEMS // 4)
        settings = _ours(root, counted, memory_bytes)
        for peer in ("agg", "tws"):
            if peer == "tws" and importlib.util.find_spec("google.protobuf") is None:
                progress("stock transformWithState is left out: it needs the package protobuf")
                continue
            settings.append(_stock(root, counted, peer, memory_bytes))
    for setting in settings:
        setting["tuples_per_s"] = round(items / setting["seconds"])
        progress(f"on Spark, {setting['engine']:18}{setting['seconds']:7.2f} s  {setting['tuples_per_s']:,} tuples/s")
    rates = {setting["engine"]: setting["tuples_per_s"] for setting in settings}
    best = {"job_tuples_per_s": rates["auto"]}
    for peer, ratio in (("tws", "ratio"), ("agg", "ratio_agg")):
        rate = rates.get(f"stock {peer}")
        best |= {f"stock_{peer}_tuples_per_s": rate, ratio: round(rates["auto"] / rate, 2) if rate else None}
    sums = {f"job_{name}": sum(setting[name] for setting in settings) for name in ("lost", "duplicated", "wrong")}
    return {"job_items": items, "job_keys": keys, "job_memory_bytes": memory_bytes, **best, **sums, "jobs": settings}


def resident_memory(items: int, keys: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """How far the process of the hungriest engine grew beyond its bound; negative: it stayed within."""
    memory_bytes = bound_for(keys)
    idle_mb = resident(NO_STATE, items, keys, memory_bytes)["growth_mb"]
    over_mb, wrong = [], 0
    for engine in (*ENGINES, "mr"):
        made = resident(engine, items, keys, memory_bytes)
        wrong += abs(made["groups"] - keys) + abs(made["tuples"] - items)
        if made["growth_mb"] is not None and idle_mb is not None:
            over_mb.append(round(made["growth_mb"] - idle_mb - memory_bytes / 1e6, 2))
            progress(f"memory of the process, {engine:18}{over_mb[-1]:+.1f} MB beyond {memory_bytes / 1e6:.1f} MB")
    return {"rss_bound_mb": memory_bytes / 1e6, "rss_over_bound_mb": max(over_mb, default=None), "rss_wrong": wrong}


def _ours(root: Path, counted: Counted, memory_bytes: int) -> list[dict[str, Any]]:
    made = []
    session = open_session("batch", "local[2]", "bench-hash-engines")
    try:
        _count(root / "warmup", root / "warm-out", "auto", memory_bytes, session)
        for engine in _JOB_ENGINES:
            seconds = _count(counted.directory, root / engine, engine, memory_bytes, session)
            made.append(_setting(engine, seconds, peak_rss_mb("python"), counted.differences(root / engine)))
    finally:
        session.stop()
    return made


def _count(trigrams_in: Path, out: Path, engine: Engine, memory_bytes: int, session: Any) -> float:
    job = hr.Job("bench-trigrams")
    keyed = job.source("trigrams", hr.replay(trigrams_in)).key_by("k").window(hr.whole_input())
    kept = hr.keep(memory=memory_bytes, engine=engine)
    counts = keyed.reduce(name="count", state=kept, parallelism=1, n=hr.count())
    counts.sink("out", hr.parquet(out))
    began = time.monotonic()
    hr.run(job, mode="batch", spark=session)
    return time.monotonic() - began


def _stock(root: Path, counted: Counted, peer: str, memory_bytes: int) -> dict[str, Any]:
    made = run_stock(
        "counts",
        peer=peer,
        directory=str(counted.directory),
        output=str(root / peer),
        warmup=str(root / "warmup"),
        memory_mb=max(round(memory_bytes / 1e6), 1),
    )
    return _setting(f"stock {peer}", made["seconds"], made["peak_rss_mb"], counted.differences(root / peer))


def _setting(engine: str, seconds: float, peak_mb: float | None, differences: tuple[int, int, int]) -> dict[str, Any]:
    names = dict(zip(("lost", "duplicated", "wrong"), differences))
    return {"engine": engine, "seconds": round(seconds, 3), "peak_rss_mb": peak_mb, **names}
