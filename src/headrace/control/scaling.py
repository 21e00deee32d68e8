"""Elastic scaling: the minimum parallelism whose predicted wait fits (thesis, Algorithms 7-8).

Pure planning: when a plan may be carried out is the loop's business. Reactive by nature: a jump in
the load violates the bound until scaling has answered it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.control.kingman import Station, ceiling

BOTTLENECK = 0.99
"""Utilisation from which a step is a bottleneck; the thesis says close to 1, its prototype 0.99."""


def bottlenecks(stations: Sequence[Station]) -> tuple[Station, ...]:
    return tuple(station for station in stations if station.peak_utilisation >= BOTTLENECK)


def resolve(station: Station) -> int:
    """``min(p_max, ⌈2 p max(1, ρ)⌉)``: about half utilised afterwards.

    A last resort, since waits behind a bottleneck say nothing about what is needed.
    """
    return min(station.maximum, math.ceil(2 * station.parallelism * max(1.0, station.peak_utilisation) - 1e-9))


def rebalance(stations: Sequence[Station], queueing_ms: float, floors: Sequence[int]) -> tuple[int, ...]:
    """The minimum total parallelism with ``Σ W_i(p_i) ≤ queueing_ms`` (Algorithm 7).

    Where even the maximum of all does not suffice, the maximum of all. Greedy by the largest gain, which
    is optimal as each wait is convex in its parallelism; among equal gains the first station.
    """
    maximum = tuple(station.maximum for station in stations)
    if _total_ms(stations, maximum) > queueing_ms:
        return maximum
    plan = list(floors)
    gains = [(_gain_ms(station, p), i) for i, (station, p) in enumerate(zip(stations, plan)) if p < station.maximum]
    heapq.heapify(gains)
    while _total_ms(stations, plan) > queueing_ms:
        _, i = heapq.heappop(gains)
        plan[i] += 1
        if plan[i] < stations[i].maximum:
            heapq.heappush(gains, (_gain_ms(stations[i], plan[i]), i))
    return tuple(plan)


def _total_ms(stations: Sequence[Station], plan: Sequence[int]) -> float:
    return math.fsum(station.wait_ms(p) for station, p in zip(stations, plan))


def _gain_ms(station: Station, parallelism: int) -> float:
    now_ms = station.wait_ms(parallelism)
    return -math.inf if now_ms == math.inf else station.wait_ms(parallelism + 1) - now_ms


@dataclass(frozen=True, slots=True)
class Wish:
    """What one constraint asks of scaling: the stations of its path and the wait they may cost, over so many seconds.

    Not ``enforceable``: the rest of the path uses up the bound, and the wait is a fallback.
    """

    constraint: str
    stations: tuple[Station, ...]
    queueing_ms: float
    over_s: float = 5.0
    enforceable: bool = True

    @property
    def ceiling(self) -> float:
        return ceiling(self.queueing_ms, self.over_s)


@dataclass(frozen=True, slots=True)
class Plan:
    """Wanted parallelism per station, with the constraint and the rule it comes from."""

    parallelism: Mapping[str, int]
    reasons: Mapping[str, str]


def scale_reactively(wishes: Sequence[Wish]) -> Plan:
    """One plan for all constraints, in their order (Algorithm 8). Stations not in it stay as they are.

    Optimal for constraints that share no step; otherwise a heuristic in which a later constraint
    never lowers what an earlier one chose.
    """
    plan: dict[str, int] = {}
    reasons: dict[str, str] = {}
    for wish in wishes:
        blocked = bottlenecks(wish.stations)
        if blocked:
            for station in blocked:
                wanted = max(plan.get(station.name, 0), resolve(station))
                plan[station.name] = wanted
                reasons[station.name] = f"bottleneck on {wish.constraint}: utilisation {station.peak_utilisation:.2f}"
            continue
        floors = [max(station.floor(wish.ceiling), plan.get(station.name, 0)) for station in wish.stations]
        for station, wanted in zip(wish.stations, rebalance(wish.stations, wish.queueing_ms, floors)):
            if wanted > plan.get(station.name, 0):
                plan[station.name] = wanted
                reasons[station.name] = _why(wish)
    return Plan(plan, reasons)


def _why(wish: Wish) -> str:
    return f"{wish.constraint} leaves {wish.queueing_ms:.3g} ms for queues, utilised up to {wish.ceiling:.0%}"
