"""A job's layout as the stages of the latency model: which steps share a row's service, and how many records come.

The phases of SCALLA 2.9, derived from ``graph.stages`` and ``model.costs``. A row that arrives at a stage is worked
on by all steps there, so their costs add up whether or not a path leads through each.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.connect.generate import Generate
from headrace.connect.pace import as_pace
from headrace.connect.replay import Replay
from headrace.graph.nodes import JoinNode, Node, ProcessNode, ReduceNode, SourceNode, TransformNode
from headrace.graph.paths import reachable
from headrace.graph.windowing import TimeWindow
from headrace.model.costs import PER_RECORD, VECTORISED, Costs, StepCost
from headrace.model.sizing import Limits, RuntimePlant
from headrace.model.stagephases import StagePhases
from headrace.runtime.plan import JobPlan

_RATE_OVER_S = 60
_TEXT_BYTES = 24.0
"""The width of a value where the schema does not tell it."""


def source_rates_per_s(plan: JobPlan) -> dict[str, float]:
    """The rates of the sources that have one: the maximum that is due in any second of the first minute."""
    rates = {}
    for node in plan.graph.nodes:
        if (
            isinstance(node, SourceNode)
            and isinstance(node.source, (Generate, Replay))
            and node.source.rate is not None
        ):
            pace = as_pace(node.source.rate)
            due = [pace.count_due(second * 1_000_000) for second in range(_RATE_OVER_S + 1)]
            rates[node.name] = float(np.diff(due).max())
    return rates


def total_rate_per_s(plan: JobPlan) -> float | None:
    """Of all sources together; None if one does not say."""
    rates = source_rates_per_s(plan)
    known = all(node.name in rates for node in plan.graph.nodes if isinstance(node, SourceNode))
    return sum(rates.values()) if known else None


def source_shares(plan: JobPlan) -> dict[str, float]:
    """How much of all input each source reads; equal parts where rates are unknown."""
    sources = [node.name for node in plan.graph.nodes if isinstance(node, SourceNode)]
    rates = source_rates_per_s(plan)
    if len(rates) < len(sources) or not sum(rates.values()):
        return dict.fromkeys(sources, 1 / len(sources))
    return {name: rate / sum(rates.values()) for name, rate in rates.items()}


def stages_of(plan: JobPlan, costs: Costs, upto: int, windows: frozenset[str] = frozenset()) -> tuple[StagePhases, ...]:
    """The model's stages 0 to ``upto`` of a job; ``windows`` are steps whose windows count, besides read-write ones."""
    given = records_per_input(plan, costs)
    return tuple(_stage(plan, costs, given, index, windows) for index in range(upto + 1))


def open_windows(plan: JobPlan, start: str, end: str) -> frozenset[str]:
    """Steps on a path whose rows come when their windows end, and whose latency leaves that out."""
    beyond = reachable(plan.graph, start)
    return frozenset(
        node.name
        for node in plan.graph.nodes
        if _window_of(node) is not None and node.options.latency != "read-write"
        and node.name in beyond and end in reachable(plan.graph, node.name)
    )  # fmt: skip


def plant_of(
    plan: JobPlan, costs: Costs, quantile: float | None, start: str, end: str, windows: frozenset[str] = frozenset()
) -> RuntimePlant:
    """What can be planned for a path between two steps."""
    from_source = isinstance(plan.graph.by_name[start], SourceNode)
    return RuntimePlant(
        stages_of(plan, costs, plan.layout.stage_of[end], windows),
        quantile,
        max_bytes=plan.settings.flush_bytes,
        first=None if from_source else plan.layout.stage_of[start],
    )


def limits_of(plan: JobPlan, stages: int) -> Limits:
    """The minimum and maximum number of subtasks of each stage. Where the user did not say, one will do."""
    limits = []
    for stage in plan.layout.stages[:stages]:
        nodes = [plan.graph.by_name[name] for name in stage.steps if name in plan.graph.by_name]
        free = stage.index > 0 and all(node.options.parallelism is None for node in nodes)
        limits.append((1 if free else stage.minimum, stage.maximum))
    return tuple(limits)


def cost_of(plan: JobPlan, costs: Costs, step: str) -> StepCost:
    """What a step takes, by measurement or by its kind: a Python call per record, or one per batch."""
    node = plan.graph.by_name[step]
    called = isinstance(node, ProcessNode) or (isinstance(node, TransformNode) and node.kind != "map_batch")
    return costs.steps.get(step, PER_RECORD if called else VECTORISED)


def records_per_input(plan: JobPlan, costs: Costs) -> dict[str, float]:
    """Records that each step is given per record of all sources; unmeasured steps hand on as many as they are given."""
    given = source_shares(plan)
    for node in plan.graph.nodes:
        if node.name in costs.steps and not isinstance(node, SourceNode):
            given[node.name] = costs.steps[node.name].records_per_input
        elif node.inputs:
            given[node.name] = sum(given[name] for name in node.inputs)
    for step in plan.layout.passes:
        given[step.name] = given[step.origin]
    return given


def _stage(plan: JobPlan, costs: Costs, given: dict[str, float], index: int, windows: frozenset[str]) -> StagePhases:
    stage = plan.layout.stages[index]
    border = plan.layout.border(index)
    arriving = sum(given[edge.target] for edge in border) if border else 0.0
    if not border:  # sources, or a hop within a leg: what its own first steps are given
        arriving = max((given[name] for name in stage.steps), default=1.0) if index else 1.0
    every_s, lateness_s = _windows(plan, index, windows)
    steps = [(cost_of(plan, costs, name), given[name]) for name in stage.steps if name in plan.graph.by_name]
    return StagePhases(
        " + ".join(stage.steps),
        item_s=sum(cost.record_s * records for cost, records in steps) / arriving,
        row_s=sum(cost.batch_s for cost, _ in steps),
        row_var_s2=sum(cost.batch_var_s2 for cost, _ in steps),
        items_per_input=arriving,
        item_bytes=_record_bytes(plan, index) if index else 0.0,
        transfer=costs.transfer if index else costs.wake,
        paced=index == 0 and total_rate_per_s(plan) is not None,
        window_every_s=every_s,
        window_lateness_s=lateness_s,
    )


def _window_of(node: Node | None) -> TimeWindow | None:
    """The windows at whose ends a step's rows come."""
    match node:
        case ReduceNode(window=TimeWindow() as window) | JoinNode(window=TimeWindow() as window):
            return window
    return None


def _windows(plan: JobPlan, index: int, more: frozenset[str]) -> tuple[float | None, float]:
    """How long steps of a stage hold records: until their window ends, and as late as sources may be."""
    every_us = [
        window.every_us
        for name in plan.layout.stages[index].steps
        if (window := _window_of(node := plan.graph.by_name.get(name))) is not None
        and node is not None
        and (name in more or node.options.latency == "read-write")
    ]
    lateness_us = max(node.lateness_us for node in plan.graph.nodes if isinstance(node, SourceNode))
    return (sum(every_us) / 1e6, lateness_us / 1e6) if every_us else (None, 0.0)


def _record_bytes(plan: JobPlan, index: int) -> float:
    """Of one record on its way into a stage: the widest of its edges."""
    sources = [edge.source for edge in plan.layout.edges if plan.layout.stage_of[edge.target] == index]
    schemas = [plan.schemas[name] for name in sources if name in plan.schemas]
    return max((sum(map(_value_bytes, schema.types)) for schema in schemas), default=_TEXT_BYTES)


def _value_bytes(kind: pa.DataType) -> float:
    try:
        return float(kind.bit_width) / 8
    except ValueError:
        return _TEXT_BYTES
