"""When scaling may act, and how far in one cycle.

Scale-ups come first, all at once, and then scaling rests. Scale-downs are one subtask of a step at a
time, without rest, so that a newer plan replaces what is left of an older one. Steps joined by paired
edges, chained or not, scale as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headrace.control.chaining import Chain, chain_of
from headrace.control.constraints import Path
from headrace.control.decisions import Decision, Expectation
from headrace.control.kingman import Station
from headrace.control.policy import SettingsChange
from headrace.control.proposals import Proposal, hold
from headrace.control.remembered import Rest
from headrace.control.scaling import Plan, Wish, bottlenecks, scale_reactively
from headrace.control.standing import Standing, budget
from headrace.control.view import View

_FALLBACK_MS = 2.0
"""Queue time per elastic step where the rest of the path uses up the bound, as in the prototype.

The thesis would take every step to its maximum, although no number of subtasks can keep such a bound.
"""


def propose_scaling(view: View, rest: Rest) -> Iterator[Proposal]:
    """The next step towards the minimum parallelism that keeps all bounds."""
    if rest.rising:
        yield hold(view, "scaling", "the last scale-up is not complete")
        return
    if rest.cycles:
        yield hold(view, "scaling", "it rests after a start, a scale-up or new chains", cycles_left=rest.cycles)
        return
    if rest.abandoned:
        yield hold(
            view, "scaling", "the subtasks it asked for did not come; it goes on with those there are", "give up"
        )
    wishes: list[Wish] = []
    for standing in view.standings:
        for path in standing.constraint.paths:
            wish = _wish(view, standing, path)
            if isinstance(wish, Proposal):
                yield wish
            else:
                yield from _unattainable(view, standing, wish)
                wishes.append(wish)
    if len(wishes) == sum(len(standing.constraint.paths) for standing in view.standings):
        yield from _proposals(view, wishes)  # a plan for some paths could take what the unknown ones need


def _wish(view: View, standing: Standing, path: Path) -> Wish | Proposal:
    """What a path asks for. Steps that cannot scale keep their wait, and leave the others less."""
    subject = f"scaling of {standing.constraint.name}"
    silent = view.silent(path)
    if silent:
        return hold(view, subject, f"not all subtasks of {', '.join(silent)} have reported")
    stations, bound_ms = view.stations(path), standing.mean_bound_ms
    split = None if bound_ms is None else budget(path, view.pooled, bound_ms, view.job.policy.batching_share)
    if stations is None or split is None:
        return hold(view, subject, "service times, inter-arrival times or waits are not known for all its steps")
    elastic = tuple(station for station in stations if station.minimum < station.maximum)
    rigid_ms = sum(station.wait_ms(station.parallelism) for station in stations if station.minimum == station.maximum)
    left_ms = split.queueing_ms - rigid_ms
    queueing_ms = left_ms if left_ms > 0 else _FALLBACK_MS * len(elastic)
    return Wish(standing.constraint.name, elastic, queueing_ms, standing.constraint.over_s, left_ms > 0)


def _unattainable(view: View, standing: Standing, wish: Wish) -> Iterator[Proposal]:
    """Say so when no plan can keep the bound; scaling still does what it can."""
    best_ms = sum(station.wait_ms(station.maximum) for station in wish.stations)
    evidence = {"queues_ms": best_ms, "allowed_ms": wish.queueing_ms}
    if not wish.enforceable:
        reason = "its steps, and queues that cannot be scaled, use up the bound; raise it, or make them faster"
    elif standing.met is False and not bottlenecks(wish.stations) and best_ms > wish.queueing_ms:
        reason = "even with as many subtasks as they may have, its steps wait too long; raise the bound or the limits"
    else:
        return
    yield hold(view, wish.constraint, reason, "give up", **evidence)


def _proposals(view: View, wishes: list[Wish]) -> Iterator[Proposal]:
    """Scale-ups if there are any, else a step down where there is room to spare."""
    stations = {station.name: station for wish in wishes for station in wish.stations}
    spare = [replace(wish, queueing_ms=view.job.policy.down_share * wish.queueing_ms) for wish in wishes]
    now = {name: view.topology.by_name[name].parallelism for name in stations}
    plans = [(scale_reactively(wishes), 1)]
    if view.shape_measured:
        plans.append((scale_reactively(spare), -1))
    for plan, sign in plans:
        wanted = _together(view, plan)
        moved = [name for name in wanted if sign * (wanted[name] - now[name]) >= _min_change(view, now[name])]
        done: set[str] = set()
        for name in moved:
            if name not in done:
                group = view.topology.scaled_with(name)
                done |= group
                parallelism = wanted[name] if sign > 0 else now[name] - 1
                yield _proposal(view, stations[name], parallelism, plan.reasons[name], group)
        if moved:
            return


def _min_change(view: View, parallelism: int) -> float:
    return max(1.0, view.job.policy.min_change * parallelism)


def _together(view: View, plan: Plan) -> dict[str, int]:
    """Each planned step at what the neediest of its group needs; for members nobody planned, what they have."""
    planned = {member: n for head, n in plan.parallelism.items() for member in _chain(view, head)}
    wanted: dict[str, int] = {}
    for name in plan.parallelism:
        group = [view.topology.by_name[member] for member in view.topology.scaled_with(name)]
        need = max(planned.get(step.name, step.parallelism) for step in group)
        wanted[name] = min(min(step.maximum for step in group), max(need, *(step.minimum for step in group)))
    return wanted


def _chain(view: View, head: str) -> Chain:
    return chain_of(head, view.settings.chained, view.topology)


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
        {"utilisation": station.peak_utilisation, "predicted_wait_ms": station.queue_ms(parallelism)},
        expects,
    )
    return Proposal(decision, SettingsChange(parallelism=dict.fromkeys(sorted(group), parallelism)))
