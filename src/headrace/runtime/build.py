"""From a plan to the operators and edges of one stage's subtask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from headrace.graph.combining import can_combine
from headrace.graph.nodes import (
    JoinNode,
    Node,
    PaneNode,
    ProcessNode,
    ReduceNode,
    SinkNode,
    SourceNode,
    TransformNode,
)
from headrace.graph.stages import Edge, Stage
from headrace.graph.windowing import TimeWindow, WholeInput
from headrace.runtime.metering.meter import StepMeter
from headrace.runtime.operators.joins import Join
from headrace.runtime.operators.operator import Operator
from headrace.runtime.operators.process import Process
from headrace.runtime.operators.sinks import SinkOperator
from headrace.runtime.operators.sources import SourceOperator
from headrace.runtime.operators.transforms import Forward, Transform
from headrace.runtime.operators.usercode import Guard
from headrace.runtime.plan import JobPlan
from headrace.runtime.reduce.direct import DirectReduce
from headrace.runtime.reduce.keyedreduce import KeyedReduce
from headrace.runtime.reduce.paned import PanedReduce
from headrace.runtime.reduce.reduce import Place, Reduce, WholeInputReduce, make_table
from headrace.runtime.reduce.sharedpanes import SharedPanes
from headrace.runtime.wire.channelmeter import ChannelMeter, Stamp
from headrace.runtime.wire.edges import Combiner, EdgeWriter
from headrace.runtime.wire.frames import sender_id
from headrace.runtime.wire.links import Link, Links
from headrace.state.table.rowtable import Partials

DeadLetter = Callable[[str, str, str], None]


def build_operators(
    plan: JobPlan, stage: int, dead_letter: DeadLetter | None
) -> tuple[dict[str, Operator], dict[str, Guard]]:
    """The stage's operators by name, inputs first, wired to each other; and their guards."""
    operators: dict[str, Operator] = {}
    guards: dict[str, Guard] = {}
    origins = {step.name: step.origin for step in plan.layout.passes}
    layout = plan.layout
    at = layout.stages[stage]
    for name in layout.hosted(at):
        if name in origins:
            operators[name] = Forward(name, 1, plan.schemas[origins[name]])
            continue
        node = plan.graph.by_name[name]
        guard = guards[name] = Guard(name, node.options.on_error or plan.graph.on_error, dead_letter)
        operators[name] = build_operator(plan, node, guard)
        operators[name].meter.read_write = node.options.latency == "read-write"
    for operator in operators.values():
        operator.meter.ages.share = plan.settings.sample_share
    if at.first == at.last:  # in a longer leg links decide, edge by edge
        for edge in layout.edges:
            if edge.border is None and edge.source in operators:
                operators[edge.source].outputs.append((operators[edge.target], edge.port))
    return operators, guards


def build_operator(plan: JobPlan, node: Node, guard: Guard) -> Operator:
    slices, settings = plan.settings.slices, plan.settings
    match node:
        case SourceNode():
            logs = plan.checkpoint / "headrace" / "logs"
            idle_us = int(settings.idle_s * 1e6)
            partitions = plan.partitions[node.name]
            return SourceOperator(node, plan.schemas[node.name], guard, partitions, logs, idle_us, eager=plan.eager)
        case TransformNode():
            return Transform(node, plan.schemas[node.name], guard, plan.time_columns[node.inputs[0]])
        case ReduceNode():
            schema, out = plan.schema_into(node.name), plan.schemas[node.name]
            return build_reduce(node, schema, out, guard, Place(slices), eager=plan.eager)
        case PaneNode():
            return SharedPanes(node.table, plan.schema_into(node.name), guard, Place(slices))
        case ProcessNode():
            schema, out = plan.schema_into(node.name), plan.schemas[node.name]
            return Process(node, schema, out, guard, slices, debug=settings.debug_state)
        case JoinNode():
            sides = plan.schema_into(node.name, 0), plan.schema_into(node.name, 1)
            return Join(node, sides, plan.schemas[node.name], slices)
        case SinkNode():
            return SinkOperator(node)
        case _:
            return Forward(node.name, len(node.inputs), plan.schemas[node.name])


def build_reduce(
    node: ReduceNode, schema: pa.Schema, out: pa.Schema, guard: Guard, place: Place, *, eager: bool
) -> Reduce:
    """The operator for a reduce step's window."""
    match node.window:
        case TimeWindow():
            return (PanedReduce if can_combine(node) else DirectReduce)(node, schema, out, guard, place)
        case WholeInput():
            return WholeInputReduce(node, schema, out, guard, place)
        case _:
            return KeyedReduce(node, schema, out, guard, place, eager=eager)


def build_edges(
    plan: JobPlan, stage: int, sender: int, guards: dict[str, Guard], dead_letter: DeadLetter | None
) -> list[EdgeWriter]:
    """The edges that leave the stage."""
    if stage + 1 >= len(plan.layout.stages):
        return []
    after = plan.layout.stages[stage + 1]
    targets = range(after.subtasks) if after.shuffled else range(sender, sender + 1)
    slices, nowhere = plan.settings.slices, np.zeros(0, np.int64)
    return [
        EdgeWriter(
            edge, sender, after.subtasks, targets, slices, nowhere,
            build_combiner(plan, edge, guards, dead_letter), active=after.active, turn=sender,
        )
        for edge in plan.layout.border(stage + 1)
    ]  # fmt: skip


def build_links(
    plan: JobPlan, stage: Stage, index: int, operators: Mapping[str, Operator], border: list[EdgeWriter],
    stamp: Stamp,
) -> Links:  # fmt: skip
    """The edges of a leg of several stages at one of them, wired to the operators it hosts."""
    links: dict[int, Link] = {}
    origins = {step.name: step.origin for step in plan.layout.passes}
    ways_out = {edge.edge.id: edge for edge in border}
    sender = sender_id(stage.index - stage.first, index)
    for edge in plan.layout.inside(stage):
        ends = {edge.source, edge.target}
        if ends <= operators.keys() and not ends & plan.layout.movable:
            operators[edge.source].outputs.append((operators[edge.target], edge.port))
            continue  # both stay here
        writer = None
        if stage.index < stage.last:
            inner = replace(edge, keys=(), keyed=False, spread=False)
            own = range(index, index + 1)
            writer = EdgeWriter(inner, sender, stage.subtasks, own, plan.settings.slices, np.zeros(0, np.int64))
        target = ways_out.get(edge.id) or operators.get(edge.target)
        step = target.meter if isinstance(target, Operator) else StepMeter(edge.target)
        meter = ChannelMeter(edge.id, step, plan.settings.sample_share, stamp)
        schema = plan.schemas[origins.get(edge.source, edge.source)]
        links[edge.id] = Link(edge, schema, target, writer, meter)
        if edge.source in operators:
            operators[edge.source].outputs.append((links[edge.id], edge.port))
    return Links(plan.layout, stage, links, stamp)


def build_combiner(
    plan: JobPlan, edge: Edge, guards: dict[str, Guard], dead_letter: DeadLetter | None
) -> Combiner | None:
    node = plan.graph.by_name.get(edge.target)
    if isinstance(node, PaneNode):
        node = node.table
    if not isinstance(node, ReduceNode) or not can_combine(node):
        return None
    if node.late == "shed" and plan.eager:
        return None  # what is shed is counted in records
    on_error = node.options.on_error or plan.graph.on_error
    guard = guards.setdefault(f"{node.name} (combine)", Guard(node.name, on_error, dead_letter))
    table = make_table(node, plan.schema_into(node.name), plan.schemas[node.name], guard, 1)
    window = node.window if isinstance(node.window, TimeWindow) else None
    return Combiner(Partials(table.key_fields, table.accumulators), node.keys, window)
