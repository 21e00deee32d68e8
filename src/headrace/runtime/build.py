"""From a plan to the operators and edges of one stage's subtask."""

from __future__ import annotations

from collections.abc import Callable

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
from headrace.graph.stages import Edge
from headrace.graph.windows import CountWindow, SessionWindow, TimeWindow, WholeInput
from headrace.runtime.edges import Combiner, EdgeWriter
from headrace.runtime.ends import Sink, Source
from headrace.runtime.joining import Join
from headrace.runtime.operators import Forward, Operator, Transform
from headrace.runtime.paned import PanedReduce
from headrace.runtime.plan import JobPlan
from headrace.runtime.process import Process
from headrace.runtime.reducing import CountReduce, Place, Reduce, RunningReduce, WholeInputReduce, make_table
from headrace.runtime.sessions import SessionReduce
from headrace.runtime.sharedpanes import SharedPanes
from headrace.runtime.usercode import Guard
from headrace.runtime.windowed import DirectReduce
from headrace.state.table import Partials

DeadLetter = Callable[[str, str, str], None]


def build_operators(
    plan: JobPlan, stage: int, dead_letter: DeadLetter | None
) -> tuple[dict[str, Operator], dict[str, Guard]]:
    """The stage's operators by name, inputs first, wired to each other; and their guards."""
    operators: dict[str, Operator] = {}
    guards: dict[str, Guard] = {}
    origins = {step.name: step.origin for step in plan.layout.passes}
    for name in plan.layout.stages[stage].steps:
        if name in origins:
            operators[name] = Forward(name, 1, plan.schemas[origins[name]])
            continue
        node = plan.graph.by_name[name]
        guard = guards[name] = Guard(name, node.options.on_error or plan.graph.on_error, dead_letter)
        operators[name] = build_operator(plan, node, guard)
    for edge in plan.layout.edges:
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
            return Source(node, plan.schemas[node.name], guard, partitions, logs, idle_us, eager=plan.eager)
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
            return Sink(node)
        case _:
            return Forward(node.name, len(node.inputs), plan.schemas[node.name])


def build_reduce(
    node: ReduceNode, schema: pa.Schema, out: pa.Schema, guard: Guard, place: Place, *, eager: bool
) -> Reduce:
    """The operator for a reduce step's window."""
    match node.window:
        case None:
            return RunningReduce(node, schema, out, guard, place, eager=eager)
        case TimeWindow():
            return (PanedReduce if can_combine(node) else DirectReduce)(node, schema, out, guard, place)
        case SessionWindow():
            return SessionReduce(node, schema, out, guard, place)
        case CountWindow():
            return CountReduce(node, schema, out, guard, place)
        case WholeInput():
            return WholeInputReduce(node, schema, out, guard, place)


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
            edge, sender, after.subtasks, targets, slices, nowhere, build_combiner(plan, edge, guards, dead_letter)
        )
        for edge in plan.layout.border(stage + 1)
    ]


def build_combiner(
    plan: JobPlan, edge: Edge, guards: dict[str, Guard], dead_letter: DeadLetter | None
) -> Combiner | None:
    node = plan.graph.by_name.get(edge.target)
    if isinstance(node, PaneNode):
        node = node.table
    if not isinstance(node, ReduceNode) or not can_combine(node):
        return None
    on_error = node.options.on_error or plan.graph.on_error
    guard = guards.setdefault(f"{node.name} (combine)", Guard(node.name, on_error, dead_letter))
    table = make_table(node, plan.schema_into(node.name), plan.schemas[node.name], guard, 1)
    window = node.window if isinstance(node.window, TimeWindow) else None
    return Combiner(Partials(table.key_fields, table.accumulators), node.keys, window)
