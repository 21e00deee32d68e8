"""``bench migrate``: how long records of slices wait that change hands, by the size of the state.

ChronoStream moves a slice by its routing and what changed last, not by its state (its Fig. 16). Here a job with two
subtasks and state of growing size hands some slices to and fro under load; at the end of each run one subtask is given all
that the other has, at one cut: that is what moving the full state takes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.bench.durability.checkpoint import check_updates, new_in_each, run_phases, wrong_totals
from headrace.bench.durability.stateload import (
    COLUMNS,
    CountingNew,
    Ints,
    Signals,
    StateLoad,
    StateSource,
    running_totals,
    stored_totals,
)
from headrace.bench.measuring.figures import latency_figures, rounded_median
from headrace.bench.measuring.recorder import Table, recording
from headrace.driver.protocol import moving
from headrace.driver.protocol.events import MovesAsked
from headrace.driver.protocol.moving import HandedOver
from headrace.errors import RunFailedError
from headrace.spark.handle import Run
from headrace.state.hashing import slices_of

Tell = Callable[[str], None]
_STAGE, _SLICES, _MOVES, _AT_ONCE = 1, 1024, 8, 4
_QUIET_S, _BETWEEN_S, _AROUND_S = 6.0, 1.0, 0.5
"""Before the first move, between two of them, and how long before and after one its effect on others is looked at."""
_FULL_BYTES_PER_S = 12_000_000
"""How fast the full state may move at the least: the load goes on until it has."""
_WARM = StateLoad(keys=5000, rate=2000, paced=6000, burst=0)


@dataclass(slots=True)
class Mover:
    """Hands slices to and fro while a job runs, and all of them at the end. ``moved`` are the slices that ever did."""

    began_s: float = 0.0
    moved: set[int] = field(default_factory=set)
    few: list[HandedOver] = field(default_factory=list)
    full: HandedOver | None = None

    def __call__(self, run: Run) -> None:
        self.began_s = time.time()
        run.wait(_QUIET_S)
        table = run._machine.members.tables[_STAGE]
        chosen = [slice for slice, owner in enumerate(table) if owner == 0][: _MOVES // 2 * _AT_ONCE]
        self.moved = set(chosen)
        for turn in range(_MOVES):
            part = chosen[turn // 2 * _AT_ONCE :][:_AT_ONCE]
            self.few.append(_move(run, part, to=1 - turn % 2))
            run.wait(_BETWEEN_S)
        at_once, moving.AT_ONCE_BYTES = moving.AT_ONCE_BYTES, 1 << 62
        try:
            run.rescale("totals", 1)
            self.full = _next_move(run, len(run.moves()))
        finally:
            moving.AT_ONCE_BYTES = at_once


def _move(run: Run, slices: Sequence[int], *, to: int) -> HandedOver:
    known, table = len(run.moves()), list(run._machine.members.tables[_STAGE])
    for slice in slices:
        table[slice] = to
    run._loop.post(MovesAsked(_STAGE, tuple(table), "the experiment moves slices"))
    return _next_move(run, known)


def _next_move(run: Run, known: int, timeout_s: float = 300.0) -> HandedOver:
    end_s = time.monotonic() + timeout_s
    while len(run.moves()) <= known:
        if run.wait(0.02) or time.monotonic() > end_s:
            raise RunFailedError("slices did not change hands")
    return run.moves()[known]


def migrate(sizes_bytes: Sequence[int], rate: int, tell: Tell, **settings: Any) -> dict[str, Any]:
    """Each size once, smallest first, after a small run that warms up Spark."""
    _measure(_WARM, settings, moves=False)
    runs = []
    for size in sorted(sizes_bytes):
        seconds = _QUIET_S + _MOVES * (_BETWEEN_S + 1.5) + 5.0 + size / _FULL_BYTES_PER_S
        runs.append({"state_mb": size // 1_000_000, **_measure(StateLoad.of(size, rate, seconds, 0), settings)})
        tell(", ".join(f"{name} {value}" for name, value in runs[-1].items()))
    return migrate_figures(runs)


def _measure(load: StateLoad, settings: dict[str, Any], *, moves: bool = True) -> dict[str, Any]:
    mover = Mover()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as work, recording(COLUMNS) as recorder:
        state, signals = Path(work) / "checkpoint", Signals(recorder.directory)
        totals = running_totals("bench-migrate", StateSource(load, signals), parallelism=(1, 2, 2))
        totals.sink("out", hr.callback(CountingNew(signals, recorder)))
        chosen = {"slices": _SLICES, "parallelism": 2, **settings, "checkpoint": state}
        measured = run_phases(
            totals.job, load, signals, lambda: recorder.read(), chosen, mover if moves else lambda run: None
        )
        stored, _ = stored_totals(state)
    checked = check_updates(load, measured.table, measured.start_us)
    checked["wrong"] += wrong_totals(load, stored, measured.start_us)
    if not moves:
        return dict(checked)
    assert mover.full is not None
    wall_s = time.time() - time.monotonic()
    return {
        "pause_ms": rounded_median([handed.held_ms for handed in mover.few]),
        "pause_max_ms": round(max(handed.held_ms for handed in mover.few), 2),
        "full_ms": round(mover.full.held_ms, 2),
        **others_figures(measured.table, mover.moved, mover.began_s, [h.at_s + wall_s for h in mover.few]),
        **measured.watch.figures(),
        **checked,
    }


def others_figures(table: Table, moved: set[int], began_s: float, at_s: Sequence[float]) -> dict[str, Any]:
    """Latency of records whose slices stayed, before the first move and around each."""
    new, due_us, now_us = new_in_each(table)
    order = np.lexsort((table["n"], table["key"]))
    slices = slices_of([pa.array(table["key"][order])], _SLICES)
    stays = ~np.isin(slices, list(moved))
    latency_ms, weights = (now_us - due_us / np.maximum(new, 1)) / 1000, new.astype(np.float64)
    before = stays & (now_us >= (began_s + _QUIET_S / 3) * 1e6) & (now_us < (at_s[0] - 2 * _AROUND_S) * 1e6)
    around = stays & _near(now_us, at_s)
    quiet, busy = (latency_figures(latency_ms[some], weights[some])["p99_ms"] for some in (before, around))
    return {"others_before_p99_ms": quiet, "others_during_p99_ms": busy, "others_p99_ratio": round(busy / quiet, 3)}


def _near(now_us: Ints, at_s: Sequence[float]) -> np.ndarray:
    near = np.zeros(len(now_us), bool)
    for s in at_s:
        near |= np.abs(now_us / 1e6 - s) <= _AROUND_S
    return near


def migrate_figures(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What is asked of it: pauses hardly grow with state, and are far below those of moving all of it."""
    largest, smallest = runs[-1], runs[0]
    figures = {
        "runs": runs,
        "pause_ms": largest["pause_ms"],
        "pause_ratio_at_largest": round(largest["full_ms"] / largest["pause_ms"], 2),
        "pause_growth": round(largest["pause_ms"] / smallest["pause_ms"], 3),
        "others_p99_ratio": max(run["others_p99_ratio"] for run in runs),
    }
    return figures | {name: sum(run[name] for run in runs) for name in ("lost", "duplicated", "wrong")}
