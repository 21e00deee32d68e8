"""How a constraint stands, and how its bound is spent.

Quantiles do not add up along a path (of n elements that each keep their p95, only a share 0.95^n
does), so a quantile is measured on whole records and controlled through the mean that, by the
measured shape, goes with it.
"""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from headrace.control.constraints import Path, PathConstraint, edges_of, steps_of
from headrace.control.topology import Topology
from headrace.measure.recent import EdgeParts, Recent
from headrace.measure.summary import Summary

_TAIL_MARGIN = 0.1
"""Kept free under a bound on a quantile: p99 of a few hundred samples scatters by about a tenth."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a constraint stands: ``observed_ms`` in its own terms (mean or quantile), None if unknown.

    ``mean_bound_ms`` is the mean that keeps the bound: the bound itself, or for a quantile the bound
    times the measured ratio of mean to quantile, less a margin. ``crowding_ms`` is what transfer and queues
    take on each of its paths.
    """

    constraint: PathConstraint
    observed_ms: float | None
    mean_bound_ms: float | None
    missing: tuple[str | int, ...] = ()
    crowding_ms: tuple[float | None, ...] = ()

    @property
    def met(self) -> bool | None:
        return None if self.observed_ms is None else self.observed_ms <= self.constraint.bound_ms


def standing(
    constraint: PathConstraint, topology: Topology, recent: Recent, at_s: float, chained: AbstractSet[int] = frozenset()
) -> Standing:
    """Where the constraint stands over its last span; chained edges cost nothing."""
    since_s = at_s - constraint.over_s
    edges = {edge: recent.edge_parts_ms(edge, since_s) for edge in sorted(constraint.edges - chained)}
    crowding = tuple(_crowding_ms([edges[edge] for edge in edges_of(path, chained)]) for path in constraint.paths)
    if constraint.quantile is not None:
        return replace(_quantile_standing(constraint, topology, recent, since_s), crowding_ms=crowding)
    known: dict[str | int, float | None] = {id: None if p is None else p.total_ms for id, p in edges.items()}
    for step in {step for path in constraint.paths for step in steps_of(path)}:
        known[step] = recent.step_latency_ms(step, since_s)
    missing = tuple(sorted((element for element, latency in known.items() if latency is None), key=str))
    totals = [math.fsum(known.get(element) or 0.0 for element in path) for path in constraint.paths]
    return Standing(constraint, None if missing else max(totals), constraint.bound_ms, missing, crowding)


def _crowding_ms(parts: list[EdgeParts | None]) -> float | None:
    known = [part.transfer_ms + part.queue_ms for part in parts if part is not None]
    return math.fsum(known) if len(known) == len(parts) else None


def _quantile_standing(constraint: PathConstraint, topology: Topology, recent: Recent, since_s: float) -> Standing:
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
    ratio = mean / tail if tail > 0 else 1.0
    return Standing(constraint, tail, (1 - _TAIL_MARGIN) * constraint.bound_ms * ratio)


@dataclass(frozen=True, slots=True)
class Spending:
    """How a bound is spent along a path: steps, batching, and queues with transfer."""

    bound_ms: float
    steps_ms: float
    batching_share: float

    @property
    def channels_ms(self) -> float:
        return self.bound_ms - self.steps_ms

    @property
    def queueing_ms(self) -> float:
        return (1 - self.batching_share) * self.channels_ms

    @property
    def enforceable(self) -> bool:
        return self.channels_ms > 0


def budget(path: Path, summary: Summary, bound_ms: float, batching_share: float) -> Spending | None:
    """The split of a bound on a path; None while a step's latency is unknown."""
    latencies = [summary.step(element).latency_ms for element in path if isinstance(element, str)]
    known = [latency for latency in latencies if latency is not None]
    return Spending(bound_ms, math.fsum(known), batching_share) if len(known) == len(latencies) else None
