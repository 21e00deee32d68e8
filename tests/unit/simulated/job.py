"""The job that all worlds run, and what its state and results must be at any offsets.

Sources number their rows from 0, and a row's number is its time. The second stage counts rows per key in windows of
three, and hands a window's counts on when it is closed; a third stage, if there is one, adds them up per pair of keys.
So state and results after a cut follow from the offsets alone, whoever worked on what.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import headrace as hr
from headrace.config import Settings
from headrace.driver.planning import plan_job
from headrace.graph.nodes import SinkNode
from headrace.runtime.plan import JobPlan
from headrace.state.durable.manifest import SliceKey
from headrace.testing import scripted

KEYS, SLICES, WINDOW = 6, 4, 3
NEVER, END = -1, 10**6
"""Before any time, and after all of it."""
STEPS = ("s", "n", "t")
"""The state of each stage: offsets, open windows, totals."""
Contents = dict[int | tuple[int, int], int | tuple[int, int]]
Result = tuple[int, int, int]
"""A key, a window, and how many rows there were."""


@dataclass(frozen=True)
class Shape:
    """What differs between worlds: subtasks per stage, how many of them own slices at the start, and the input."""

    subtasks: tuple[int, ...]
    active: tuple[int, ...]
    partitions: int
    rows: int | None


def key_at(partition: int, position: int) -> int:
    """What stands at a position of the input."""
    return (partition * 3 + position * 5 + position * position) % KEYS


def source_state(shape: Shape, offset: int) -> tuple[int, int]:
    """What a source keeps of a partition: the offset, and how far time has come in it."""
    return offset, END if offset == shape.rows else offset - 1


def closed(watermark: int) -> int:
    """The last window that is closed at a time."""
    return (watermark + 1) // WINDOW - 1


def watermark_at(shape: Shape, offsets: tuple[int, ...]) -> int:
    return min(source_state(shape, offset)[1] for offset in offsets)


@lru_cache(maxsize=4096)
def _whole(partitions: int, rows: int | None, window: int) -> tuple[tuple[int, int], ...]:
    """A closed window's rows per key."""
    first = window * WINDOW
    last = first + WINDOW if rows is None else min(first + WINDOW, rows)
    return tuple(sorted(Counter(key_at(p, i) for p in range(partitions) for i in range(first, last)).items()))


def results_between(shape: Shape, before: int, upto: int) -> list[Result]:
    """What must be published of the windows that were closed between two times."""
    last = closed(upto) if upto < END else ((shape.rows or 0) - 1) // WINDOW
    return [
        (key, window, n)
        for window in range(closed(before) + 1, last + 1)
        for key, n in _whole(shape.partitions, shape.rows, window)
    ]


def state_at(shape: Shape, offsets: tuple[int, ...]) -> dict[SliceKey, Contents]:
    """All slices that are not empty."""
    state: dict[SliceKey, Contents] = {}
    for partition, offset in enumerate(offsets):
        if offset:
            state["s", partition] = {0: source_state(shape, offset)}
    now = watermark_at(shape, offsets)
    first = (closed(now) + 1) * WINDOW
    for partition, offset in enumerate(offsets):
        for position in range(first, offset) if now < END else ():
            key = key_at(partition, position)
            counts = state.setdefault(("n", key % SLICES), {})
            at = (key, position // WINDOW)
            counts[at] = counts.get(at, 0) + 1  # type: ignore[operator]
    if len(shape.subtasks) > 2:
        for key, _, n in results_between(shape, NEVER, now):
            totals = state.setdefault(("t", key // 2 % SLICES), {})
            totals[key // 2] = totals.get(key // 2, 0) + n  # type: ignore[operator]
    return state


@lru_cache
def planned(stages: int, backup: int) -> JobPlan:
    """The job in real stages; only where its rows go and who counts them is the toy's."""
    job = hr.Job("simulated")
    rows = job.source("s", scripted([{"k": 0}])).key_by("k").reduce(name="n", n=hr.count())
    if stages > 2:
        rows = rows.key_by("k").reduce(name="t", n=hr.count())
    rows.sink("moved", hr.callback(print))
    rows.sink("kept", hr.callback(print))
    settings = Settings.of(
        slices=SLICES, commit="200 ms", join_timeout="4 s", give_up="1000000 s", share=False, backup=backup
    )
    plan = plan_job(job, Path("/nowhere/at/all"), settings)
    assert len(plan.layout.stages) == stages
    return plan


def laid_out(plan: JobPlan, shape: Shape) -> JobPlan:
    """The plan with a shape's numbers of subtasks."""
    stages = tuple(
        replace(stage, subtasks=n, active=active, maximum=n, minimum=1)
        for stage, n, active in zip(plan.layout.stages, shape.subtasks, shape.active)
    )
    return replace(plan, layout=replace(plan.layout, stages=stages), partitions={"s": shape.partitions})


def with_sinks(plan: JobPlan, sinks: dict[str, object]) -> JobPlan:
    """The plan with other sinks."""
    nodes = tuple(replace(n, sink=sinks[n.name]) if isinstance(n, SinkNode) else n for n in plan.graph.nodes)
    return replace(plan, graph=replace(plan.graph, nodes=nodes))
