"""The control loop: look, judge what was decided before, propose, remember.

A pure function from state and observation to state, settings and sentences. Replaying a recorded
trace of observations gives the same decisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from headrace.control.decisions import Decision, Expectation, Outcome, compare
from headrace.control.elastic import propose_scaling
from headrace.control.policy import ControlledJob, SettingsChange
from headrace.control.proposals import Proposal, hold, propose_chains, propose_deadlines, propose_sizes
from headrace.control.remembered import FRESH_INTERVALS, State
from headrace.control.standing import Standing, standing
from headrace.control.view import View
from headrace.measure.recent import Recent
from headrace.measure.summary import Summary
from headrace.measure.trace import Observation


@dataclass(frozen=True, slots=True)
class Cycle:
    """What one turn of the loop gives; ``state.settings`` are to be put into force."""

    state: State
    decisions: tuple[Decision, ...]
    outcomes: tuple[Outcome, ...]
    standings: tuple[Standing, ...] = ()


def decide(job: ControlledJob, state: State, seen: Observation) -> Cycle:
    """One turn of the loop."""
    recent = state.recent.add(seen.reports, seen.at_s)
    state = state.seeing(seen, job)
    view = look(job, state, recent, seen)
    outcomes, awaited = _judge(view, state)
    proposals = [_pinned(job, proposal) for proposal in _unrepeated(_proposals(view, state))]
    changes = [proposal.change for proposal in proposals if proposal.decision.withheld is None]
    decisions = tuple(p.decision for p in proposals if p.decision.key not in state.said)
    expecting = tuple(d for d in decisions if d.expects is not None and d.withheld is None)
    still = frozenset(p.decision.key for p in proposals if p.decision.action in ("hold", "give up"))
    after = replace(
        state.after(changes, view),
        recent=recent,
        cycle=state.cycle + 1,
        awaited=(*awaited, *expecting),
        said=still,
    )
    return Cycle(after, decisions, outcomes, view.standings)


def decide_again(job: ControlledJob, trace: Iterable[Observation]) -> Iterator[Cycle]:
    """The decisions that a recorded trace leads to."""
    state = State.of(job)
    for seen in trace:
        cycle = decide(job, state, seen)
        state = cycle.state
        yield cycle


def look(job: ControlledJob, state: State, recent: Recent, seen: Observation) -> View:
    """All that is known now, with the parallelism that is there, not the one that was asked for."""
    topology = job.topology.scaled(seen.parallelism)
    summary = recent.summary(seen.at_s, FRESH_INTERVALS * job.policy.interval_s)
    standings = tuple(standing(c, topology, recent, seen.at_s, state.settings.chained) for c in job.constraints)
    pooled = Summary(recent.pooled(max(_clean_s(job, state, seen), seen.at_s - recent.span_s)), {}, {})
    return View(
        job, state.cycle, seen.at_s, topology, state.settings, summary, pooled, standings, state.since, state.shaped_s
    )


def _clean_s(job: ControlledJob, state: State, seen: Observation) -> float:
    """Since when all measurements are of the present shape; its first interval counts until there is another."""
    interval_s = job.policy.interval_s
    return state.shaped_s + interval_s if seen.at_s - state.shaped_s > 1.5 * interval_s else state.shaped_s


def _unrepeated(proposals: Iterable[Proposal]) -> list[Proposal]:
    """Each once: several paths of a constraint may be held for one reason."""
    return list({(p.decision.key, p.decision.change): p for p in proposals}.values())


def _proposals(view: View, state: State) -> Iterator[Proposal]:
    policy, rest = view.job.policy, state.rest
    if policy.flush_by == "deadline":
        yield from propose_deadlines(view)
        if policy.scaling:
            yield from propose_scaling(view, rest)
        if policy.chaining and not rest.resting:
            yield from propose_chains(view)
        return
    sizes = list(propose_sizes(view, state.too_large))
    yield from sizes
    violated = [s for s in view.standings if s.met is False]
    if sizes or not violated or _changed_lately(view):
        return  # HPDC'12: chaining comes when sizing has nothing left to do, and never without a violation
    chains = list(propose_chains(view)) if policy.chaining and not rest.resting else []
    yield from chains
    if not chains:
        for lost in violated:
            seen_ms = lost.observed_ms or 0.0
            reason = "neither sizes nor chains can bring it down further; change the job or the bound"
            yield hold(view, lost.constraint.name, reason, "give up", observed_ms=seen_ms)


def _changed_lately(view: View) -> bool:
    """Whether some constrained channel has changed since it was last measured."""
    return any(view.summary.versions.get(channel, -1) < version for channel, version in view.since.items())


def _judge(view: View, state: State) -> tuple[tuple[Outcome, ...], tuple[Decision, ...]]:
    """Compare what is due with what is seen; while a scale-up is under way its decisions wait."""
    outcomes: list[Outcome] = []
    awaited: list[Decision] = []
    for decision in state.awaited:
        expects = decision.expects
        if expects is None:
            continue
        if state.rest.rising and decision.action == "scale":
            awaited.append(replace(decision, expects=replace(expects, due_cycle=expects.due_cycle + 1)))
        elif expects.due_cycle > view.cycle:
            awaited.append(decision)
        else:
            outcomes.append(compare(decision, _observed(view, expects), view.at_s))
    return tuple(outcomes), tuple(awaited)


def _observed(view: View, expects: Expectation) -> float | None:
    if isinstance(expects.element, int):
        return view.summary.edge(expects.element).wait_ms
    return view.summary.step(expects.element).peak_utilisation


def _pinned(job: ControlledJob, proposal: Proposal) -> Proposal:
    """Withhold what the user decided by hand, and everything if only to observe."""
    change, pins = proposal.change, job.overrides
    if change == SettingsChange():
        return proposal
    why = "observing only" if job.policy.observe_only else None
    if any(channel.edge in pins.deadlines_ms for channel in change.deadlines_ms):
        why = "the user pinned this edge's deadline"
    elif any(step in pins.parallelism for step in change.parallelism):
        why = "the user pinned this step's parallelism"
    elif any(edge in pins.chained for edge in change.joined | change.parted):
        why = "the user pinned a chain on this path"
    return replace(proposal, decision=replace(proposal.decision, withheld=why))
