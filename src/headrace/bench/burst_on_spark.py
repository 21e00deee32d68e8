"""``bench scheduling``: C-MR's burst on the real runtime, under each schedule, with little memory (C-MR, section 4).

The workflow of ``bench.burst`` in one subtask on Spark. Steps keep their worker busy for a fixed time per record,
so that the capacity is known. Beyond the budget the runtime stops reading, where C-MR's machine swapped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.bench.burst import PROFILES, WORK_US
from headrace.bench.measuring.figures import TreeWatch, Values, with_prefix
from headrace.bench.measuring.recorder import Table, recording
from headrace.connect.sink import Sink
from headrace.connect.source import Source
from headrace.errors import HeadraceError

SCHEDULES = ("direct", "round-robin", "odf", "mem", "hybrid")
_TUPLES = 25
"""A record stands for so many of C-MR's, in size and in time."""
_SLOWER = 60
"""Steps take so many times C-MR's times, too: calls, 0.2 ms each, then matter little against the work in them, also on
a machine that is busy with something else."""
_MAX_CREDIT_S = 0.1
_CALM_S, _BURST_S = 5, 3
_LOAD, _PEAK = 0.6, 2.5
_BUDGET_SHARE = 2 / 3
"""Of what ODF would hold at the end of the burst, as with C-MR's 2 GB; the burst exceeds the capacity by 1.5 times."""
_NARROW_BYTES = 16
"""Of a record without its padding: a number and a time."""


@dataclass(frozen=True, slots=True)
class ScheduleOutcome:
    """One schedule: mean latency of both outputs, of what was due before the burst, and the subtask's memory."""

    mean_ms: float
    calm_ms: float
    peak_mb: float
    stopped_ms: float
    lost: int
    duplicated: int
    wrong: int

    def figures(self) -> dict[str, float]:
        named = {"mean": self.mean_ms, "calm": self.calm_ms, "stopped": self.stopped_ms}
        return {**{f"{name}_ms": round(value, 1) for name, value in named.items()}, "peak_mb": round(self.peak_mb, 2)}


@dataclass(frozen=True, slots=True)
class BurstStep:
    """One operator: works for its time, keeps or repeats records by their number, and pads them to a size."""

    name: str

    def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
        began_s = time.perf_counter()
        made = _padded(self._kept(records), PROFILES[self.name].out_bytes)
        _work(began_s, records.num_rows * PROFILES[self.name].time_us * _TUPLES * _SLOWER / 1e6)
        return made

    def _kept(self, records: pa.RecordBatch) -> pa.RecordBatch:
        number = records.column("number").to_numpy()
        if self.name == "B":
            return records.filter(pa.array(number % 2 == 0))
        if self.name == "D":
            twice = records.take(pa.array(np.repeat(np.arange(len(number)), 2)))
            return twice.set_column(0, "number", pa.array(np.repeat(number, 2) + np.tile([0, 1], len(number))))
        return records.filter(pa.array(number % 10 == 0)) if self.name == "E" else records


_overshot_s = [0.0]


def _work(began_s: float, seconds: float) -> None:
    """Keep the worker busy. Time that other processes took before is made up for, so that the capacity stays the same."""
    until_s = began_s + seconds - _overshot_s[0]
    while time.perf_counter() < until_s:
        pass
    _overshot_s[0] = min(time.perf_counter() - until_s, _MAX_CREDIT_S)


def numbered(n: Any) -> dict[str, Any]:
    """Records as they enter: a number, and padding to what A takes."""
    return {"number": n, "padding": _padding(PROFILES["A"].in_bytes, len(n))}


def burst_job(source: Source, sinks: Callable[[str], Sink]) -> hr.Job:
    """In → A → B → {C → out, D → E → out}."""
    job = hr.Job("bench-scheduling")
    stream = job.source("In", source, event_time="due_us", time_unit="us")
    a = stream.map_batch(BurstStep("A"), name="A")
    b = a.map_batch(BurstStep("B"), name="B")
    b.map_batch(BurstStep("C"), name="C").sink("out-C", sinks("C"))
    b.map_batch(BurstStep("D"), name="D").map_batch(BurstStep("E"), name="E").sink("out-E", sinks("E"))
    return job


def scheduling(progress: Callable[[str], None], **settings: Any) -> dict[str, Any]:
    """The burst under each schedule, one after the other; what C-MR found is checked."""
    capacity_per_s = 1e6 / (WORK_US * _TUPLES * _SLOWER)
    excess = capacity_per_s * _BURST_S * (_PEAK - 1)
    budget_bytes = int(_BUDGET_SHARE * excess * _TUPLES * PROFILES["A"].in_bytes)
    after_s = int(1.3 * excess / (capacity_per_s * (1 - _LOAD)))
    phases = ((_CALM_S, _LOAD), (_BURST_S, _PEAK), (after_s, _LOAD))
    rate = [(f"{seconds} s", f"{load * capacity_per_s:.1f}/s") for seconds, load in phases]
    total = int(sum(seconds * load for seconds, load in phases) * capacity_per_s)
    runs: dict[str, ScheduleOutcome] = {}
    with TreeWatch() as watch:
        for schedule in SCHEDULES:
            source = hr.generate(numbered, rate=rate, total=total, due="due_us")
            runs[schedule] = measure(source, total, schedule=schedule, budget=budget_bytes, **settings)
            progress(f"{schedule:12}{runs[schedule]}")
    disagreements = disagreements_of(runs, budget_bytes)
    for statement in disagreements:
        progress(f"not so: {statement}")
    figures: dict[str, Any] = {"items": len(runs) * total, "budget_mb": round(budget_bytes / 1e6, 2)}
    for what in ("lost", "duplicated", "wrong"):
        figures[what] = sum(getattr(run, what) for run in runs.values())
    for schedule, run in runs.items():
        figures |= with_prefix(schedule.replace("-", "_"), run.figures())
    return {**figures, "disagreements": len(disagreements), **watch.figures()}


def measure(source: Source, total: int, **settings: Any) -> ScheduleOutcome:
    """Run the workflow on Spark, in one subtask."""
    with recording(("number", "due_us")) as c, recording(("number", "due_us")) as e:
        recorders = {"C": c, "E": e}
        run = hr.run(burst_job(source, lambda step: hr.callback(recorders[step])), parallelism=1, **settings)
        tables = {step: recorder.read() for step, recorder in recorders.items()}
    backlogs = [heard.backlog for heard in run.reports()]
    if not backlogs or not all(len(table["now_us"]) for table in tables.values()):
        raise HeadraceError("the bench job produced no result")
    latencies = [_latencies_ms(table) for table in tables.values()]
    differences = np.array([_differences(tables["C"], total, 2), _differences(tables["E"], total, 10)]).sum(axis=0)
    return ScheduleOutcome(
        float(np.mean([latency.mean() for latency, _ in latencies])),
        float(np.mean([latency[(at_s > 2) & (at_s < _CALM_S)].mean() for latency, at_s in latencies])),
        max(backlog.peak_bytes for backlog in backlogs) / 1e6,
        max(backlog.stopped_ms for backlog in backlogs),
        *differences.tolist(),
    )


def disagreements_of(runs: dict[str, ScheduleOutcome], budget_bytes: int) -> list[str]:
    """Which of C-MR's findings a run does not show."""
    odf, mem, hybrid = runs["odf"], runs["mem"], runs["hybrid"]
    findings = {
        "ODF uses the budget up, and reading stops": odf.stopped_ms > 0,
        "hybrid stays within the budget": hybrid.peak_mb <= budget_bytes / 1e6,
        "hybrid stops reading for a tenth of ODF's time at most": hybrid.stopped_ms <= odf.stopped_ms / 10,
        "MEM needs less memory than the others": mem.peak_mb < min(odf.peak_mb, hybrid.peak_mb),
        "before the burst hybrid is as fast as ODF": hybrid.calm_ms < 1.5 * odf.calm_ms,
    }
    return [finding for finding, holds in findings.items() if not holds]


def _padded(records: pa.RecordBatch, tuple_bytes: float) -> pa.RecordBatch:
    at = records.schema.get_field_index("padding")
    return records.set_column(at, "padding", _padding(tuple_bytes, records.num_rows))


def _padding(tuple_bytes: float, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(bytes(int(_TUPLES * tuple_bytes) - _NARROW_BYTES)), rows)


def _latencies_ms(table: Table) -> tuple[Values, Values]:
    """Of each result, its latency, and when it was due (seconds after the first)."""
    due_us = table["due_us"]
    return (table["now_us"] - due_us) / 1000, (due_us - due_us.min()) / 1e6


def _differences(table: Table, total: int, every: int) -> tuple[int, int, int]:
    """Records lost, duplicated and wrong, if one of so many should have come out."""
    seen = np.bincount(table["number"], minlength=total)
    due = np.zeros(len(seen), bool)
    due[:total:every] = True
    return int((due & (seen == 0)).sum()), int(np.maximum(seen[due] - 1, 0).sum()), int(seen[~due].sum())
