"""``bench slices``: what many slices cost against one per subtask, while cuts go on every second.

ChronoStream runs its top words on one core with 1 to 10 slices and loses 4.69 % at most (its Fig. 21). Here two jobs have
one slice per subtask, ten, and more, in turn: a vectorised running reduce, where a record costs little and so a slice much,
and a step in plain Python. Their load is steady and well below what they can take, so that all have as many cuts.
Compared are CPU seconds of all workers per record; those of all processes and wall time are beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import headrace as hr
from headrace.bench.latency import Numbered, check_each, count_up
from headrace.bench.measuring.cputime import Took, driver_cpu_s, worker_cpu_s
from headrace.bench.measuring.figures import TreeWatch, rounded_median
from headrace.bench.measuring.recorder import Table, recording
from headrace.spark.session import open_session

Tell = Callable[[str], None]
_KEYS = {"reduce": 10_000, "process": 1000}
_PER_S = {"reduce": 400_000, "process": 40_000}
"""Records per second: about half of what a core can take."""
_COLUMNS = ("key", "n", "seq", "due_us")
_WARM_S = 2


@dataclass(frozen=True, slots=True)
class SliceRun:
    """One run of a job."""

    job: str
    slices: int
    items: int
    seconds: float
    cpu_s: float
    worker_s: float
    cuts: int
    lost: int
    duplicated: int
    wrong: int


def slices(seconds: int, rounds: int, tell: Tell, **settings: Any) -> dict[str, Any]:
    """Each job with each number of slices for so many seconds, ``rounds`` times in turn."""
    subtasks: int = settings.setdefault("parallelism", 1)
    numbers = (subtasks, 10 * subtasks, 64, 256)
    session = open_session("realtime", f"local[{2 * subtasks + 2}]", "bench-slices")
    try:
        with TreeWatch() as watch:
            for job in _KEYS:
                _run(session, job, subtasks, _WARM_S, settings)
            runs = []
            for turn in range(rounds):
                for job in _KEYS:
                    for n in numbers if turn % 2 == 0 else reversed(numbers):
                        runs.append(_run(session, job, n, seconds, settings))
                        tell(_line(runs[-1]))
    finally:
        session.stop()
    return slice_figures(runs, subtasks) | watch.figures()


def slice_figures(runs: Sequence[SliceRun], subtasks: int) -> dict[str, Any]:
    """Medians per job and number of slices, and what more slices add: of both jobs the worse."""
    settings = [_median(runs, job, n) for job in _KEYS for n in sorted({run.slices for run in runs})]
    shares = {
        n: [_more(settings, job, n, subtasks, "worker_ns_per_item") for job in _KEYS] for n in _others(runs, subtasks)
    }
    all_cpu = {n: [_more(settings, job, n, subtasks, "cpu_ns_per_item") for job in _KEYS] for n in shares}
    figures: dict[str, Any] = {"settings": settings, "items": sum(run.items for run in runs)}
    figures["overhead_share"], figures["all_cpu_share"] = max(shares[10 * subtasks]), max(all_cpu[10 * subtasks])
    for n, share in shares.items():
        for job, value in zip(_KEYS, share):
            figures[f"{job}_{n}_overhead_share"] = value
    return figures | {name: sum(getattr(run, name) for run in runs) for name in ("lost", "duplicated", "wrong")}


def _others(runs: Sequence[SliceRun], subtasks: int) -> list[int]:
    return sorted({run.slices for run in runs} - {subtasks})


def _median(runs: Sequence[SliceRun], job: str, slices: int) -> dict[str, Any]:
    those = [run for run in runs if (run.job, run.slices) == (job, slices)]
    return {
        "job": job,
        "slices": slices,
        "runs": len(those),
        "items_per_s": rounded_median([run.items / run.seconds for run in those]),
        "seconds": rounded_median([run.seconds for run in those]),
        "cpu_ns_per_item": rounded_median([run.cpu_s / run.items * 1e9 for run in those]),
        "worker_ns_per_item": rounded_median([run.worker_s / run.items * 1e9 for run in those]),
        "cuts": rounded_median([run.cuts for run in those]),
    }


def _more(settings: list[dict[str, Any]], job: str, slices: int, fewest: int, figure: str) -> float:
    """By which share a figure is larger than with the fewest slices."""
    of = {setting["slices"]: float(setting[figure]) for setting in settings if setting["job"] == job}
    return round(of[slices] / of[fewest] - 1, 4)


def _run(session: Any, job: str, slices: int, seconds: int, settings: dict[str, Any]) -> SliceRun:
    make, items = Numbered(_KEYS[job]), _PER_S[job] * seconds
    with recording(_COLUMNS if job == "process" else ("key", "n")) as recorder:
        made = _job(job, make, items, hr.callback(recorder))
        before_s = driver_cpu_s()
        run = hr.run(made, spark=session, slices=slices, **{"report": "200 ms", **settings})
        worker_s = worker_cpu_s((heard.pid, heard.cpu_s) for heard in run.reports())
        took = Took(run.busy_s, driver_cpu_s() - before_s + worker_s, worker_s)
        table = recorder.read()
    checked = check_each(table, make, items) if job == "process" else check_counts(table, make, items)
    return SliceRun(job, slices, items, took.seconds, took.cpu_s, worker_s, run.status().cuts, **checked)


def _job(kind: str, make: Numbered, items: int, sink: Any) -> hr.Job:
    job = hr.Job(f"bench-slices-{kind}")
    keyed = job.source("items", hr.generate(make, rate=f"{_PER_S[kind]}/s", total=items, due="due_us")).key_by("key")
    if kind == "process":
        keyed.process(count_up, name="count", state={"n": hr.value()}).sink("out", sink)
    else:
        keyed.reduce(name="count", n=hr.count(), sum=hr.sum("seq")).sink("out", sink)
    return job


def check_counts(table: Table, make: Numbered, items: int) -> dict[str, int]:
    """Running counts: the last one of each key is how many records it has, and none comes twice."""
    expected = np.bincount(make.key(np.arange(items)), minlength=make.keys)
    got = np.zeros(make.keys, np.int64)
    np.maximum.at(got, table["key"], table["n"])
    results = len(np.unique(table["key"] * (items + 1) + table["n"]))
    return {
        "lost": int(np.maximum(expected - got, 0).sum()),
        "duplicated": int(np.maximum(got - expected, 0).sum()) + len(table["key"]) - results,
        "wrong": int((got != expected).sum()),
    }


def _line(run: SliceRun) -> str:
    took = {name: value for name, value in asdict(run).items() if name in ("lost", "duplicated", "wrong")}
    return (
        f"{run.job:8}{run.slices:4} slices: {run.items / run.seconds:11,.0f} records/s, CPU "
        f"{run.cpu_s / run.items * 1e9:9,.0f} ns per record (workers {run.worker_s / run.items * 1e9:9,.0f}), "
        f"{run.cuts} cuts, {sum(took.values())} wrong"
    )
