"""How a reduce with a memory bound keeps its state: whether it can, by which hash engine, and why."""

from __future__ import annotations

from headrace.errors import GraphError
from headrace.graph.nodes import ReduceNode
from headrace.graph.reduction import Aggregate
from headrace.graph.windowing import SessionWindow, TimeWindow, WholeInput

COVERING = ("dinc", "dinc-space-saving")
"""Engines that know at least which share of a key's records its state has seen."""

MIN_MR_BYTES = 32_768
"""Room for some records and as many groups; with less, MR-hash could not keep its bound."""


def check_memory(node: ReduceNode) -> None:
    """Raise GraphError for a bound, engine or coverage that the step cannot have."""
    where = f"step {node.name!r}"
    if node.coverage is not None:
        _check_coverage(node, where)
    if node.max_records is not None:
        _check_max_records(node, where)
    if node.memory_bytes is None:
        return
    if isinstance(node.window, TimeWindow) and node.window.versioned:
        raise GraphError(
            f"{where}: memory= does not go with {node.window.describe()}: what comes late changes a result that is "
            f"long told, so its state would have to be read from disk record by record; leave out one of the two"
        )
    if _by_key(node):
        _check_by_key(node, where)
        return
    if not node.mergeable and node.engine not in ("auto", "mr"):
        raise GraphError(
            f"{where}: engine={node.engine!r} merges states of one key, so its reducers need combine=; "
            f"give them one, or use engine='mr'"
        )
    if engine_of(node)[0] == "mr" and node.memory_bytes < MIN_MR_BYTES:
        raise GraphError(
            f"{where}: engine='mr' groups records in memory, for which it needs {MIN_MR_BYTES} bytes at least; "
            f"give more than memory={node.memory_bytes}"
        )


def engine_of(node: ReduceNode) -> tuple[str, str]:
    """The hash engine of a reduce, and the reason in words. ``"auto"``: it is chosen while the job runs."""
    if node.memory_bytes is None:
        return "inc", "no memory bound: all states stay in memory"
    if node.engine != "auto":
        return node.engine, "as asked"
    if isinstance(node.window, SessionWindow):
        return "dinc", "open sessions stay, and users whose sessions have expired make way"
    if not node.mergeable and not _by_key(node):
        return "mr", "its reducers have no combine, so records wait until their window ends"
    if node.coverage is not None:
        return "dinc", "coverage needs counters of what was seen of each key"
    return "auto", "first come stays (inc) while all keys fit; then chosen by how many do, and by how they change"


def _by_key(node: ReduceNode) -> bool:
    """Whether records change their key's state one by one: running results, count windows, sessions."""
    return not isinstance(node.window, (TimeWindow, WholeInput))


def _check_by_key(node: ReduceNode, where: str) -> None:
    if node.engine == "mr":
        over = node.window.describe() if node.window else "all records so far"
        raise GraphError(
            f"{where}: engine='mr' lets records wait until their window ends, but it is over {over}; "
            f"leave out engine=, or use 'inc' or 'dinc'"
        )


def _check_coverage(node: ReduceNode, where: str) -> None:
    if node.coverage is None or not 0 < node.coverage <= 1:
        raise GraphError(f"{where}: coverage is a share above 0 and at most 1, not {node.coverage!r}")
    if node.memory_bytes is None:
        raise GraphError(f"{where}: without memory= all records are covered; give it a bound, or leave out coverage=")
    if not isinstance(node.window, WholeInput):
        raise GraphError(f"{where}: coverage= is about all records of a key, so it needs hr.whole_input()")
    if engine_of(node)[0] not in COVERING:
        raise GraphError(
            f"{where}: engine={node.engine!r} cannot tell which share of a key's records it has seen; "
            f"use engine='dinc' or 'dinc-space-saving', or leave out coverage="
        )


def _check_max_records(node: ReduceNode, where: str) -> None:
    counts = [name for name, reducer in node.reducers if isinstance(reducer, Aggregate) and reducer.kind == "count"]
    if node.max_records is None or node.max_records < 1:
        raise GraphError(
            f"{where}: max_records is the largest number of records there can be, not {node.max_records!r}"
        )
    if node.coverage is None or node.at_least is None or node.at_least[0] not in counts:
        raise GraphError(
            f"{where}: max_records= is for asking only for frequent keys: give coverage= too, and emit= on a count, "
            f"such as state=hr.keep(coverage=0.9, …), emit=hr.at_least(n=1000)"
        )
