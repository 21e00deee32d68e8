"""From any DAG to one linear chain of stages.

A keyed step starts a new stage; what lies between two keyed steps is chained into the stage before.
Every step sits at its longest-path depth, so each edge leads to the same or a later stage; an edge
that skips stages passes through them by ``Pass`` entries.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.graph.nodes import Graph, Node, is_keyed


@dataclass(frozen=True, slots=True)
class Edge:
    """A channel between two neighbouring stages, or inside one (``border`` is None then).

    ``keyed``: rows are routed by the slice of ``keys``; otherwise they stay on their subtask index.
    """

    id: int
    source: str
    target: str
    port: int
    border: int | None
    keys: tuple[str, ...] = ()
    keyed: bool = False


@dataclass(frozen=True, slots=True)
class Pass:
    """A step that an edge runs through unchanged on its way to a later stage."""

    name: str
    origin: str
    stage: int


@dataclass(frozen=True, slots=True)
class Stage:
    """The steps hosted by one Spark stage, inputs first."""

    index: int
    steps: tuple[str, ...]
    subtasks: int
    shuffled: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """All stages and edges of a job."""

    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...]
    passes: tuple[Pass, ...]
    stage_of: dict[str, int]

    @property
    def slots(self) -> int:
        """Spark task slots the job holds in real-time mode."""
        return sum(stage.subtasks for stage in self.stages)

    def border(self, index: int) -> tuple[Edge, ...]:
        """The edges that arrive at stage ``index`` from the stage before."""
        return tuple(edge for edge in self.edges if edge.border == index)


def lay_out(graph: Graph, parallelism: int) -> Layout:
    """Place every step in a stage and route every edge."""
    depth: dict[str, int] = {}
    for node in graph.nodes:
        above = max((depth[name] for name in node.inputs), default=0)
        depth[node.name] = above + 1 if node.inputs and _opens_stage(node) else above
    last = max(depth.values())

    edges: list[Edge] = []
    passes: dict[tuple[str, int], Pass] = {}

    def connect(source: str, target: str, port: int, border: int | None, node: Node | None) -> None:
        keyed = border is not None and node is not None and is_keyed(node)
        keys: tuple[str, ...] = node.keys if keyed else ()  # type: ignore[union-attr]
        edges.append(Edge(len(edges), source, target, port, border, keys, keyed))

    for node in graph.nodes:
        for port, origin in enumerate(node.inputs):
            source, at = origin, depth[origin]
            while at + 1 < depth[node.name]:
                at += 1
                step = passes.get((origin, at))
                if step is None:
                    step = passes[origin, at] = Pass(f"{origin}@{at}", origin, at)
                    connect(source, step.name, 0, at, None)
                source = step.name
            connect(source, node.name, port, at + 1 if at < depth[node.name] else None, node)

    stage_of = depth | {p.name: p.stage for p in passes.values()}
    stages: list[Stage] = []
    for index in range(last + 1):
        members = [p.name for p in passes.values() if p.stage == index]
        members += [node.name for node in graph.nodes if depth[node.name] == index]
        wanted = [
            node.options.parallelism.start
            for node in graph.nodes
            if depth[node.name] == index and node.options.parallelism is not None
        ]
        shuffled = any(edge.keyed for edge in edges if edge.border == index)
        subtasks = max(wanted, default=parallelism)
        if index and not shuffled:
            subtasks = stages[-1].subtasks  # a hop without shuffle keeps its partitions
        stages.append(Stage(index, tuple(members), subtasks, shuffled))
    return Layout(tuple(stages), tuple(edges), tuple(passes.values()), stage_of)


def _opens_stage(node: Node) -> bool:
    return is_keyed(node) or not node.options.chain
