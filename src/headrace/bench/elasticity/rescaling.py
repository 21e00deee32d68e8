"""``bench rescale``: a keyed step gets more subtasks and fewer while it runs, and nothing is lost, doubled or late for long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import headrace as hr
from headrace.bench.latency import Numbered, check_each, count_up, recorded_figures
from headrace.bench.measuring.figures import TreeWatch, rounded_median
from headrace.bench.measuring.recorder import recording
from headrace.errors import RunFailedError
from headrace.spark.handle import Run

Tell = Callable[[str], None]
_STEPS = (1, 2, 4, 2, 1)
"""As in the issue's staircase, and back to where it began."""
_WARM_S = 5.0


def rescale(rate: int, seconds: int, tell: Tell, **settings: Any) -> dict[str, Any]:
    """Each number of subtasks for so many seconds."""
    make, total = Numbered(1000), int(rate * (_WARM_S + seconds * len(_STEPS)))
    job = hr.Job("bench-rescale")
    items = job.source("items", hr.generate(make, rate=f"{rate}/s", total=total, due="due_us"), parallelism=1)
    counted = items.key_by("key").process(count_up, name="count", state={"n": hr.value()}, parallelism=(1, 1, 4))
    with recording(("key", "n", "seq", "due_us")) as recorder:
        counted.sink("out", hr.callback(recorder))
        with TreeWatch() as watch:
            run = hr.start(job, **settings)
            try:
                for subtasks in _STEPS:
                    _reach(run, subtasks, tell)
                    run.wait(seconds)
                run.wait()
            finally:
                run.stop()
                run.delete_temporary_checkpoint()
        table = recorder.read()
    latency_ms = (table["now_us"] - table["due_us"]) / 1000
    held_ms = [handed.held_ms for handed in run.moves()]
    return {
        **recorded_figures(table, watch, run, total, int(_WARM_S), latency_ms, None),
        **check_each(table, make, total),
        "moves": len(held_ms),
        "slices_moved": sum(handed.slices for handed in run.moves()),
        "pause_ms": rounded_median(held_ms),
        "longest_pause_ms": round(max(held_ms, default=0.0), 2),
        "restarts_of_query": len([gap for gap in run.gaps if "stop" in gap.parts_ms]),
    }


def _reach(run: Run, subtasks: int, tell: Tell, timeout_s: float = 120.0) -> None:
    while run.status().cuts < 2 and not run.wait(0.1):
        continue
    asked_s = time.monotonic()
    run.rescale("count", subtasks)
    while len(set(run._machine.members.tables[1])) != subtasks:
        if run.wait(0.02) or time.monotonic() - asked_s > timeout_s:
            raise RunFailedError(f"the step did not get {subtasks} subtasks within {timeout_s:g} s")
    tell(f"{subtasks} subtasks after {time.monotonic() - asked_s:.2f} s")
