"""``bench restart``: what a deliberate restart of the query stops, by its parts, and what another batch alone does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import headrace as hr
from headrace.bench.latency import Numbered, check_each, numbered_job, recorded_figures
from headrace.bench.measuring.figures import TreeWatch, rounded_median
from headrace.bench.measuring.recorder import recording
from headrace.driver.protocol.events import BatchEndAsked, RestartAsked
from headrace.spark.gaps import Gap
from headrace.spark.handle import Run

_EVERY_S = 5.0
"""Time between two stops: enough for what one has delayed to be over before the next."""
_QUERY = "stop"
"""The part that a restart of the query has, and another batch of the same query has not."""


def restart(rate: int, seconds: int, warmup_s: int, **settings: Any) -> dict[str, Any]:
    """The numbered job under load; every few seconds its query is restarted at a cut, or only its batch ends."""
    make, total = Numbered(1000), rate * seconds
    with recording(("key", "n", "seq", "due_us")) as recorder:
        with TreeWatch() as watch:
            run = hr.start(numbered_job("bench-restart", make, rate, total, hr.callback(recorder)), **settings)
            try:
                _disturb(run, warmup_s, seconds)
                run.wait()
            finally:
                run.stop()
                run.delete_temporary_checkpoint()
        table = recorder.read()
    latency_ms = (table["now_us"] - table["due_us"]) / 1000
    figures = recorded_figures(table, watch, run, total, warmup_s, latency_ms, None)
    return figures | check_each(table, make, total) | gap_figures(list(run.gaps))


def gap_figures(gaps: Sequence[Gap]) -> dict[str, Any]:
    """Medians of the stops that were asked for: ``restart_`` of the query's, ``batch_`` of those between two batches."""
    asked = [gap for gap in gaps if gap.deliberate]
    kinds = {
        "restart": [g for g in asked if _QUERY in g.parts_ms],
        "batch": [g for g in asked if _QUERY not in g.parts_ms],
    }
    figures: dict[str, Any] = {}
    for kind, of_kind in kinds.items():
        totals_ms = [1e3 * gap.seconds for gap in of_kind]
        figures[f"{kind}_gaps"] = len(of_kind)
        figures[f"{kind}_gap_ms"] = rounded_median(totals_ms)
        figures[f"{kind}_gap_max_ms"] = round(max(totals_ms), 2) if totals_ms else None
        for part in of_kind[0].parts_ms if of_kind else ():
            values = [gap.parts_ms[part] for gap in of_kind if part in gap.parts_ms]
            figures[f"{kind}_{part.replace(' ', '_')}_ms"] = rounded_median(values)
    return figures


def _disturb(run: Run, warmup_s: float, seconds: float) -> None:
    """In turn: another query, another batch of the same. As the driver's own loop asks for them."""
    while run.status().state != "running" and not run.wait(0.05):
        pass
    end_s = time.monotonic() + seconds - _EVERY_S
    if run.wait(warmup_s):
        return
    turn = 0
    while time.monotonic() < end_s:
        run._loop.post(BatchEndAsked("bench restart") if turn % 2 else RestartAsked("bench restart"))
        turn += 1
        if run.wait(_EVERY_S):
            return
