"""The split of a large job between controllers."""

from __future__ import annotations

import pytest

from headrace.control.constraints import Path, PathConstraint
from headrace.control.topology import ControlledStep, StepEdge, Topology
from headrace.errors import GraphError
from headrace.measure.report import ChannelId, SubtaskId
from thesis.anchors import allocate, anchor_of

WORKERS = ("w0", "w1", "w2")


def placed(name: str, parallelism: int, workers: int, **options: bool) -> ControlledStep:
    return ControlledStep(name, parallelism, workers=tuple(WORKERS[i % workers] for i in range(parallelism)), **options)


TOPOLOGY = Topology(
    (
        placed("src", 2, 2, source=True), placed("a", 4, 2), placed("b", 6, 3), placed("c", 6, 3),
        placed("d", 2, 2), placed("out", 3, 3, sink=True),
    ),
    (
        StepEdge(0, "src", "a"), StepEdge(1, "a", "b"), StepEdge(2, "b", "c", paired=True), StepEdge(3, "c", "out"),
        StepEdge(4, "b", "d"), StepEdge(5, "d", "out"),
    ),
)  # fmt: skip
ONE, TWO = (0, "a", 1, "b", 2, "c", 3), ("b", 4, "d", 5)


def runtime_sequences(path: Path) -> list[tuple[SubtaskId | ChannelId, ...]]:
    """All ways through the runtime graph along a path."""
    found: list[tuple[SubtaskId | ChannelId, ...]] = [()]
    for element in path:
        options = TOPOLOGY.channels(element) if isinstance(element, int) else TOPOLOGY.subtasks(element)
        found = [(*way, option) for option in list(options) for way in found if not way or joined(way[-1], option)]
    return found


def joined(before: SubtaskId | ChannelId, after: SubtaskId | ChannelId) -> bool:
    if isinstance(before, ChannelId) and isinstance(after, SubtaskId):
        return before.receiver == after.index
    return isinstance(before, SubtaskId) and isinstance(after, ChannelId) and before.index == after.sender


# latency-guarantees fact 19: the anchor runs on the most workers; then fewest channels on the path
def test_the_anchor() -> None:
    assert anchor_of(ONE, TOPOLOGY) == "c"  # as many workers as b, but fewer channels
    assert anchor_of((0, "a", 1), TOPOLOGY) == "a"
    assert anchor_of(TWO, TOPOLOGY) == "b"
    with pytest.raises(GraphError, match="no step"):
        anchor_of((0,), TOPOLOGY)


# latency-guarantees fact 19: every runtime constraint is in exactly one subgraph
def test_every_runtime_sequence_has_one_owner() -> None:
    constraints = (PathConstraint("one", (ONE,), 10.0), PathConstraint("two", (TWO,), 10.0))
    parts = allocate(constraints, TOPOLOGY)
    assert set(parts) == set(WORKERS)
    for path in (ONE, TWO):
        sequences = runtime_sequences(path)
        assert len(sequences) > 30
        for sequence in sequences:
            owners = [
                worker for worker, part in parts.items()
                if all(e in (part.subtasks if isinstance(e, SubtaskId) else part.channels) for e in sequence)
            ]  # fmt: skip
            assert len(owners) == 1


# latency-guarantees fact 19: and a subgraph holds nothing else
def test_parts_hold_only_what_is_constrained() -> None:
    parts = allocate((PathConstraint("one", (ONE,), 10.0),), TOPOLOGY)
    elements = {element for sequence in runtime_sequences(ONE) for element in sequence}
    held = {e for part in parts.values() for e in (*part.subtasks, *part.channels)}
    sources_and_sinks = {e for e in held if isinstance(e, SubtaskId) and e.step in ("src", "out")}
    assert held - sources_and_sinks == elements
