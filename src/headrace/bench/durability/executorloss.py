"""``bench recovery --executor``: kill -9 of executors of a cluster of two, with large state; stock Spark with RocksDB beside.

Every key has a record at first, which makes the state, and then updates come at a steady rate until all is killed. The same
records go through the same totals on both sides, on clusters of the same size.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

import headrace as hr
from headrace.bench.durability.openended import OpenEnded
from headrace.bench.durability.outages import News, NewsDesk, outage_figures
from headrace.bench.durability.stateload import ROW_BYTES, STEP, VALUES, Ints, StateLoad, stored_columns
from headrace.bench.durability.stockrestart import await_news
from headrace.bench.durability.victims import kill_victim, last_words, start_victim, wait_for
from headrace.bench.measuring.figures import TreeWatch, rounded_median
from headrace.bench.measuring.recorder import recording
from headrace.bench.stock.opensource import paced_source
from headrace.bench.stock.stocksession import open_stock, run_updates
from headrace.errors import RunFailedError
from headrace.spark.handle import Run

Tell = Callable[[str], None]
_MASTER = "local-cluster[2,4,1024]"
_FILL_PER_S = 200_000
_PATIENCE_S = 600.0
_VALUES = tuple(f"v{i}" for i in range(VALUES))
_NEWEST, _SUM = "newest", _VALUES[0]
_BACKEND = "CoarseGrainedExecutorBackend"
_SETTLE_CUTS = 5


@dataclass(frozen=True, slots=True)
class Updates:
    """Record ``n`` is a fixed function of its number: the first ``keys`` make the state, the others update it."""

    keys: int
    rate: int

    def __call__(self, n: Ints) -> dict[str, Ints]:
        made = StateLoad(self.keys, self.rate, 0, 0).batch(n, 0)
        return {"seq": n, **{name: made.column(name).to_numpy() for name in ("key", *_VALUES)}}

    @property
    def fill_s(self) -> float:
        return self.keys / _FILL_PER_S

    def due(self, elapsed_s: float) -> int:
        """How many records are due so long after the first."""
        return int(min(elapsed_s, self.fill_s) * _FILL_PER_S + max(elapsed_s - self.fill_s, 0.0) * self.rate)

    def source(self, end: Path) -> OpenEnded:
        paces = [(f"{self.fill_s} s", f"{_FILL_PER_S}/s"), ("30 d", f"{self.rate}/s")]
        return OpenEnded(hr.generate(self, rate=paces), end)

    def wrong(self, total: int, stored: dict[str, Ints]) -> dict[str, int]:
        """What the stored totals of each key lack, have twice, or have wrong."""
        made = self(np.arange(total))
        counts = np.bincount(made["key"], minlength=self.keys)
        sums = np.zeros(self.keys, np.int64)
        np.add.at(sums, made["key"], made[_SUM])
        got, got_sum = np.zeros(self.keys, np.int64), np.zeros(self.keys, np.int64)
        np.add.at(got, stored["key"], stored["n"])
        np.add.at(got_sum, stored["key"], stored[_SUM])
        return {
            "lost": int(np.maximum(counts - got, 0).sum()),
            "duplicated": int(np.maximum(got - counts, 0).sum()),
            "wrong": int(((counts == got) & (sums != got_sum)).sum()),
        }


@dataclass(frozen=True, slots=True)
class Loss:
    """When an executor was killed, and from where slices were loaded then."""

    at_us: int
    loaded: dict[str, int]


def executor_loss(
    state_bytes: int, kills: int, rate: int, seed: int, tell: Tell, *, stock_kills: int, **settings: Any
) -> dict[str, Any]:
    """Kills at random moments, each after the one before has been made good."""
    dice, load = random.Random(seed), Updates(max(state_bytes // ROW_BYTES, 1), rate)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as work, TreeWatch() as watch:
        figures = _ours(Path(work), load, kills, dice, tell, settings)
    tell(f"outage_s {figures['outage_s']}, longest {figures['outage_max_s']}")
    if stock_kills:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as work:
            figures |= outage_figures("stock", _stock(Path(work), load, stock_kills, dice))
    return {**figures, "keys": load.keys, **watch.figures()}


def _ours(
    work: Path, load: Updates, kills: int, dice: random.Random, tell: Tell, settings: dict[str, Any]
) -> dict[str, Any]:
    source, began_s = load.source(work / "total"), time.time()
    with recording(()) as recorder:
        desk = NewsDesk(recorder.directory, _NEWEST)
        run = hr.start(
            _totals(source, desk),
            **{"flush": "10 ms", "master": _MASTER, **settings, "checkpoint": work / "checkpoint"},
        )
        try:
            _until(run, lambda: desk.newest() >= load.keys)
            losses = [_lose_one(run, desk, dice, tell) for _ in range(kills)]
            total = load.due(time.time() - began_s) + load.rate  # not below what has been read
            source.end_at(total)
            run.wait()
        finally:
            run.stop()
        news = desk.read()
    stored, stored_bytes = stored_columns(work / "checkpoint", ("key", "n", _SUM))
    outages = _outages(news, [loss.at_us for loss in losses])
    loaded = sum((Counter(loss.loaded) for loss in losses), Counter[str]())
    return {
        "items": total,
        "kills": len(losses),
        "outage_s": rounded_median(outages),
        "outage_max_s": round(max(outages, default=0.0), 2),
        "restarts": run.status().restarts,
        "spread_gaps": len(spread_s := [gap.seconds for gap in run.gaps if gap.deliberate]),
        "spread_gap_s": rounded_median(spread_s),
        "stored_mb": round(stored_bytes / 1e6, 1),
        **{f"loaded_from_{origin}": count for origin, count in sorted(loaded.items())},
        **load.wrong(total, stored),
    }


def _totals(source: OpenEnded, desk: NewsDesk) -> hr.Job:
    job = hr.Job("bench-executor-loss")
    sums: dict[str, Any] = {name: hr.sum(name) for name in _VALUES}
    keyed = job.source("items", source).key_by("key")
    keyed.reduce(name=STEP, n=hr.count(), newest=hr.max("seq"), **sums).sink("news", hr.callback(desk))
    return job


def _until(run: Run, holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + _PATIENCE_S
    while not holds():
        if run.wait(0.02) or time.monotonic() > end_s:
            raise RunFailedError("the job ended, or stood still, before all was killed")


def _lose_one(run: Run, desk: NewsDesk, dice: random.Random, tell: Tell) -> Loss:
    """Kill an executor that has subtasks, once the cluster is whole and calm, and wait until results come again."""
    _until(run, lambda: run.status().state == "running" and len(_at_work(run)) == 2)
    cuts = run.status().cuts
    _until(run, lambda: run.status().cuts >= cuts + _SETTLE_CUTS)
    run.wait(dice.uniform(0.2, 2.0))
    before, newest, at_us = run.status().restarts, desk.newest(), time.time_ns() // 1000
    dice.choice(_at_work(run)).kill()
    _until(run, lambda: run.status().restarts > before and run.status().state == "running")
    _until(run, lambda: desk.newest() > newest)
    stop = f"; {run.gaps[-1].sentence()}" if run.gaps else ""
    tell(f"again after {time.time() - at_us / 1e6:.2f} s, slices from {dict(run.status().loaded)}{stop}")
    return Loss(at_us, dict(run.status().loaded))


def _at_work(run: Run) -> list[psutil.Process]:
    """The executors with subtasks of the query that runs."""
    newest = run.placements[-1][0]
    daemons = {daemon for query, _, _, daemon, _ in run.placements if query == newest}
    return [executor for daemon in sorted(daemons) if (executor := psutil.Process(daemon).parent()) is not None]


def _executors(driver: int) -> list[psutil.Process]:
    """Executors that are below a driver of stock Spark."""
    return [process for process in psutil.Process(driver).children(recursive=True) if _is_executor(process)]


def _is_executor(process: psutil.Process) -> bool:
    try:
        return process.name() == "java" and any(_BACKEND in word for word in process.cmdline())
    except psutil.Error:
        return False


def _outages(news: News, killed_us: list[int]) -> list[float]:
    ends_us = [*killed_us[1:], time.time_ns() // 1000]
    outages = [news.outage_s(at_us, end_us) for at_us, end_us in zip(killed_us, ends_us, strict=True)]
    return [outage for outage in outages if outage is not None]


def _stock(root: Path, load: Updates, kills: int, dice: random.Random) -> list[float]:
    """Seconds without new results after each kill of one of stock Spark's executors."""
    desk, log, killed_us = NewsDesk(root, _NEWEST), root / "log.txt", []
    victim = start_victim(__name__, {"root": str(root), "load": asdict(load)}, log)
    try:
        await_news(desk, victim, log, load.keys, _PATIENCE_S)
        for _ in range(kills):
            if not wait_for(lambda: len(_executors(victim.pid)) == 2, _PATIENCE_S):
                raise RunFailedError(f"stock Spark got no new executor{last_words(log)}")
            time.sleep(dice.uniform(5.0, 8.0))
            newest = desk.newest()
            killed_us.append(time.time_ns() // 1000)
            dice.choice(_executors(victim.pid)).kill()
            await_news(desk, victim, log, newest, _PATIENCE_S)
            await_news(desk, victim, log, desk.newest(), _PATIENCE_S)
    finally:
        kill_victim(victim)
    return _outages(desk.read(), killed_us)


def _run_stock(root: Path, load: Updates) -> None:
    from pyspark.sql import functions as F

    names = ["seq", "key", *_VALUES]
    session, desk, start_us = open_stock(_MASTER), NewsDesk(root, _NEWEST), time.time_ns() // 1000
    source = paced_source(
        "bench_updates", ", ".join(f"{name} long" for name in names), start_us,
        lambda us: load.due(us / 1e6), lambda n: pa.RecordBatch.from_pydict(load(n)),
    )  # fmt: skip
    session.dataSource.register(source)
    sums = [F.sum(name).alias(name) for name in _VALUES]
    updates = session.readStream.format("bench_updates").load().groupBy("key")

    def take(batch: Any, number: int) -> None:
        newest = batch.agg(F.max(_NEWEST).alias(_NEWEST)).toArrow()
        if newest.column(0).null_count == 0:
            desk(newest)

    totals = updates.agg(F.count("*").alias("n"), F.max("seq").alias(_NEWEST), *sums)
    run_updates(totals, take, str(root / "checkpoint"))


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    _run_stock(Path(given["root"]), Updates(**given["load"]))
