"""Which reduce steps may work on partial aggregates, and whether overlapping windows may share panes."""

from __future__ import annotations

from headrace.errors import GraphError
from headrace.graph.memory import engine_of
from headrace.graph.nodes import ReduceNode
from headrace.graph.reduction import Aggregate
from headrace.graph.windowing import CountWindow, SessionWindow, TimeWindow


def can_combine(node: ReduceNode) -> bool:
    """Whether partial aggregates may be made before the shuffle and shared between windows."""
    return node.combine is not False and _obstacle(node) is None


def chooses_panes(node: ReduceNode) -> bool:
    """Whether the step decides while it runs if its windows share panes or are kept one by one.

    Under a memory bound they always share, since panes are what the bound is kept for; and for users' reducers,
    since a record that ``update`` refuses should be reported once, not once per window.
    """
    if node.combine != "auto" or not can_combine(node) or node.memory_bytes is not None:
        return False
    overlapping = isinstance(node.window, TimeWindow) and not node.window.tumbling
    return overlapping and all(isinstance(reducer, Aggregate) for _, reducer in node.reducers)


def check_combine(node: ReduceNode) -> None:
    """Raise GraphError if ``combine=True`` is asked of a step whose windows cannot share panes."""
    if node.combine is not True:
        return
    obstacle = _obstacle(node)
    if obstacle is None and (not isinstance(node.window, TimeWindow) or node.window.tumbling):
        over = node.window.describe() if node.window else "all records so far"
        obstacle = f"only windows that overlap share panes, and it is over {over}"
    if obstacle is not None:
        raise GraphError(f"step {node.name!r}: combine=True, but {obstacle}; leave combine= out")


def _obstacle(node: ReduceNode) -> str | None:
    """Why the step needs its records as they are."""
    for name, reducer in node.reducers:
        if not reducer.mergeable:
            return f"{name}={reducer.describe()} has no combine= to merge two states with"
        if getattr(reducer, "early", None) is not None:
            return f"{name}={reducer.describe()} has early=, which looks at each window's state as it grows"
    if node.coverage is not None:
        return "coverage= counts records"
    if engine_of(node)[0] == "mr":
        return "engine 'mr' keeps records, not states"
    if isinstance(node.window, (SessionWindow, CountWindow)):
        return f"a window of its kind ({node.window.describe()}) has no panes"
    if isinstance(node.window, TimeWindow) and node.window.versioned:
        return "a versioned window counts the records of each version"
    return None
