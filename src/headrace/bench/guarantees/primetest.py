"""``bench primetest``: Nephele's elastic job under a staircase of load, with a bound on its mean latency.

The thesis's testers compute; ours take a calibrated time per number, most of it waiting as for a
remote service, so that a machine of two cores can host a dozen of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import headrace as hr
from headrace.bench.measuring.boundkept import spans_of
from headrace.bench.measuring.figures import TreeWatch, cut_figures, latency_figures, longest_gap_ms, with_prefix
from headrace.bench.measuring.recorder import Recorder, Table, recording

Ints = npt.NDArray[np.int64]
BOUNDS_MS = (50.0, 20.0, 100.0)
STAIRS = (1, 2, 4, 6, 8, 6, 4, 2, 1)
_OVER_S = 5.0
_SMALL_PRIMES = np.array(
    [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97]
)


def is_prime(numbers: Ints) -> npt.NDArray[np.bool_]:
    """Exact below 10,000: no number there is the product of two primes above 97."""
    divides = (numbers[:, None] % _SMALL_PRIMES == 0) & (numbers[:, None] != _SMALL_PRIMES)
    prime: npt.NDArray[np.bool_] = (numbers > 1) & ~divides.any(axis=1)
    return prime


@dataclass(frozen=True, slots=True)
class Tester:
    """Tests numbers; each takes ``service_s``."""

    service_s: float

    def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
        until = time.perf_counter() + self.service_s * records.num_rows
        prime = is_prime(records.column("number").to_numpy()).astype(np.int64)
        left_s = until - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)
        return records.append_column("prime", pa.array(prime))


def numbered(n: Ints) -> dict[str, Ints]:
    return {"seq": n, "number": (n * 7919 + 104_729) % 10_000}


@dataclass(frozen=True, slots=True)
class StairLoad:
    """The stairs: ``base`` numbers per second times each step, each for ``step_s``."""

    base: int
    step_s: float

    @property
    def rate(self) -> list[tuple[float, float]]:
        return [(self.step_s, float(self.base * stair)) for stair in STAIRS]

    @property
    def total(self) -> int:
        return int(sum(STAIRS) * self.base * self.step_s)


def job_of(load: StairLoad, tester: Tester, recorder: Recorder, parallelism: Any, bound_ms: float | None) -> hr.Job:
    job = hr.Job("bench-primetest")
    source = hr.generate(numbered, rate=load.rate, total=load.total, due="due_us")
    numbers = job.source("numbers", source, parallelism=1)
    tested = numbers.map_batch(tester, name="test", parallelism=parallelism)
    end = tested.sink("out", hr.callback(recorder))
    if bound_ms is not None:
        job.constrain(numbers >> end, mean=f"{bound_ms} ms", over=f"{_OVER_S} s")
    return job


def run_once(
    load: StairLoad, tester: Tester, parallelism: Any, bound_ms: float, *, control: bool, **settings: Any
) -> dict[str, Any]:
    """One variant: its figures, with answers checked."""
    with recording(("seq", "number", "prime", "due_us")) as recorder:
        job = job_of(load, tester, recorder, parallelism, bound_ms if control else None)
        with TreeWatch() as watch:
            run = hr.run(job, parallelism=1, **settings)
        table = recorder.read()
    maximum = parallelism if isinstance(parallelism, int) else parallelism[2]
    spans = spans_of(table["due_us"], table["now_us"], bound_ms, _OVER_S, warmup_s=_OVER_S * 2)
    span_s = (table["now_us"].max() - table["now_us"].min()) / 1e6
    subtask_s = run.subtask_s().get("test", maximum * span_s)
    return {
        "items": load.total,
        "items_per_s": round(load.total / span_s, 1),
        **latency_figures((table["now_us"] - table["due_us"]) / 1000),
        **watch.figures(),
        **spans.figures(),
        "mean_ms": round(float((table["now_us"] - table["due_us"]).mean()) / 1000, 2),
        "subtask_s": round(subtask_s, 1),
        "controller_cpu_share": round(run.control_cpu_s / watch.cpu_s, 5),
        **cut_figures(run),
        "longest_gap_ms": longest_gap_ms(table["now_us"]),
        "decisions": sum(event.what in ("batch", "scale", "chain") for event in run.decisions()),
        **check(table, load.total),
    }


def check(table: Table, total: int) -> dict[str, int]:
    seen = np.bincount(table["seq"], minlength=total)
    wrong = (table["prime"] != is_prime(table["number"])) | (table["number"] != numbered(table["seq"])["number"])
    return {
        "lost": int((seen == 0).sum()),
        "duplicated": int(np.maximum(seen - 1, 0).sum()),
        "wrong": int(wrong.sum()),
    }


def primetest(
    bounds_ms: Sequence[float], load: StairLoad, progress: Callable[[str], None], *, peers: bool = True, **settings: Any
) -> dict[str, Any]:
    """The job controlled for each bound, then fixed for the peak, then fixed and shipping at once.

    The first bound is the one that peers are compared with.
    """
    tester, maximum = Tester(0.002), 8
    runs: dict[str, dict[str, Any]] = {}
    for bound_ms in bounds_ms:
        name = f"bound_{bound_ms:g}"
        runs[name] = run_once(load, tester, (1, 2, maximum), bound_ms, control=True, **settings)
        progress(f"{name}: met in {runs[name]['met_share']:.1%}, {runs[name]['subtask_s']} subtask-seconds")
    if peers:
        for name, options in (("fixed", {}), ("immediate", {"flush": "0 ms"})):
            runs[name] = run_once(load, tester, maximum, bounds_ms[0], control=False, **(settings | options))
            progress(f"{name}: mean {runs[name]['mean_ms']} ms, {runs[name]['cpu_s']} s of CPU")
    return figures_of(runs, f"bound_{bounds_ms[0]:g}")


def figures_of(runs: Mapping[str, dict[str, Any]], main: str) -> dict[str, Any]:
    """All runs' figures with their names in front, the main one's also without; differences of all runs count."""
    figures = dict(runs[main])
    for name, made in runs.items():
        figures |= with_prefix(name, made)
    for name in ("lost", "duplicated", "wrong"):
        figures[name] = sum(made[name] for made in runs.values())
    if "fixed" in runs:
        figures["subtask_share"] = round(runs[main]["subtask_s"] / runs["fixed"]["subtask_s"], 3)
        figures["cpu_share_of_immediate"] = round(runs[main]["cpu_s"] / runs["immediate"]["cpu_s"], 3)
    return figures
