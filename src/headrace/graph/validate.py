"""Checks that need no data, made before anything starts; each error names the step and the fix."""

from __future__ import annotations

from headrace.errors import GraphError
from headrace.graph.combining import check_combine
from headrace.graph.memory import check_memory
from headrace.graph.nodes import (
    Graph,
    JoinNode,
    LateNode,
    Node,
    ProcessNode,
    ReduceNode,
    SinkNode,
    SourceNode,
    TransformNode,
    UnionNode,
    is_keyed,
)
from headrace.graph.paths import bound_through, reachable, sources_of
from headrace.graph.reduction import Aggregate, UserReducer
from headrace.graph.windowing import CountWindow, Interval, SessionWindow, TimeWindow, WholeInput


def validate(graph: Graph, *, need_sink: bool = True) -> None:
    """Raise GraphError for the first thing that is wrong with the job."""
    _check_names(graph)
    _check_acyclic(graph)
    if not any(isinstance(node, SourceNode) for node in graph.nodes):
        raise GraphError(f"job {graph.job!r} has no source; add one with job.source(name, hr.replay(...))")
    if need_sink and not any(isinstance(node, SinkNode) for node in graph.nodes):
        raise GraphError(f"job {graph.job!r} has no sink; add .sink(name, hr.jsonl('out/')) to a stream")
    for node in graph.nodes:
        _check_windows(graph, node)
        if isinstance(node, LateNode):
            _check_late(graph, node)
        if isinstance(node, ReduceNode):
            check_memory(node)
            check_threshold(node)
            check_combine(node)
            check_overload(graph, node)
    for constraint in graph.constraints:
        if constraint.end not in reachable(graph, constraint.start):
            raise GraphError(
                f"constraint {constraint.describe()}: no path leads from {constraint.start!r} to "
                f"{constraint.end!r}; constrain a path of connected steps, upstream >> downstream"
            )


def _check_names(graph: Graph) -> None:
    seen: set[str] = set()
    for node in graph.nodes:
        if node.name in seen:
            raise GraphError(f"two steps are named {node.name!r}; a name is the key of a step's state: rename one")
        seen.add(node.name)
    for node in graph.nodes:
        for name in node.inputs:
            if name not in seen:
                raise GraphError(f"step {node.name!r} reads {name!r}, which is not a step of job {graph.job!r}")


def _check_acyclic(graph: Graph) -> None:
    done: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> None:
        if name in done:
            return
        if name in path:
            cycle = " → ".join([*path[path.index(name) :], name])
            raise GraphError(f"steps form a cycle: {cycle}; a workflow must be acyclic: break it at one of these steps")
        path.append(name)
        for source in graph.by_name[name].inputs:
            visit(source)
        done.add(path.pop())

    for node in graph.nodes:
        visit(node.name)


def _check_windows(graph: Graph, node: Node) -> None:
    if not isinstance(node, (ReduceNode, JoinNode)) or node.window is None:
        return
    window = node.window
    if isinstance(node, ReduceNode) and isinstance(window, (CountWindow, SessionWindow)):
        for name, reducer in node.reducers:
            if isinstance(reducer, UserReducer) and reducer.early is not None:
                raise GraphError(
                    f"step {node.name!r}: {name} has early=, which needs a tumbling or sliding window or the whole "
                    f"input, not {window.describe()}"
                )
    if isinstance(node, JoinNode) and not isinstance(window, (TimeWindow, Interval)):
        raise GraphError(f"join {node.name!r} needs a tumbling or sliding window, not {window.describe()}")
    if isinstance(window, (CountWindow, SessionWindow, WholeInput)) and window.versioned:
        raise GraphError(f"step {node.name!r}: hr.versioned takes a tumbling or sliding window")
    if isinstance(window, (TimeWindow, SessionWindow, Interval)):
        what = "joins by event time" if isinstance(window, Interval) else "has an event-time window"
        for source in sources_of(graph, node.name):
            if source.event_time is None and not _keeps_time(graph, source, node):
                raise GraphError(
                    f"step {node.name!r} {what}, but source {source.name!r} has no event time; "
                    f"give it one: job.source({source.name!r}, ..., event_time='column')"
                )
        for timeless in _timeless_before(graph, node):
            over = timeless.window.describe() if timeless.window else "all records so far"
            instead = f", or {node.name!r} hr.whole_input()" if isinstance(node, ReduceNode) else ""
            raise GraphError(
                f"step {node.name!r} {what}, but results of {timeless.name!r}, which are over {over}, belong to no time; "
                f"give {timeless.name!r} an event-time window{instead}"
            )


def _check_late(graph: Graph, node: LateNode) -> None:
    """Only records that are given a window by their own times can come after it has closed."""
    step = graph.by_name[node.inputs[0]]
    if isinstance(step, ProcessNode):
        raise GraphError(
            f"late() after process {step.name!r}: it gets every record itself; state.late says which are late"
        )
    if not isinstance(step, (ReduceNode, JoinNode)):
        raise GraphError(f"late() after {step.name!r}: only a windowed reduce or join has late records; ask that step")
    if not isinstance(step.window, (TimeWindow, SessionWindow, Interval)):
        over = step.window.describe() if step.window is not None else "all records so far"
        raise GraphError(
            f"late() after {step.name!r}: no record can be late for {over}; only event-time windows close before their "
            f"records come: hr.tumbling, hr.sliding, hr.session_window"
        )
    makers = _made_by(graph, step.inputs[node.port])
    if all(isinstance(n, (ReduceNode, JoinNode)) and _in_time(n) for n in makers):
        raise GraphError(
            f"late() after {step.name!r}: it reads results of {', '.join(sorted(n.name for n in makers))}, which come in the "
            f"order of time, so none is late; ask the step before it for its late records"
        )


def _made_by(graph: Graph, name: str) -> list[Node]:
    """The steps that gave the records of a stream their times."""
    node = graph.by_name[name]
    if isinstance(node, (TransformNode, UnionNode)):
        return [maker for source in node.inputs for maker in _made_by(graph, source)]
    return [node]


def _in_time(node: ReduceNode | JoinNode) -> bool:
    """Whether results come when their windows close, each once."""
    return isinstance(node.window, TimeWindow) and not node.window.versioned


def check_threshold(node: ReduceNode) -> None:
    """``hr.at_least`` names a reducer that only grows, over a window that has an end."""
    if node.at_least is None:
        return
    name, _ = node.at_least
    reducer = dict(node.reducers).get(name)
    if reducer is None:
        raise GraphError(
            f"step {node.name!r}: emit=hr.at_least({name}=…) names {name!r}, which is none of its result columns: "
            f"{', '.join(column for column, _ in node.reducers)}"
        )
    if not isinstance(reducer, Aggregate) or reducer.kind not in ("count", "sum", "max", "count_distinct"):
        raise GraphError(
            f"step {node.name!r}: hr.at_least needs a result that grows with every record (count, sum of numbers that are "
            f"not negative, max, count_distinct), not {name}={reducer.describe()}"
        )
    if not isinstance(node.window, (TimeWindow, WholeInput)) or node.window.versioned:
        raise GraphError(f"step {node.name!r}: hr.at_least needs a tumbling or sliding window or hr.whole_input()")


def check_overload(graph: Graph, node: ReduceNode) -> None:
    """Shedding needs a bound that records can miss."""
    if node.overload is None or node.overload.after_us is not None or bound_through(graph, node.name) is not None:
        return
    raise GraphError(
        f"step {node.name!r}: overload=hr.shed() abandons records that miss a latency bound, but no constraint leads "
        f"through it; give the job one, job.constrain(source >> step, p99='200 ms'), or say hr.shed(after='200 ms')"
    )


def _keeps_time(graph: Graph, source: SourceNode, node: Node) -> bool:
    """Whether a windowed step between the two gives the stream a time of its own."""
    between = [
        n
        for n in graph.nodes
        if n is not node and is_keyed(n) and n.name in reachable(graph, source.name)
        and node.name in reachable(graph, n.name)
    ]  # fmt: skip
    return any(isinstance(n, (ReduceNode, JoinNode)) and isinstance(n.window, TimeWindow) for n in between)


def _timeless_before(graph: Graph, node: Node) -> list[ReduceNode]:
    """Reduce steps upstream whose results have no event time of their own."""
    return [
        n
        for n in graph.nodes
        if isinstance(n, ReduceNode) and n is not node and isinstance(n.window, (WholeInput, type(None)))
        and node.name in reachable(graph, n.name)
    ]  # fmt: skip
