"""Which columns of a source the job can ever look at."""

from __future__ import annotations

from headrace.graph.nodes import Graph, PaneNode, ReduceNode, SourceNode
from headrace.graph.reduction import Aggregate


def needed_columns(graph: Graph, source: SourceNode) -> set[str] | None:
    """The columns that steps read, or None if one of them (a user's function, a sink) sees whole records."""
    needed = {source.event_time} if source.event_time is not None else set()
    for node, _ in graph.consumers(source.name):
        if not isinstance(node, (ReduceNode, PaneNode)):
            return None
        needed.update(node.keys)
        for _, reducer in node.reducers:
            if not isinstance(reducer, Aggregate):
                return None
            needed.update(reducer.columns)
    return needed
