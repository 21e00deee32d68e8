"""Latency constraints, and which of them are legal.

A constraint ``(S, ℓ, t)`` bounds the mean latency of the items that enter ``S`` within any span
``t``. Departures: a constraint may run over several paths between two steps, and it may bound a
quantile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise

from headrace.control.topology import StepEdge, Topology
from headrace.errors import GraphError

Path = tuple[str | int, ...]
"""Steps by name and edges by id, in turn."""


@dataclass(frozen=True, slots=True)
class PathConstraint:
    """``quantile`` None bounds the mean. Each of ``paths`` must keep the bound."""

    name: str
    paths: tuple[Path, ...]
    bound_ms: float
    over_s: float = 5.0
    quantile: float | None = None

    @property
    def edges(self) -> frozenset[int]:
        return frozenset(element for path in self.paths for element in path if isinstance(element, int))

    def describe(self) -> str:
        what = "mean" if self.quantile is None else f"p{self.quantile * 100:g}"
        return f"{self.name}: {what} ≤ {self.bound_ms:g} ms over {self.over_s:g} s"


def paths_between(topology: Topology, start: str, end: str) -> tuple[Path, ...]:
    """All sequences from one step to another, both included; a source has no latency and is left out."""
    found: list[Path] = []

    def walk(step: str, path: Path) -> None:
        if step == end:
            found.append(path)
            return
        for edge in topology.out_of(step):
            walk(edge.target, (*path, edge.id, edge.target))

    walk(start, () if topology.by_name[start].source else (start,))
    return tuple(found)


def check(topology: Topology, constraints: Sequence[PathConstraint]) -> None:
    """Raise GraphError for the first illegal constraint.

    Two constraints of one kind may share steps but no edge, and need equal spans.
    Ours: a mean and a quantile may share edges, since the lower deadline serves both.
    """
    for constraint in constraints:
        if not constraint.paths or not all(constraint.paths):
            raise GraphError(f"constraint {constraint.describe()} has no path; constrain connected steps")
        if not (constraint.bound_ms > 0 and constraint.over_s > 0):
            raise GraphError(f"constraint {constraint.describe()}: the bound and over= must be more than zero")
        for path in constraint.paths:
            _check_path(topology, constraint, path)
    for i, one in enumerate(constraints):
        for other in constraints[i + 1 :]:
            if one.quantile == other.quantile:
                _check_pair(topology, one, other)


def _check_path(topology: Topology, constraint: PathConstraint, path: Path) -> None:
    for element in path:
        if element not in (topology.by_id if isinstance(element, int) else topology.by_name):
            raise GraphError(f"constraint {constraint.describe()}: {element!r} is no step or edge of this job")
        if isinstance(element, str) and not topology.by_name[element].measurable:
            step = topology.by_name[element]
            why = "is a source, which reads nothing" if step.source else "is a sink, which writes nothing"
            raise GraphError(f"constraint {constraint.describe()}: {element!r} {why}; leave it out of the path")
    for before, after in pairwise(path):
        edge = before if isinstance(before, int) else after
        joint = after if isinstance(before, int) else before
        wire = topology.by_id.get(edge) if isinstance(edge, int) else None
        if wire is None or joint != (wire.target if edge == before else wire.source):
            raise GraphError(f"constraint {constraint.describe()}: {before!r} and {after!r} are not connected")


def _check_pair(topology: Topology, one: PathConstraint, other: PathConstraint) -> None:
    shared = [topology.by_id[edge] for edge in sorted(one.edges & other.edges)]
    if shared:
        raise GraphError(
            f"constraints {one.describe()} and {other.describe()} share the edge {edge_in_words(shared[0])}; "
            f"its buffers can follow one bound only: shorten one of the paths"
        )
    if one.over_s != other.over_s:
        raise GraphError(f"constraints {one.describe()} and {other.describe()} must have the same over=")


def edge_in_words(edge: StepEdge) -> str:
    return f"{edge.source} → {edge.target}"


def edges_of(path: Path, chained: AbstractSet[int] = frozenset()) -> tuple[int, ...]:
    return tuple(element for element in path if isinstance(element, int) and element not in chained)


def steps_of(path: Iterable[str | int]) -> tuple[str, ...]:
    return tuple(element for element in path if isinstance(element, str))
