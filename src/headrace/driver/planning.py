"""From a job to a compiled plan: validation, schemas, stages. Pure but for sampling sources."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from headrace.actuate.controljob import control_job
from headrace.api.job import Jobs, graph_of
from headrace.config import Settings
from headrace.connect.collect import CollectHere, collect_sink
from headrace.connect.source import Source
from headrace.driver.identity import NEW, known_identity
from headrace.driver.schemafinding import infer
from headrace.errors import GraphError
from headrace.graph.granularity import default_slices
from headrace.graph.nodes import Graph, LateNode, Node, PaneNode, ReduceNode, SinkNode, SourceNode
from headrace.graph.reduction import Aggregate
from headrace.graph.sharing import share
from headrace.graph.stages import lay_out
from headrace.graph.validate import validate
from headrace.runtime.plan import JobPlan


def plan_job(job: Jobs, checkpoint: Path, settings: Settings, *, collect: bool = False) -> JobPlan:
    """Validate a job, or several that run together, fix its schemas and lay it out in stages.

    ``collect``: replace all sinks by ones that keep their rows under the checkpoint, and give one to
    every stream that nothing reads. The number of slices is the user's, else the checkpoint's, else by the rule.
    """
    graph = graph_of(job, need_sink=not collect)
    graph = collecting(graph, checkpoint / "collected", every=collect)
    validate(graph)
    known = known_identity(checkpoint) or NEW
    if settings.share:
        graph = share(graph, known.sharing)
    if settings.mode == "batch":
        refuse_endless(graph, "batch mode")
    inferred = infer(graph, known.schemas)
    layout = lay_out(graph, settings.parallelism, dynamic=settings.chaining == "dynamic")
    first = layout.stages[0].subtasks
    partitions = {
        node.name: partitions_of(node.source, first, known.partitions(node.name))
        for node in graph.nodes
        if isinstance(node, SourceNode)
    }
    plan = JobPlan(
        uuid.uuid4().hex,
        graph,
        layout,
        inferred.schemas | pruned(graph, inferred.schemas),
        inferred.time_columns,
        partitions,
        settings,
        checkpoint,
        inferred.schemas,
        settings.slices or known.slices or default_slices(layout),
    )
    control_job(plan)  # refuses constraints that no controller could keep together
    return plan


def refuse_endless(graph: Graph, where: str) -> None:
    """GraphError for a source that never ends, where a job is run to its end."""
    for node in graph.nodes:
        if isinstance(node, SourceNode) and not node.source.bounded:
            raise GraphError(
                f"source {node.name!r} never ends, so {where} would not either; bound it or use another mode"
            )


def pruned(graph: Graph, schemas: dict[str, pa.Schema]) -> dict[str, pa.Schema]:
    """Schemas of the sources of which only some columns are ever read."""
    narrow = {}
    for node in graph.nodes:
        if isinstance(node, SourceNode) and (columns := needed_columns(graph, node)):
            narrow[node.name] = pa.schema([field for field in schemas[node.name] if field.name in columns])
        elif isinstance(node, PaneNode) and node.inputs[0] in narrow:
            narrow[node.name] = narrow[node.inputs[0]]
    return narrow


def needed_columns(graph: Graph, source: SourceNode) -> set[str] | None:
    """The columns that steps read, or None if one of them (a user's function, a sink) sees whole records."""
    needed = {source.event_time} if source.event_time is not None else set()
    for node, _ in graph.consumers(source.name):
        if not isinstance(node, (ReduceNode, PaneNode)) or graph.late_wanted(node.name):
            return None
        needed.update(node.keys)
        for _, reducer in node.reducers:
            if not isinstance(reducer, Aggregate):
                return None
            needed.update(reducer.columns)
    return needed


def collecting(graph: Graph, directory: Path, *, every: bool) -> Graph:
    """The job with its ``hr.rows()`` sinks given a place, or with all results collected."""
    nodes: list[Node] = []
    for node in graph.nodes:
        if isinstance(node, SinkNode) and (every or isinstance(node.sink, CollectHere)):
            node = replace(node, sink=collect_sink(directory / node.name))
        nodes.append(node)
        unread = all(isinstance(reader, LateNode) for reader, _ in graph.consumers(node.name))
        if every and not isinstance(node, SinkNode) and unread:
            nodes.append(SinkNode(f"{node.name}.collected", collect_sink(directory / node.name), (node.name,)))
    return replace(graph, nodes=tuple(nodes))


def partitions_of(source: Source, subtasks: int, kept: int | None) -> int:
    """How many readers a source has: ``kept`` ones, as on its checkpoint, unless it was told another number.

    Positions are kept by partition, so their number cannot follow the parallelism. Only what Spark itself reads, a
    user's DataFrame, is divided among all subtasks there are.
    """
    if kept is not None and not hasattr(source, "frame") and source.partitions(kept) == kept:
        return kept
    return source.partitions(subtasks)
