"""Run what is equal once (C-MR, section 2.6): equal steps over equal inputs, and panes of windows over one stream.

A step that is the same as an earlier one (same kind, parameters, functions and inputs) is left out, and whatever reads
it reads the earlier one. Reduce steps that then read one stream by the same keys get a common table of panes,
whose length is the highest common factor of all their sizes and slides. Answers stay the same.

What a step has on a checkpoint is in its own state or in shared panes, so there steps go on sharing as they did, and
those that are new share among themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd

from headrace.graph.combining import can_combine
from headrace.graph.equality import same
from headrace.graph.nodes import Graph, Node, PaneNode, ReduceNode, SinkNode, SourceNode
from headrace.graph.reduction import Reducer
from headrace.graph.windowing import TimeWindow

_FINEST = 16
"""A common pane has at least this share of the length of the shortest pane it replaces: in finer ones, two values of a
key would hardly ever meet, and nothing would be saved."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """What a checkpoint knows of it: the steps with state of their own, and the panes with the steps they feed."""

    stateful: frozenset[str] = frozenset()
    panes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def panes_of(self, step: str) -> str | None:
        """The panes that feed a step; its own name if it has none, None if the step is new."""
        shared = next((name for name, readers in self.panes.items() if step in readers), None)
        return shared or (step if step in self.stateful else None)


def share(graph: Graph, before: Sharing = Sharing()) -> Graph:
    """The graph with equal steps merged and panes shared; ``graph.shared`` says what runs as what."""
    return _with_panes(_merged(graph, before), before)


def _merged(graph: Graph, before: Sharing) -> Graph:
    runs_as: dict[str, str] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        node = replace(node, inputs=tuple(runs_as[name] for name in node.inputs))
        equals = [other for other in kept if node.name not in before.stateful and _equal(graph, node, other)]
        equal = min(equals, key=lambda other: other.name not in before.stateful, default=None)
        runs_as[node.name] = equal.name if equal is not None else node.name
        if equal is None:
            kept.append(node)
    constraints = tuple(replace(c, start=runs_as[c.start], end=runs_as[c.end]) for c in graph.constraints)
    shared = tuple((name, other) for name, other in runs_as.items() if name != other)
    return replace(graph, nodes=tuple(kept), constraints=constraints, shared=shared)


def _equal(graph: Graph, node: Node, other: Node) -> bool:
    """Whether one of the two steps can stand for both."""
    if isinstance(node, SinkNode) or not node.options.deterministic:
        return False
    if isinstance(node, SourceNode) and node.source.live and node.source is not getattr(other, "source", None):
        return False  # equal descriptions of something live, such as a socket, may be meant to be read twice
    if graph.letters_of(node.name) != graph.letters_of(other.name):
        return False
    return same(replace(node, name=other.name), other)


@dataclass(frozen=True, slots=True)
class _Group:
    """Reduce steps that may share panes; ``panes`` are those that they shared before, None if the steps are new."""

    panes: str | None
    steps: list[ReduceNode] = field(default_factory=list)
    windows: list[TimeWindow] = field(default_factory=list)

    @property
    def pane_us(self) -> int:
        return gcd(*(us for window in self.windows for us in (window.size_us, window.every_us)))

    @property
    def saves(self) -> bool:
        return len(self.steps) > 1 and self.pane_us * _FINEST >= min(window.pane_us for window in self.windows)


def _with_panes(graph: Graph, before: Sharing) -> Graph:
    panes: dict[str, PaneNode] = {}
    fed: dict[str, ReduceNode] = {}
    for group in _groups(graph, before):
        if group.saves if group.panes is None else group.panes in before.panes:
            name = _free_name(graph, group.panes or f"{group.steps[0].name}.panes")
            givers = _as_before(group.steps, before.panes.get(name, ()))
            panes[group.steps[0].name] = node = _pane_node(name, group.pane_us, givers)
            fed |= {step.name: _fed(step, node) for step in group.steps}
    nodes: list[Node] = []
    for step in graph.nodes:
        if step.name in panes:
            nodes.append(panes[step.name])
        nodes.append(fed.get(step.name, step))
    return replace(graph, nodes=tuple(nodes))


def _groups(graph: Graph, before: Sharing) -> list[_Group]:
    """Steps with one input, the same keys and options, and states that can be merged, as far as they shared before."""
    groups: list[_Group] = []
    for node in graph.nodes:
        if not isinstance(node, ReduceNode) or not isinstance(node.window, TimeWindow) or not _may_share(node):
            continue
        panes = before.panes_of(node.name)
        alike = [group for group in groups if group.panes == panes and _alike(graph, group.steps[0], node)]
        if not alike:
            if panes is not None and any(group.panes == panes for group in groups):
                continue  # it has become unlike those that it shared panes with, which keep them
            groups.append(_Group(panes))
            alike = groups[-1:]
        alike[0].steps.append(node)
        alike[0].windows.append(node.window)
    return groups


def _as_before(steps: Sequence[ReduceNode], readers: tuple[str, ...]) -> list[ReduceNode]:
    """The steps in the order in which they gave the panes their reducers."""
    order = {name: i for i, name in enumerate(readers)}
    return sorted(steps, key=lambda step: order.get(step.name, len(order)))


def _may_share(node: ReduceNode) -> bool:
    """Memory bounds are of one step's panes, ``at_least`` looks at them as they grow, and each step sheds its own."""
    plain = node.memory_bytes is None and node.at_least is None and node.overload is None and node.options.deterministic
    return plain and can_combine(node)


def _alike(graph: Graph, one: ReduceNode, other: ReduceNode) -> bool:
    options = (replace(node.options, returns=None) for node in (one, other))
    places = ((node.inputs, node.keys, graph.letters_of(node.name)) for node in (one, other))
    return same(*options) and same(*places)


def _pane_node(name: str, pane_us: int, steps: Sequence[ReduceNode]) -> PaneNode:
    reducers: list[Reducer] = []
    for step in steps:
        for _, reducer in step.reducers:
            if not any(same(reducer, known) for known in reducers):
                reducers.append(reducer)
    columns = tuple((f"pane.{i}", reducer) for i, reducer in enumerate(reducers))
    options = replace(steps[0].options, returns=None)
    return PaneNode(name, steps[0].keys, pane_us, columns, steps[0].inputs, options)


def _fed(step: ReduceNode, panes: PaneNode) -> ReduceNode:
    columns = (next(name for name, known in panes.reducers if same(known, own)) for _, own in step.reducers)
    options = replace(step.options, parallelism=None)  # it runs where its panes are
    return replace(step, inputs=(panes.name,), pane_columns=tuple(columns), options=options)


def _free_name(graph: Graph, name: str) -> str:
    while name in graph.by_name:
        name += "_"
    return name
