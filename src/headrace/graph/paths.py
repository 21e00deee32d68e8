"""Paths through the workflow, and the latency bounds on them."""

from __future__ import annotations

from headrace.graph.nodes import Graph, SourceNode


def reachable(graph: Graph, start: str) -> set[str]:
    """The names of all steps downstream of ``start``, itself included."""
    seen, todo = {start}, [start]
    while todo:
        for node, _ in graph.consumers(todo.pop()):
            if node.name not in seen:
                seen.add(node.name)
                todo.append(node.name)
    return seen


def sources_of(graph: Graph, step: str) -> list[SourceNode]:
    """The sources whose records reach a step."""
    return [node for node in graph.nodes if isinstance(node, SourceNode) and step in reachable(graph, node.name)]


def bound_through(graph: Graph, step: str) -> int | None:
    """The tightest bound (µs), on a mean or a quantile, of all constraints whose path leads through a step."""
    after = reachable(graph, step)
    bounds = [
        constraint.mean_us if constraint.mean_us is not None else constraint.quantile_us
        for constraint in graph.constraints
        if constraint.end in after and step in reachable(graph, constraint.start)
    ]
    return min((bound for bound in bounds if bound is not None), default=None)
