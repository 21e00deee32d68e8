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
from headrace.driver.identity import Identity, known_identity
from headrace.driver.schemafinding import infer
from headrace.errors import GraphError
from headrace.graph.nodes import Graph, Node, PaneNode, SinkNode, SourceNode
from headrace.graph.pruning import needed_columns
from headrace.graph.sharing import share
from headrace.graph.stages import lay_out
from headrace.graph.validate import validate
from headrace.runtime.plan import JobPlan


def plan_job(job: Jobs, checkpoint: Path, settings: Settings, *, collect: bool = False) -> JobPlan:
    """Validate a job, or several that run together, fix its schemas and lay it out in stages.

    ``collect``: replace all sinks by ones that keep their rows under the checkpoint, and give one to
    every stream that nothing reads.
    """
    graph = graph_of(job, need_sink=not collect)
    graph = collecting(graph, checkpoint / "collected", every=collect)
    validate(graph)
    known = known_identity(checkpoint)
    if settings.share:
        graph = share(graph, known.sharing) if known is not None else share(graph)
    if settings.mode == "batch":
        for node in graph.nodes:
            if isinstance(node, SourceNode) and not node.source.bounded:
                raise GraphError(
                    f"source {node.name!r} never ends, so batch mode would not either; bound it or use another mode"
                )
    inferred = infer(graph, known.schemas if known is not None else {})
    layout = lay_out(graph, settings.parallelism, dynamic=settings.chaining == "dynamic")
    partitions = _partitions(graph, layout.stages[0].subtasks, known)
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
    )
    control_job(plan)  # refuses constraints that no controller could keep together
    return plan


def pruned(graph: Graph, schemas: dict[str, pa.Schema]) -> dict[str, pa.Schema]:
    """Schemas of the sources of which only some columns are ever read."""
    narrow = {}
    for node in graph.nodes:
        if isinstance(node, SourceNode) and (columns := needed_columns(graph, node)):
            narrow[node.name] = pa.schema([field for field in schemas[node.name] if field.name in columns])
        elif isinstance(node, PaneNode) and node.inputs[0] in narrow:
            narrow[node.name] = narrow[node.inputs[0]]
    return narrow


def collecting(graph: Graph, directory: Path, *, every: bool) -> Graph:
    """The job with its ``hr.rows()`` sinks given a place, or with all results collected."""
    nodes: list[Node] = []
    for node in graph.nodes:
        if isinstance(node, SinkNode) and (every or isinstance(node.sink, CollectHere)):
            node = replace(node, sink=collect_sink(directory / node.name))
        nodes.append(node)
        if every and not isinstance(node, SinkNode) and not graph.consumers(node.name):
            nodes.append(SinkNode(f"{node.name}.collected", collect_sink(directory / node.name), (node.name,)))
    return replace(graph, nodes=tuple(nodes))


def _partitions(graph: Graph, subtasks: int, known: Identity | None) -> dict[str, int]:
    """How many readers each source has: as many as on its checkpoint, unless it was told another number.

    Positions are kept by partition, so their number cannot follow the parallelism. Only Spark itself, which reads a
    user's DataFrame, divides it among all subtasks there are.
    """
    partitions = {}
    for node in graph.nodes:
        if isinstance(node, SourceNode):
            before = known.known(node.name) if known is not None else None
            kept = before.partitions if before is not None and not hasattr(node.source, "frame") else None
            follows = kept is not None and node.source.partitions(kept) == kept
            partitions[node.name] = kept if kept is not None and follows else node.source.partitions(subtasks)
    return partitions
