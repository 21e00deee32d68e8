"""From a plan to the operators of one stage's subtask, wired: once, for all attempts that it takes part in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from headrace.graph.combining import can_combine
from headrace.graph.nodes import (
    JoinNode,
    LateNode,
    LookupNode,
    Node,
    PaneNode,
    ProcessNode,
    ReduceNode,
    SinkNode,
    SourceNode,
    TransformNode,
)
from headrace.graph.paths import sources_of
from headrace.graph.windowing import Interval, TimeWindow, WholeInput
from headrace.runtime.operators.boundedjoin import BoundedIntervalJoin
from headrace.runtime.operators.intervaljoin import IntervalJoin
from headrace.runtime.operators.joins import Join
from headrace.runtime.operators.lookups import LookupOperator
from headrace.runtime.operators.operator import Operator
from headrace.runtime.operators.polling import Sources
from headrace.runtime.operators.process import Process
from headrace.runtime.operators.sinks import SinkOperator
from headrace.runtime.operators.sources import SourceOperator
from headrace.runtime.operators.transforms import Forward, Transform
from headrace.runtime.operators.usercode import DeadLetter, Guard
from headrace.runtime.plan import JobPlan
from headrace.runtime.reduce.direct import DirectReduce
from headrace.runtime.reduce.keyedreduce import KeyedReduce
from headrace.runtime.reduce.paned import PanedReduce
from headrace.runtime.reduce.reduce import Place, Reduce, WholeInputReduce
from headrace.runtime.reduce.sharedpanes import SharedPanes
from headrace.runtime.wire.channelmeter import Stamp
from headrace.runtime.wire.intake import Intake
from headrace.runtime.wire.outlet import Outlet
from headrace.runtime.wiring import Wiring


@dataclass(frozen=True, slots=True)
class BuiltStage:
    """What a subtask of one stage is made of. ``operators`` are by name, inputs first, wired to each other and to the
    edges of ``outlet``; ``intake`` feeds them. ``guards`` are those of users' functions, by step.
    """

    operators: Mapping[str, Operator]
    guards: Mapping[str, Guard]
    sources: Sources
    sinks: tuple[SinkOperator, ...]
    intake: Intake
    outlet: Outlet


def build_stage(
    plan: JobPlan, stage: int, dead_letter: DeadLetter | None = None, stamp: Stamp | None = None
) -> BuiltStage:
    """Make and wire all that a subtask of the stage hosts; which of its subtasks it is may change with every attempt."""
    operators, guards = _build_operators(plan, stage, dead_letter)
    made = operators.values()
    sources = Sources([operator for operator in made if isinstance(operator, SourceOperator)])
    sinks = tuple(operator for operator in made if isinstance(operator, SinkOperator))
    wiring = Wiring(plan, plan.layout.stages[stage], operators, guards, dead_letter, stamp or Stamp())
    border = wiring.border()
    links = wiring.connect(border)
    inbound = {edge.id: wiring.inbound(edge) for edge in plan.layout.border(stage)}
    intake = Intake(plan, stage, inbound, links, sources, wiring.stamp)
    return BuiltStage(operators, guards, sources, sinks, intake, Outlet(plan, stage, border, links, wiring.stamp))


def _build_operators(
    plan: JobPlan, stage: int, dead_letter: DeadLetter | None
) -> tuple[dict[str, Operator], dict[str, Guard]]:
    operators: dict[str, Operator] = {}
    guards: dict[str, Guard] = {}
    origins = {step.name: step.origin for step in plan.layout.passes}
    for name in plan.layout.hosted(plan.layout.stages[stage]):
        if name in origins:
            operators[name] = Forward(name, 1, plan.schemas[origins[name]])
        else:
            node = plan.graph.by_name[name]
            guard = guards[name] = Guard(name, node.options.on_error or plan.graph.on_error, dead_letter)
            operators[name] = build_operator(plan, node, guard)
            operators[name].meter.read_write = node.options.latency == "read-write"
        operators[name].meter.ages.share = plan.settings.sample_share
    return operators, guards


def build_operator(plan: JobPlan, node: Node, guard: Guard) -> Operator:
    slices, settings = plan.slices, plan.settings
    match node:
        case SourceNode():
            logs = plan.checkpoint / "headrace" / "logs"
            idle_us = int(settings.idle_s * 1e6)
            partitions = plan.partitions[node.name]
            alone = partitions == 1 and sum(isinstance(other, SourceNode) for other in plan.graph.nodes) == 1
            schema = plan.schemas[node.name]
            return SourceOperator(node, schema, guard, partitions, logs, idle_us, eager=plan.eager, alone=alone)
        case TransformNode():
            return Transform(node, plan.schemas[node.name], guard, plan.time_columns[node.inputs[0]])
        case ReduceNode():
            schema, out = plan.schema_into(node.name), plan.schemas[node.name]
            return build_reduce(node, schema, out, guard, Place(slices), eager=plan.eager)
        case PaneNode():
            readers = [reader for reader, _ in plan.graph.consumers(node.name) if isinstance(reader, ReduceNode)]
            return SharedPanes(node.table, plan.schema_into(node.name), guard, Place(slices), readers)
        case ProcessNode():
            schema, out = plan.schema_into(node.name), plan.schemas[node.name]
            timeless = all(source.event_time is None for source in sources_of(plan.graph, node.name))
            return Process(node, schema, out, guard, slices, timeless=timeless, debug=settings.debug_state)
        case JoinNode():
            sides = plan.schema_into(node.name, 0), plan.schema_into(node.name, 1)
            if not isinstance(node.window, Interval):
                return Join(node, sides, plan.schemas[node.name], slices)
            kind = IntervalJoin if node.memory_bytes is None else BoundedIntervalJoin
            return kind(node, sides, plan.schemas[node.name], slices)
        case LookupNode():
            return LookupOperator(node, plan.schema_into(node.name), plan.schemas[node.name])
        case SinkNode():
            return SinkOperator(node)
        case LateNode():
            return Forward(node.name, 1, plan.schemas[node.name])
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
