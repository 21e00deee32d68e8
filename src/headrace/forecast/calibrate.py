"""What a job's steps cost on this machine, by running them on sample records; sinks are not touched.

Users' functions are called a few thousand times, so this is done only when it is asked for.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.graph.nodes import LateNode, Node, PaneNode, ReduceNode, SinkNode, SourceNode
from headrace.graph.windowing import FOREVER_US
from headrace.model.costs import Costs, StepCost
from headrace.runtime.batch import Batch
from headrace.runtime.build import build_operator
from headrace.runtime.operators.eventtimes import event_times
from headrace.runtime.operators.operator import Operator
from headrace.runtime.operators.usercode import Guard
from headrace.runtime.plan import JobPlan
from headrace.schemas import conform

_SMALL, _LARGE = 8, 256
"""Two sizes of batches, far enough apart to tell a batch's cost from a record's."""
_TURNS, _MOST_TURNS = 7, 100


@dataclass(slots=True)
class Tap:
    """Keeps what a step emits."""

    batches: list[Batch] = field(default_factory=list)

    def receive(self, port: int, batch: Batch) -> None:
        self.batches.append(batch)

    def watermark(self, port: int, watermark_us: int) -> None:
        """Nothing waits for time here."""


def calibrated(plan: JobPlan, costs: Costs | None = None) -> Costs:
    """``costs`` with those of steps measured, as far as samples get; others keep what they had."""
    costs = costs or Costs()
    samples: dict[str, Batch] = {}
    steps = dict(costs.steps)
    share = {node.name: 0.0 for node in plan.graph.nodes}
    sources = [node for node in plan.graph.nodes if isinstance(node, SourceNode)]
    for source in sources:
        samples[source.name], share[source.name] = _sample(plan, source), 1 / len(sources)
    for node in plan.graph.nodes:
        if isinstance(node, SourceNode):
            continue
        if isinstance(node, LateNode):
            continue  # nothing is late until it is
        given = sum(share[name] for name in node.inputs)
        found = _measured(plan, node, [samples[name] for name in node.inputs]) if _can_run(node, samples) else None
        share[node.name] = given
        if found is not None:
            cost, samples[node.name], emitted = found
            steps[node.name] = replace(cost, records_per_input=given)
            share[node.name] = given * emitted
    return replace(costs, steps=steps, origin="steps measured on sample records, channels by default")


def _can_run(node: Node, samples: dict[str, Batch]) -> bool:
    paned = isinstance(node, PaneNode) or (isinstance(node, ReduceNode) and node.pane_columns is not None)
    known = all(name in samples and samples[name].rows for name in node.inputs)
    return known and not paned and not isinstance(node, SinkNode)


def _sample(plan: JobPlan, node: SourceNode) -> Batch:
    schema, now_us = plan.schemas[node.name], time.time_ns() // 1000
    records = conform(node.source.sample(_LARGE), schema, node.name)
    times = np.full(records.num_rows, now_us)
    if node.event_time is not None:
        times, usable = event_times(records.column(node.event_time), node.time_unit, now_us)
        records, times = records.filter(pa.array(usable)), times[usable]
    return Batch(records, times, now_us)


def _measured(plan: JobPlan, node: Node, inputs: list[Batch]) -> tuple[StepCost, Batch, float] | None:
    """A step's cost, a sample of its output and its records out per record in; None if samples are not for it."""
    operator, tap = _operator(plan, node.name), Tap()
    operator.feed(tap)
    small, large = ([_sized(batch, size) for batch in inputs] for size in (_SMALL, _LARGE))
    try:
        small_s, large_s = _least_s(operator, small, large)
        tap.batches.clear()
        _feed(operator, large)
        for port in range(len(large)):
            operator.watermark(port, FOREVER_US)
    except HeadraceError:
        return None
    given = sum(batch.rows for batch in large)
    record_s = max(large_s - small_s, 0.0) / (given - sum(batch.rows for batch in small))
    batch_s = max(small_s - record_s * _SMALL * len(small), 0.0)
    out = max(tap.batches, key=lambda batch: batch.rows, default=large[0].where(np.zeros(large[0].rows, bool)))
    return StepCost(batch_s, record_s), out, sum(batch.rows for batch in tap.batches) / given


def _operator(plan: JobPlan, name: str) -> Operator:
    node = plan.graph.by_name[name]
    operator = build_operator(plan, node, Guard(name, node.options.on_error or plan.graph.on_error))
    operator.restored(list(range(plan.slices)))
    operator.begin()
    return operator


def _sized(batch: Batch, rows: int) -> Batch:
    return batch.take(np.arange(rows) % batch.rows)


def _feed(operator: Operator, batches: list[Batch]) -> None:
    for port, batch in enumerate(batches):
        operator.receive(port, batch)


def _least_s(operator: Operator, small: list[Batch], large: list[Batch]) -> tuple[float, float]:
    """The least time of several turns for each: compiling, and whatever else the machine does, can only add. The larger
    batch cannot take less; while it seems so, others were at work.
    """
    small_s = large_s = math.inf
    for turn in range(_MOST_TURNS):
        if turn >= _TURNS and large_s > small_s:
            break
        small_s, large_s = min(small_s, _fed_s(operator, small)), min(large_s, _fed_s(operator, large))
    return small_s, large_s


def _fed_s(operator: Operator, batches: list[Batch]) -> float:
    began_s = time.perf_counter()
    _feed(operator, batches)
    return time.perf_counter() - began_s
