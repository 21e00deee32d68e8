"""Who may decide for which part of a large job (thesis, Algorithms 4-6).

One controller in the driver serves the jobs of today. This is the split for when it does not: each
worker with subtasks of a constraint's *anchor* step takes the part of the runtime graph around them,
so that every runtime sequence lies in exactly one part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.control.constraints import Path, PathConstraint, edges_of, steps_of
from headrace.control.topology import Topology
from headrace.errors import GraphError
from headrace.measure.report import ChannelId, SubtaskId


@dataclass(frozen=True, slots=True)
class JobPart:
    """A piece of the runtime graph."""

    subtasks: frozenset[SubtaskId] = frozenset()
    channels: frozenset[ChannelId] = frozenset()

    def __or__(self, other: JobPart) -> JobPart:
        return JobPart(self.subtasks | other.subtasks, self.channels | other.channels)


def anchor_of(path: Path, topology: Topology) -> str:
    """The step on the most workers; then the one with the fewest channels on the path; then the first."""
    steps = steps_of(path)
    if not steps:
        raise GraphError(f"path {path} has no step that could be its anchor; let it run through one")

    def channels(step: str) -> int:
        edges = [topology.by_id[edge] for edge in edges_of(path)]
        return sum(len(list(topology.channels(e.id))) for e in edges if step in (e.source, e.target))

    return min(steps, key=lambda step: (-len(set(topology.by_name[step].workers)), channels(step)))


def allocate(constraints: Sequence[PathConstraint], topology: Topology) -> Mapping[str, JobPart]:
    """The part of the runtime graph that each worker decides for."""
    parts: dict[str, JobPart] = defaultdict(JobPart)
    for constraint in constraints:
        for path in constraint.paths:
            anchor = topology.by_name[anchor_of(path, topology)]
            for worker in sorted(set(anchor.workers)):
                mine = {SubtaskId(anchor.name, i) for i, name in enumerate(anchor.workers) if name == worker}
                parts[worker] |= _around(path, topology, anchor.name, mine)
    return dict(parts)


def _around(path: Path, topology: Topology, anchor: str, mine: set[SubtaskId]) -> JobPart:
    """All that a path leads to from some subtasks of its anchor, forwards and backwards."""
    at = path.index(anchor)
    subtasks, channels = set(mine), set[ChannelId]()
    for edges, forwards in ((edges_of(path[at:]), True), (tuple(reversed(edges_of(path[:at]))), False)):
        reached = mine
        for edge in edges:
            wire = topology.by_id[edge]
            ends = [
                (c, SubtaskId(wire.source, c.sender), SubtaskId(wire.target, c.receiver))
                for c in topology.channels(edge)
            ]
            touched = [(c, b if forwards else a) for c, a, b in ends if (a if forwards else b) in reached]
            channels |= {c for c, _ in touched}
            reached = {far for _, far in touched}
            subtasks |= reached
    return JobPart(frozenset(subtasks), frozenset(channels))
