"""Several jobs as one graph, so that they run as one query and what is equal in them can run once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

from headrace.errors import GraphError
from headrace.graph.equality import same
from headrace.graph.nodes import Constraint, Graph, Letters, Node


def together(graphs: Sequence[Graph]) -> Graph:
    """One graph of jobs with different names: ``step`` of ``job`` becomes ``job.step``.

    Each job keeps its constraints, its dead letters, and what it does with errors.
    """
    if not graphs:
        raise GraphError("there is no job to run; give at least one")
    for one, other in permutations((graph.job for graph in graphs), 2):
        if one == other or other.startswith(f"{one}."):
            raise GraphError(f"jobs {one!r} and {other!r} cannot run together: names of their steps could be equal")
    return Graph(
        "+".join(graph.job for graph in graphs),
        tuple(_prefixed(graph, node) for graph in graphs for node in graph.nodes),
        tuple(_moved(graph, constraint) for graph in graphs for constraint in graph.constraints),
        letters=_letters(graphs),
    )


def _prefixed(graph: Graph, node: Node) -> Node:
    options = replace(node.options, on_error=node.options.on_error or graph.on_error)
    inputs = tuple(f"{graph.job}.{name}" for name in node.inputs)
    return replace(node, name=f"{graph.job}.{node.name}", inputs=inputs, options=options)


def _moved(graph: Graph, constraint: Constraint) -> Constraint:
    return replace(constraint, start=f"{graph.job}.{constraint.start}", end=f"{graph.job}.{constraint.end}")


def _letters(graphs: Sequence[Graph]) -> tuple[Letters, ...]:
    """The jobs' dead-letter sinks; jobs with equal ones share one."""
    made: list[Letters] = []
    for graph in graphs:
        for letters in graph.letters:
            known = next((other for other in made if same(other.sink, letters.sink)), None)
            name = known.name if known is not None else f"{graph.job}.{letters.name}"
            made.append(Letters(name, f"{graph.job}.", letters.sink))
    return tuple(made)
