"""From any DAG to one linear chain of stages.

A step that is keyed, or elastic, starts a new leg: the run of stages between two shuffles. Most legs
are one stage; a step with ``chain=False`` opens another one in its leg, a process of its own, and with
dynamic chaining every step may have its own. Every step sits at its longest-path depth, so each edge
leads to the same or a later leg; an edge that skips legs passes through them by ``Pass`` entries. Sinks stay where
they are, in the last stage of their leg, which with dynamic chaining is theirs alone.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from headrace.graph.nodes import Graph, LookupNode, Node, SinkNode, SourceNode, TransformNode, UnionNode, is_keyed


@dataclass(frozen=True, slots=True)
class Edge:
    """A channel between two neighbouring legs, or inside one (``border`` is None then).

    At a border: ``keyed`` rows are routed by the slice of ``keys``, ``spread`` ones go to all active
    subtasks in turn, others keep their subtask's index where the receiver has that many subtasks.
    """

    id: int
    source: str
    target: str
    port: int
    border: int | None
    keys: tuple[str, ...] = ()
    keyed: bool = False
    spread: bool = False


@dataclass(frozen=True, slots=True)
class Pass:
    """A step that an edge runs through unchanged on its way to a later leg."""

    name: str
    origin: str
    stage: int


@dataclass(frozen=True, slots=True)
class Stage:
    """The steps hosted by one Spark stage at the start, inputs first.

    ``subtasks`` are allocated, ``active`` of them get work at the start; at least ``minimum`` and at most
    ``maximum`` may ever be active. Fewer than the maximum are allocated only where executors come and go
    (``graph.slots``). ``first`` and ``last`` are the stages of its leg.
    """

    index: int
    steps: tuple[str, ...]
    subtasks: int
    shuffled: bool
    active: int
    minimum: int
    maximum: int
    first: int
    last: int

    @property
    def elastic(self) -> bool:
        return self.minimum < self.maximum


@dataclass(frozen=True, slots=True)
class Layout:
    """All stages and edges of a job; ``movable`` steps may run in any stage of their leg."""

    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...]
    passes: tuple[Pass, ...]
    stage_of: dict[str, int]
    movable: frozenset[str]
    apart: frozenset[str]

    @property
    def slots(self) -> int:
        """Spark task slots the job holds in real-time mode."""
        return sum(stage.subtasks for stage in self.stages)

    def border(self, index: int) -> tuple[Edge, ...]:
        """The edges that arrive at stage ``index`` through a shuffle."""
        return tuple(edge for edge in self.edges if edge.border == index)

    def inside(self, stage: Stage) -> tuple[Edge, ...]:
        """The edges that start in a stage's leg, inputs first: those within it and those that leave it."""
        return tuple(edge for edge in self.edges if self.stages[self.stage_of[edge.source]].first == stage.first)

    def hosted(self, stage: Stage) -> tuple[str, ...]:
        """The steps that a stage must be able to run: its own and all movable ones of its leg."""
        leg = range(stage.first, stage.last + 1)
        steps = [name for index in leg for name in self.stages[index].steps]
        return tuple(name for name in steps if self.stage_of[name] == stage.index or name in self.movable)

    @property
    def chained(self) -> frozenset[int]:
        """The edges whose steps share a process at the start."""
        return frozenset(
            edge.id
            for edge in self.edges
            if edge.border is None and self.stage_of[edge.source] == self.stage_of[edge.target]
        )

    def places(self, chained: AbstractSet[int]) -> dict[str, int]:
        """The stage of every step if just these edges are chained: each other edge leads one stage on."""
        places = {name: at for name, at in self.stage_of.items() if name not in self.movable}
        for edge in self.edges:  # a step's inputs are placed before it
            if edge.target in self.movable:
                stage = self.stages[self.stage_of[edge.target]]
                near = edge.id in chained and edge.target not in self.apart
                at = stage.first if edge.border is not None else places[edge.source] + (not near)
                places[edge.target] = min(max(at, places.get(edge.target, at)), stage.last)
        return places


def lay_out(graph: Graph, parallelism: int, *, dynamic: bool = False) -> Layout:
    """Place every step in a stage and route every edge; ``dynamic``: one stage per movable step."""
    leg: dict[str, int] = {}
    hop: dict[str, int] = {}
    for node in graph.nodes:
        above = max((leg[name] for name in node.inputs), default=0)
        leg[node.name] = above + 1 if node.inputs and _opens_leg(node) else above
        before = [hop[name] for name in node.inputs if leg[name] == leg[node.name]]
        own = _is_stateless(node) or (isinstance(node, SinkNode) and max(before, default=0) > 0)
        apart = bool(before) and (not node.options.chain or (dynamic and own))
        hop[node.name] = max(before, default=0) + apart
    hops = [1 + max(hop[name] for name in leg if leg[name] == at) for at in range(max(leg.values()) + 1)]
    for node in graph.nodes:
        if isinstance(node, SinkNode):
            hop[node.name] = hops[leg[node.name]] - 1
    first = [sum(hops[:at]) for at in range(len(hops))]
    edges, passes = _connect(graph, leg, first)
    stage_of = {name: first[leg[name]] + hop[name] for name in leg} | {p.name: p.stage for p in passes}
    stages: list[Stage] = []
    for at, start in enumerate(first):
        members = [node for node in graph.nodes if leg[node.name] == at]
        minimum, active, maximum = _subtasks(members, parallelism, rigid=at == 0)
        for index in range(start, start + hops[at]):
            steps = [p.name for p in passes if p.stage == index]
            steps += [node.name for node in members if stage_of[node.name] == index]
            shuffled = index == start and any(e.keyed or e.spread for e in edges if e.border == index)
            stages.append(
                Stage(index, tuple(steps), maximum, shuffled, active, minimum, maximum, start, start + hops[at] - 1)
            )
    movable = {n.name for n in graph.nodes if _is_stateless(n) and hops[leg[n.name]] > 1}
    apart_steps = frozenset(node.name for node in graph.nodes if not node.options.chain)
    return Layout(tuple(stages), tuple(edges), tuple(passes), stage_of, frozenset(movable), apart_steps)


def _connect(graph: Graph, leg: dict[str, int], first: list[int]) -> tuple[list[Edge], list[Pass]]:
    edges: list[Edge] = []
    passes: dict[tuple[str, int], Pass] = {}

    def connect(source: str, target: str, port: int, border: int | None, node: Node | None) -> None:
        at_border = border is not None and node is not None
        keyed = at_border and is_keyed(node)  # type: ignore[arg-type]
        keys: tuple[str, ...] = node.keys if keyed else ()  # type: ignore[union-attr]
        spread = at_border and not keyed and _is_elastic(node)  # type: ignore[arg-type]
        edges.append(Edge(len(edges), source, target, port, border, keys, keyed, spread))

    for node in graph.nodes:
        for port, origin in enumerate(node.inputs):
            source, at = origin, leg[origin]
            while at + 1 < leg[node.name]:
                at += 1
                step = passes.get((origin, at))
                if step is None:
                    step = passes[origin, at] = Pass(f"{origin}@{at}", origin, first[at])
                    connect(source, step.name, 0, first[at], None)
                source = step.name
            connect(source, node.name, port, first[at + 1] if at < leg[node.name] else None, node)
    return edges, list(passes.values())


def _subtasks(members: list[Node], parallelism: int, *, rigid: bool) -> tuple[int, int, int]:
    """Minimum, start and maximum: what the neediest step wants. Where sources are, it stays as it is."""
    wanted = [node.options.parallelism for node in members if node.options.parallelism is not None]
    start = max((p.start for p in wanted), default=parallelism)
    if rigid:
        return start, start, start
    return max((p.minimum for p in wanted), default=start), start, max((p.maximum for p in wanted), default=start)


def _is_stateless(node: Node) -> bool:
    return isinstance(node, (TransformNode, UnionNode, LookupNode))


def _is_elastic(node: Node) -> bool:
    wanted = node.options.parallelism
    return wanted is not None and wanted.minimum < wanted.maximum and not isinstance(node, (SourceNode, SinkNode))


def _opens_leg(node: Node) -> bool:
    return is_keyed(node) or _is_elastic(node)
