"""When scaling may act, and how far in one cycle.

Ups come first, all at once, and then scaling rests. Downs are one subtask of a step at a time,
without rest, so that a newer plan replaces what is left of an older one. Steps joined by paired
edges, chained or not, scale as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.control.chaining import Chain, chain_of
from headrace.control.constraints import Path
from headrace.control.journal import Decision, Expectation
from headrace.control.kingman import Station
from headrace.control.proposals import Proposal, hold
from headrace.control.scaling import Plan, Wish, bottlenecks, scale_reactively
from headrace.control.settings import Change
from headrace.control.standing import Standing, budget
from headrace.control.view import View

_FALLBACK_MS = 2.0
"""Queue time per elastic step where the steps alone exceed the bound, as in the prototype."""


@dataclass(frozen=True, slots=True)
class Rest:
    """``rising``: a scale-up has been asked for and is not complete. ``cycles`` are left to rest."""

    rising: bool = False
    cycles: int = 0

    def after(self, complete: bool, rest_cycles: int) -> Rest:
        """One cycle later."""
        if self.rising:
            return Rest(cycles=rest_cycles) if complete else self
        return Rest(cycles=max(0, self.cycles - 1))


def propose_scaling(view: View, rest: Rest) -> Iterator[Proposal]:
    """The next step towards the least parallelism that keeps all bounds."""
    if rest.rising:
        yield hold(view, "scaling", "the last scale-up is not complete")
        return
    if rest.cycles:
        yield hold(view, "scaling", "it rests after the last scale-up", cycles_left=rest.cycles)
        return
    wishes: list[Wish] = []
    for standing in view.standings:
        for path in standing.constraint.paths:
            wish = _wish(view, standing, path)
            if isinstance(wish, Proposal):
                yield wish
            else:
                yield from _unattainable(view, standing, wish)
                wishes.append(wish)
    if len(wishes) < sum(len(standing.constraint.paths) for standing in view.standings):
        return  # a plan for some paths could take what the silent ones need
    stations = {station.name: station for wish in wishes for station in wish.stations}
    yield from _proposals(view, stations, scale_reactively(wishes))


def _wish(view: View, standing: Standing, path: Path) -> Wish | Proposal:
    name = standing.constraint.name
    silent = view.silent(path)
    if silent:
        return hold(view, f"scaling of {name}", f"not all subtasks of {', '.join(silent)} have reported")
    stations = view.stations(path)
    split = standing.mean_bound_ms and budget(
        path, view.summary, standing.mean_bound_ms, view.job.policy.batching_share
    )
    if stations is None or not split:
        return hold(view, f"scaling of {name}", "service times, gaps or waits are not known for all its steps")
    elastic = tuple(station for station in stations if station.least < station.most)
    rigid_ms = sum(view.summary.step(s.name).queue_ms or 0.0 for s in stations if s.least == s.most)
    queueing_ms = split.queueing_ms - rigid_ms if split.enforceable else _FALLBACK_MS * len(elastic)
    return Wish(name, elastic, queueing_ms)


def _unattainable(view: View, standing: Standing, wish: Wish) -> Iterator[Proposal]:
    """Say so when no plan can keep the bound; scaling still does what it can."""
    if bottlenecks(wish.stations):
        return
    best_ms = sum(station.wait_ms(station.most) for station in wish.stations)
    if standing.met is False and best_ms > wish.queueing_ms:
        reason = (
            "even at their most parallel its steps cannot keep the bound; raise it, the limits, or make them faster"
        )
        yield hold(view, wish.constraint, reason, "give up", queues_ms=best_ms, allowed_ms=wish.queueing_ms)


def _proposals(view: View, stations: Mapping[str, Station], plan: Plan) -> Iterator[Proposal]:
    wanted = _together(view, plan)
    now = {name: view.topology.by_name[name].parallelism for name in wanted}
    ups = [name for name in wanted if wanted[name] > now[name] and _worth(view, name, wanted[name])]
    downs = [name for name in wanted if wanted[name] < now[name] and _worth(view, name, wanted[name])]
    done: set[str] = set()
    for name in ups or downs:
        group = view.topology.scaled_with(name)
        if name in done:
            continue
        done |= group
        parallelism = wanted[name] if ups else now[name] - 1
        yield _proposal(view, stations[name], parallelism, plan.reasons[name], group)


def _together(view: View, plan: Plan) -> dict[str, int]:
    """Each planned step at what the neediest of its group needs; for members nobody planned, what they have."""
    planned = {member: n for head, n in plan.parallelism.items() for member in _chain(view, head)}
    wanted: dict[str, int] = {}
    for name in plan.parallelism:
        group = [view.topology.by_name[member] for member in view.topology.scaled_with(name)]
        need = max(planned.get(step.name, step.parallelism) for step in group)
        wanted[name] = min(min(step.most for step in group), max(need, *(step.least for step in group)))
    return wanted


def _chain(view: View, head: str) -> Chain:
    return chain_of(head, view.settings.chained, view.topology)


def _worth(view: View, name: str, wanted: int) -> bool:
    now = view.topology.by_name[name].parallelism
    return abs(wanted - now) >= view.job.policy.least_change * now


def _proposal(view: View, station: Station, parallelism: int, reason: str, group: frozenset[str]) -> Proposal:
    due = view.cycle + view.job.policy.rest_cycles + 1
    expects = Expectation(
        "utilisation", station.name, station.peak_utilisation, station.utilisation(parallelism), due
    )  # fmt: skip
    decision = Decision(
        view.at_s,
        "scale",
        station.name,
        f"{station.parallelism} → {parallelism} subtasks",
        reason,
        {"utilisation": station.peak_utilisation, "predicted_wait_ms": station.wait_ms(parallelism)},
        expects,
    )
    return Proposal(decision, Change(parallelism=dict.fromkeys(sorted(group), parallelism)))
