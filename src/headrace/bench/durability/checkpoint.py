"""``bench checkpoint``: latency and throughput with cuts, with none, and with stopping for each snapshot.

Every variant fills its state, has updates spread over all keys at a steady rate, which give the latency, and then as many
as it can take, which give the throughput. How soon ``on_commit`` rows are visible is measured in runs of its own.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from headrace.bench.durability.standstill import StandingStill
from headrace.bench.durability.stateload import (
    COLUMNS,
    CountingNew,
    Ints,
    Signals,
    StateLoad,
    StateSource,
    running_totals,
    stored_totals,
    updates,
)
from headrace.bench.durability.visible import Onlooker
from headrace.bench.measuring.figures import (
    TreeWatch,
    latency_figures,
    longest_gap_ms,
    rounded_median,
    with_prefix,
)
from headrace.bench.measuring.recorder import Table, recording
from headrace.driver.status import CutFigures
from headrace.errors import RunFailedError
from headrace.spark.handle import Run

Tell = Callable[[str], None]
_NEVER: dict[str, Any] = {"commit": "24 h", "chunk": "24 h", "chunk_bytes": "1 TB"}
"""No cut but the last, and nothing written before it."""
_SETTLE_CUTS, _SETTLE_S = 10, 3.0
"""After filling: cuts are further apart as long as some that filling made slow are among the last eight."""
_PAUSE_S = 2.0
"""Between the paced records and the burst: their results are told apart by when they come."""
_WARM = StateLoad(keys=5000, rate=2000, paced=6000, burst=20_000)
_OFTEN = "200 ms"


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: when its phases began, what its sink got, how it was cut, what it took while records were paced."""

    start_us: int
    burst_us: int
    table: Table
    run: Run
    watch: TreeWatch
    paced_cuts: list[CutFigures]


def checkpoint(
    state_bytes: int, rate: int, seconds: int, warmup_s: int, burst: int, tell: Tell, **settings: Any
) -> dict[str, Any]:
    """Each variant once, after a small run that warms up Spark; ``--repeat`` alternates them."""
    load = StateLoad.of(state_bytes, rate, seconds, burst)
    _variant("cuts", _WARM, 0, settings)
    variants = {}
    for name, chosen in (("none", settings | _NEVER), ("cuts", settings), ("stop", settings)):
        variants[name] = _variant(name, load, warmup_s, chosen)
        tell(f"{name}: {_words(variants[name])}")
    paced_only = StateLoad(load.keys, rate, load.paced, 0)
    for name, commit in (("visible", settings.get("commit", "1 s")), ("visible_200ms", _OFTEN)):
        variants[name] = _visible(paced_only, warmup_s, settings | {"commit": commit})
        tell(f"{name}: {_words(variants[name])}")
    return _combined(variants, load)


def _variant(name: str, load: StateLoad, warmup_s: int, settings: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as work, recording(COLUMNS) as recorder:
        state, signals = Path(work) / "checkpoint", Signals(recorder.directory)
        source: Any = StateSource(load, signals)
        source = StandingStill(source, state) if name == "stop" else source
        totals = running_totals(f"bench-checkpoint-{name}", source)
        totals.sink("out", hr.callback(CountingNew(signals, recorder)))
        measured = run_phases(totals.job, load, signals, lambda: recorder.read(), settings | {"checkpoint": state})
        figures = paced_figures(load, measured.table, measured.start_us, measured.burst_us, warmup_s)
        stored, stored_bytes = stored_totals(state)
    wrong = check_updates(load, measured.table, measured.start_us)
    wrong["wrong"] += wrong_totals(load, stored, measured.start_us)
    last_us = int(measured.table["now_us"].max())
    return {
        **figures,
        "items_per_s": round(load.burst / ((last_us - measured.burst_us) / 1e6), 1) if load.burst else None,
        "burst_cuts": _cuts_between(measured.run, measured.burst_us, last_us),
        **_run_figures(measured),
        "stored_mb": round(stored_bytes / 1e6, 1),
        **wrong,
    }


def _cuts_between(run: Run, start_us: int, end_us: int) -> int:
    wall_s = time.time() - time.monotonic()
    return sum(start_us <= (cut.logged_s + wall_s) * 1e6 < end_us for cut in run.cuts())


def _visible(load: StateLoad, warmup_s: int, settings: dict[str, Any]) -> dict[str, Any]:
    """From when a record was due until its row is in the file of an ``on_commit`` sink, seen from outside."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as work, recording(()) as recorder:
        out, signals = Path(work) / "out", Signals(recorder.directory)
        totals = running_totals("bench-checkpoint-visible", StateSource(load, signals))
        totals.sink("new", hr.callback(CountingNew(signals)))
        totals.map_batch(updates, name="updates").sink("out", hr.jsonl(out))
        with Onlooker(out) as onlooker:
            state = Path(work) / "checkpoint"
            measured = run_phases(totals.job, load, signals, dict, settings | {"checkpoint": state})
            onlooker.look()
            table = onlooker.table(COLUMNS)
    figures = paced_figures(load, table, measured.start_us, measured.burst_us, warmup_s)
    return {**figures, **_run_figures(measured), **check_updates(load, table, measured.start_us)}


def run_phases(
    job: hr.Job, load: StateLoad, signals: Signals, read: Callable[[], Table], settings: dict[str, Any],
    meanwhile: Callable[[Run], None] = lambda run: None,
) -> Measured:  # fmt: skip
    """Fill, let what that has delayed pass, pace and ``meanwhile`` do something, burst."""
    run = hr.start(job, **settings)
    try:
        _wait(run, lambda: signals.new_keys >= load.keys)
        if "chunk" not in settings:
            cuts = run.status().cuts
            _wait(run, lambda: run.status().cuts >= cuts + _SETTLE_CUTS)
        run.wait(_SETTLE_S)
        start_us, cut = time.time_ns() // 1000 + 500_000, max((c.number for c in run.cuts()), default=0)
        signals.pace(start_us)
        with TreeWatch() as watch:
            meanwhile(run)
            _sleep_until(run, start_us + load.paced * 1_000_000 // load.rate)
        paced_cuts = [c for c in run.cuts() if c.number > cut]
        burst_us = start_us + load.paced * 1_000_000 // load.rate + int(_PAUSE_S * 1e6)
        if load.burst:
            signals.burst(burst_us)
        run.wait()
    finally:
        run.stop()
    return Measured(start_us, burst_us, read(), run, watch, paced_cuts)


def _wait(run: Run, until: Callable[[], bool], timeout_s: float = 900.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not until():
        if run.wait(0.1) or time.monotonic() > end_s:
            raise RunFailedError(f"the job ended, or stood still for {timeout_s:g} s, before its state was filled")


def _sleep_until(run: Run, at_us: int) -> None:
    while (left_us := at_us - time.time_ns() // 1000) > 0:
        if run.wait(min(left_us / 1e6, 1.0)):
            return


def paced_figures(load: StateLoad, table: Table, start_us: int, burst_us: int, warmup_s: float) -> dict[str, Any]:
    """Latency of the paced updates: each result stands for the records new in it, due on average at their mean.

    What has not come before the burst is late by as long as is known of it.
    """
    paced = table["now_us"] < burst_us if load.burst else np.ones(len(table["now_us"]), bool)
    new, due_us, now_us = new_in_each({name: column[paced] for name, column in table.items()})
    missing = load.paced - int(new.sum())
    latency_ms, weights = (now_us - due_us / np.maximum(new, 1)) / 1000, new.astype(np.float64)
    warm = now_us >= start_us + warmup_s * 1e6
    latency_ms, weights = latency_ms[warm], weights[warm]
    if missing > 0:
        latency_ms, weights = np.append(latency_ms, _PAUSE_S * 1e3), np.append(weights, float(missing))
    return {
        "items": load.paced,
        **latency_figures(latency_ms, weights),
        "late_items": max(missing, 0),
        "longest_gap_ms": longest_gap_ms(now_us[warm]),
    }


def new_in_each(table: Table) -> tuple[Ints, Ints, Ints]:
    """Per result, by key and count: the records new in it, the sum of their due times, when it came.

    Counts begin at 2: the first record of a key makes its state, and has no due time.
    """
    order = np.lexsort((table["n"], table["key"]))
    key, n, due, now = (table[c][order] for c in ("key", "n", "due_us", "now_us"))
    first = np.concatenate(([True], key[1:] != key[:-1])) if len(key) else np.zeros(0, bool)
    before_n = np.where(first, 1, np.concatenate(([0], n[:-1])) if len(n) else n)
    before_due = np.where(first, 0, np.concatenate(([0], due[:-1])) if len(due) else due)
    return n - before_n, due - before_due, now


def check_updates(load: StateLoad, table: Table, start_us: int) -> dict[str, int]:
    """The last result of each key that was updated, and that none came twice."""
    counts, sums = load.counts(), load.due_sums(start_us)
    got, got_due = np.ones(load.keys, np.int64), np.zeros(load.keys, np.int64)
    np.maximum.at(got, table["key"], table["n"])
    np.maximum.at(got_due, table["key"], table["due_us"])
    new, _, _ = new_in_each(table)
    return {
        "lost": int(np.maximum(counts - got, 0).sum()),
        "duplicated": int(np.maximum(got - counts, 0).sum() + (new <= 0).sum()),
        "wrong": int(((got == counts) & (got_due != sums)).sum()),
    }


def wrong_totals(load: StateLoad, stored: dict[str, Ints], start_us: int) -> int:
    """Keys whose row in the last version is not what their records give; a missing or second row counts too."""
    counts, sums = load.counts(), load.due_sums(start_us)
    rows = np.bincount(stored["key"], minlength=load.keys)
    differ = (counts[stored["key"]] != stored["n"]) | (sums[stored["key"]] != stored["due_us"])
    return int((rows != 1).sum() + differ.sum())


def _run_figures(measured: Measured) -> dict[str, Any]:
    cuts = measured.paced_cuts
    return {
        **measured.watch.figures(),
        "cuts": len(cuts),
        "cut_ms": rounded_median([cut.took_ms for cut in cuts]),
        "aligned_ms": rounded_median([cut.aligned_ms for cut in cuts]),
        "cut_mb": rounded_median([cut.bytes / 1e6 for cut in cuts]),
        "restarts": measured.run.status().restarts,
    }


_ALWAYS = (
    "items", "items_per_s", "p50_ms", "p99_ms", "p999_ms", "max_ms", "seconds", "cpu_s", "peak_rss_mb", "load_1m", "cuts",
    "longest_gap_ms",
)  # fmt: skip


def _combined(variants: dict[str, dict[str, Any]], load: StateLoad) -> dict[str, Any]:
    """Cuts are what the product does: their figures have the usual names, and their own like all others."""
    cuts, none, stop = (variants[name] for name in ("cuts", "none", "stop"))
    often = variants["visible_200ms"]
    figures = {name: cuts[name] for name in _ALWAYS} | {"epochs": cuts["cuts"], "keys": load.keys}
    figures |= {name: sum(v[name] for v in variants.values()) for name in ("lost", "duplicated", "wrong")}
    for prefix, variant in (("", cuts), ("stop_", stop)):
        figures[f"{prefix}p99_ratio"] = round(variant["p99_ms"] / none["p99_ms"], 3)
        figures[f"{prefix}throughput_ratio"] = round(variant["items_per_s"] / none["items_per_s"], 3)
    figures["visible_200ms_cpu_ratio"] = round(often["cpu_s"] / variants["visible"]["cpu_s"], 3)
    for name, variant in variants.items():
        figures |= with_prefix(name, {k: v for k, v in variant.items() if k not in ("lost", "duplicated", "wrong")})
    return figures


def _words(figures: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {figures[name]}" for name in ("p50_ms", "p99_ms", "items_per_s", "cpu_s") if name in figures
    )
