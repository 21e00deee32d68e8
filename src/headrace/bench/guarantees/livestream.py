"""``bench livestream``: the thesis's video job (decoder → merger → overlay → encoder), unchained, controlled, chained.

The controlled job starts like the unchained one and gets a bound on its mean latency: its controller chains the steps
that fit one core and spends what the bound leaves on batching. The same work, so the same answers.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.api.stream import Path
from headrace.bench.guarantees.video import PERIOD, STEPS, Film
from headrace.bench.measuring.boundkept import spans_of
from headrace.bench.measuring.figures import TreeWatch, cut_figures, latency_figures, longest_gap_ms, with_prefix
from headrace.bench.measuring.recorder import Recorder, Table, recording
from headrace.driver.status import Event
from headrace.spark.session import open_session

_OVER_S = 5.0
_WARM_UP_S = 3
VARIANTS = ("unchained", "", "static")
"""In the order of running; the controlled one has no name in front of its figures."""


@dataclass(frozen=True, slots=True)
class VideoLoad:
    """``rate`` is pictures per second of all groups; a third of the time is warm-up, in which chains are made."""

    rate: int
    seconds: int

    @property
    def total(self) -> int:
        return self.rate * self.seconds

    @property
    def warmup_s(self) -> float:
        return self.seconds / 3


@dataclass(frozen=True, slots=True)
class Viewers:
    """The sink: records the checksum of each encoded picture."""

    recorder: Recorder

    def __call__(self, records: pa.RecordBatch) -> None:
        checksums = np.array([zlib.crc32(data) for data in records.column("encoded").to_pylist()], np.int64)
        kept = records.select(["seq", "due_us"])
        self.recorder(kept.append_column("checksum", pa.array(checksums)))


def job_of(
    film: Film, load: VideoLoad, sink: Callable[[pa.RecordBatch], object], variant: str, bound_ms: float
) -> hr.Job:
    """Source and sink have processes of their own, as in the thesis; the bound holds from one to the other."""
    job = hr.Job("bench-livestream")
    stream = job.source("feeds", hr.generate(film, rate=f"{load.rate}/s", total=load.total, due="due_us"))
    for name, work in STEPS.items():
        stream = stream.map_batch(work, name=name, chain=not (variant == "static" and name == "decoder"))
    stream.sink("viewers", hr.callback(sink), chain=False)
    if not variant:
        job.constrain(Path(job, "feeds", "viewers"), mean=f"{bound_ms} ms", over=f"{_OVER_S} s")
    return job


def check(table: Table, film: Film, total: int) -> dict[str, int]:
    expected = film.checksums()[table["seq"] % film.groups, table["seq"] // film.groups % PERIOD]
    seen = np.bincount(table["seq"], minlength=total)
    return {
        "lost": int((seen == 0).sum()),
        "duplicated": int(np.maximum(seen - 1, 0).sum()),
        "wrong": int((table["checksum"] != expected).sum()),
    }


def chained_at_s(events: Iterable[Event], began_us: int) -> float | None:
    """When the last chain was made, from the first picture on."""
    at_s = [event.at_s - began_us / 1e6 for event in events if event.what == "chain"]
    return round(at_s[-1], 2) if at_s else None


def run_once(session: Any, film: Film, load: VideoLoad, bound_ms: float, variant: str) -> dict[str, Any]:
    """One variant; figures are of what was due after the warm-up, a third of the time."""
    with recording(("seq", "due_us", "checksum")) as recorder:
        job = job_of(film, load, Viewers(recorder), variant, bound_ms)
        with TreeWatch() as watch:
            run = hr.run(job, spark=session, parallelism=1, chaining="static" if variant == "static" else "dynamic")
        table = recorder.read()
    latency_ms = (table["now_us"] - table["due_us"]) / 1000
    began_us = int(table["due_us"].min())
    warm = table["due_us"] >= began_us + load.warmup_s * 1e6
    return {
        "items": load.total,
        "items_per_s": round(load.total / ((table["now_us"].max() - began_us) / 1e6), 1),
        "mean_ms": round(float(latency_ms[warm].mean()), 2),
        **latency_figures(latency_ms[warm]),
        **watch.figures(),
        **spans_of(table["due_us"], table["now_us"], bound_ms, _OVER_S, warmup_s=load.warmup_s).figures(),
        **cut_figures(run),
        "longest_gap_ms": longest_gap_ms(table["now_us"][warm]),
        "chained_at_s": chained_at_s(run.decisions(), began_us),
        **check(table, film, load.total),
    }


def livestream(load: VideoLoad, bound_ms: float, progress: Callable[[str], None], *, groups: int = 2) -> dict[str, Any]:
    """All variants, one after the other in one session that was warmed up."""
    film, figures = Film(groups), dict[str, Any]()
    session = open_session("realtime", "local[8]", "bench-livestream")
    try:
        run_once(
            session, film, VideoLoad(load.rate, _WARM_UP_S), bound_ms, "unchained"
        )  # otherwise the first run pays for compiling
        for variant in VARIANTS:
            made = run_once(session, film, load, bound_ms, variant)
            figures |= with_prefix(variant, made) if variant else made
            progress(f"{variant or 'controlled'}: mean {made['mean_ms']} ms, {made['cpu_s']} s of CPU")
    finally:
        session.stop()
    for name in ("lost", "duplicated", "wrong"):
        figures[name] = sum(figures[f"{variant}_{name}" if variant else name] for variant in VARIANTS)
    figures["latency_ratio"] = round(figures["unchained_mean_ms"] / figures["mean_ms"], 2)
    figures["cpu_share_of_unchained"] = round(figures["cpu_s"] / figures["unchained_cpu_s"], 3)
    return figures
