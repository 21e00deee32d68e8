"""Draw a job for people: one paragraph per stage, steps in order, arrows to what they feed."""

from __future__ import annotations

from headrace.graph.memory import engine_of
from headrace.graph.nodes import (
    Graph,
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
from headrace.graph.stages import Layout
from headrace.graph.windowing import Interval
from headrace.units import in_words, number_of


def render(graph: Graph, layout: Layout) -> str:
    """The graph as text.

    Stages stand one below the other; a shuffle between two stages is shown with the keys it uses.
    """
    lines = [f"job {graph.job}"]
    for stage in layout.stages:
        if stage.index:
            keys = sorted({", ".join(edge.keys) for edge in layout.border(stage.index) if edge.keyed})
            how = f"shuffle by {' | '.join(keys)}" if stage.shuffled else "same subtask, next process"
            lines.append(f"   │ {how}")
        lines.append(f"┌─ stage {stage.index} × {number_of(stage.subtasks, 'subtask')}")
        for name in stage.steps:
            targets = [edge.target for edge in layout.edges if edge.source == name]
            arrow = f"  → {', '.join(targets)}" if targets else ""
            node = graph.by_name.get(name)
            lines.append(f"│  {name}: {describe(node) if node else 'pass through'}{arrow}")
        lines.append("└─")
    if graph.shared:
        lines.append("shared")
        lines += [f"   {step}: runs as {other}, which is the same" for step, other in graph.shared]
    if graph.constraints:
        lines.append("constraints")
        lines += [f"   {constraint.describe()}" for constraint in graph.constraints]
    return "\n".join(lines)


def describe(node: Node) -> str:
    """One line about what a step does."""
    match node:
        case SourceNode():
            time = f", event time {node.event_time!r}" if node.event_time else ""
            return f"source {node.source.describe()}{time}"
        case SinkNode():
            return f"sink {node.sink.describe()}"
        case TransformNode():
            return f"{node.kind} {getattr(node.fn, '__name__', 'function')}"
        case ReduceNode():
            what = ", ".join(f"{name}={reducer.describe()}" for name, reducer in node.reducers)
            over = node.window.describe() if node.window else "running"
            minimum = f", at least {node.at_least[0]} {node.at_least[1]:g}" if node.at_least else ""
            alone = ", nothing combined" if node.combine is False else ""
            return f"reduce by {', '.join(node.keys)} over {over}: {what}{minimum}{alone}{_memory(node)}"
        case PaneNode():
            what = ", ".join(reducer.describe() for _, reducer in node.reducers)
            return f"panes of {node.pane_us / 1e6:g} s by {', '.join(node.keys)}: {what}"
        case ProcessNode():
            kept = {name: f" for {in_words(state.ttl_us / 1e6)}" if state.ttl_us else "" for name, state in node.state}
            return f"process by {', '.join(node.keys)}, state {', '.join(map(''.join, kept.items())) or 'none'}"
        case JoinNode():
            over = "" if isinstance(node.window, Interval) else "over "
            memory = f", {node.memory_bytes / 1e6:g} MB per subtask" if node.memory_bytes is not None else ""
            return f"{node.how} join by {', '.join(node.keys)} {over}{node.window.describe()}{memory}"
        case LateNode():
            return f"what comes too late for {node.inputs[0]}"
        case LookupNode():
            return f"{node.how} lookup of {', '.join(node.on)} in {node.table.describe()}"
        case _:
            return "union"


def _memory(node: ReduceNode) -> str:
    if node.memory_bytes is None:
        return ""
    engine, why = engine_of(node)
    return f", {node.memory_bytes / 1e6:g} MB per subtask, engine {engine} ({why})"
