"""Latency constraints: which are legal, whether they hold, and how a bound is split.

A constraint ``(S, ℓ, t)`` bounds the mean latency of the items that enter ``S`` within any span
``t`` (thesis 3.3.2). Departures: a constraint may run over several paths between two steps, and it
may bound a quantile. Quantiles do not add up along a path, so a quantile is measured on whole
records and controlled through the mean that, by the measured shape, goes with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise

from headrace.control.topology import Edge, Topology
from headrace.errors import GraphError
from headrace.measure.recent import Recent
from headrace.measure.summary import Summary

Path = tuple[str | int, ...]
"""Steps by name and edges by id, in turn."""


@dataclass(frozen=True, slots=True)
class Constraint:
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


def check(topology: Topology, constraints: Sequence[Constraint]) -> None:
    """Raise GraphError for the first illegal constraint.

    Two constraints of one kind may share steps but no edge, and need equal spans (thesis 3.3.2).
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


def _check_path(topology: Topology, constraint: Constraint, path: Path) -> None:
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


def _check_pair(topology: Topology, one: Constraint, other: Constraint) -> None:
    shared = [topology.by_id[edge] for edge in sorted(one.edges & other.edges)]
    if shared:
        raise GraphError(
            f"constraints {one.describe()} and {other.describe()} share the edge {in_words(shared[0])}; "
            f"its buffers can follow one bound only: shorten one of the paths"
        )
    if one.over_s != other.over_s:
        raise GraphError(f"constraints {one.describe()} and {other.describe()} must have the same over=")


def in_words(edge: Edge) -> str:
    return f"{edge.source} → {edge.target}"


@dataclass(frozen=True, slots=True)
class Standing:
    """How a constraint stands: ``observed_ms`` in its own terms (mean or quantile), None if unknown.

    ``mean_bound_ms`` is the mean that keeps the bound: the bound itself, or for a quantile the bound
    divided by the measured ratio of quantile to mean.
    """

    constraint: Constraint
    observed_ms: float | None
    mean_bound_ms: float | None
    missing: tuple[str | int, ...] = ()

    @property
    def met(self) -> bool | None:
        return None if self.observed_ms is None else self.observed_ms <= self.constraint.bound_ms


def standing(
    constraint: Constraint, topology: Topology, recent: Recent, at_s: float, chained: AbstractSet[int] = frozenset()
) -> Standing:
    """Where the constraint stands over its last span; chained edges cost nothing."""
    since_s = at_s - constraint.over_s
    if constraint.quantile is not None:
        return _quantile_standing(constraint, topology, recent, since_s)
    worst: float | None = None
    missing: set[str | int] = set()
    for path in constraint.paths:
        parts = [(e, _latency_ms(e, recent, since_s)) for e in path if e not in chained]
        missing |= {element for element, latency in parts if latency is None}
        total = math.fsum(latency for _, latency in parts if latency is not None)
        worst = total if worst is None else max(worst, total)
    unknown = tuple(sorted(missing, key=str))
    return Standing(constraint, None if unknown else worst, constraint.bound_ms, unknown)


def _latency_ms(element: str | int, recent: Recent, since_s: float) -> float | None:
    if isinstance(element, int):
        return recent.edge_latency_ms(element, since_s)
    return recent.step_latency_ms(element, since_s)


def _quantile_standing(constraint: Constraint, topology: Topology, recent: Recent, since_s: float) -> Standing:
    path = constraint.paths[0]
    end = path[-1] if isinstance(path[-1], str) else topology.by_id[path[-1]].target
    first = path[0]
    from_source = isinstance(first, int) and topology.by_name[topology.by_id[first].source].source
    if not from_source:  # ages count from the source; nothing follows single records across a path inside
        return Standing(constraint, None, None, (first,))
    mean = recent.age_ms(end, None, since_s)
    tail = recent.age_ms(end, constraint.quantile, since_s)
    if mean is None or tail is None:
        return Standing(constraint, None, None, (end,))
    return Standing(constraint, tail, constraint.bound_ms * mean / tail if tail > 0 else constraint.bound_ms)


@dataclass(frozen=True, slots=True)
class Budget:
    """How a bound is spent along a path (thesis 4.6.3): steps, batching, and queues with transfer."""

    bound_ms: float
    steps_ms: float
    batching_share: float

    @property
    def channels_ms(self) -> float:
        return self.bound_ms - self.steps_ms

    @property
    def batching_ms(self) -> float:
        return max(0.0, self.batching_share * self.channels_ms)

    @property
    def queueing_ms(self) -> float:
        return (1 - self.batching_share) * self.channels_ms

    @property
    def enforceable(self) -> bool:
        return self.channels_ms > 0


def budget(path: Path, summary: Summary, bound_ms: float, batching_share: float) -> Budget | None:
    """The split of a bound on a path; None while a step's latency is unknown."""
    latencies = [summary.step(element).latency_ms for element in path if isinstance(element, str)]
    known = [latency for latency in latencies if latency is not None]
    return Budget(bound_ms, math.fsum(known), batching_share) if len(known) == len(latencies) else None


def edges_of(path: Path, chained: AbstractSet[int] = frozenset()) -> tuple[int, ...]:
    return tuple(element for element in path if isinstance(element, int) and element not in chained)


def steps_of(path: Iterable[str | int]) -> tuple[str, ...]:
    return tuple(element for element in path if isinstance(element, str))
