"""What ``headrace explain`` says about rows that come when time has passed, however fast the job is."""

from __future__ import annotations

from typing import Any

from headrace.graph.nodes import Graph, JoinNode, ReduceNode, SourceNode
from headrace.graph.windowing import Interval, TimeWindow
from headrace.units import in_words


def waits_of(graph: Graph) -> list[dict[str, Any]]:
    """For each step whose rows wait for the watermark: which ones, and at most how long after a record."""
    lateness_s = max((node.lateness_us for node in graph.nodes if isinstance(node, SourceNode)), default=0) / 1e6
    found = []
    for node in graph.nodes:
        match node:
            case ReduceNode(window=TimeWindow(every_us=every_us)) | JoinNode(window=TimeWindow(every_us=every_us)):
                found.append({"step": node.name, "rows": "all", "at_most_s": every_us / 1e6, "lateness_s": lateness_s})
            case JoinNode(window=Interval() as interval) if node.how != "inner":
                reach_us = max(interval.reach_us(port) for port in (0, 1) if node.outer(port))
                rows = {"step": node.name, "rows": "unmatched", "at_most_s": reach_us / 1e6, "lateness_s": lateness_s}
                found.append(rows)
    return found


def wait_in_words(wait: dict[str, Any]) -> str:
    """A sentence about one of them."""
    late = (
        f", and {in_words(wait['lateness_s'])} more, as far out of order as records may be"
        if wait["lateness_s"]
        else ""
    )
    at_most = in_words(wait["at_most_s"])
    if wait["rows"] == "all":
        return f"{wait['step']}: its rows come when their window ends, up to {at_most} after a record{late}."
    return f"{wait['step']}: pairs come at once; a record that meets none comes {at_most} after its time{late}."
