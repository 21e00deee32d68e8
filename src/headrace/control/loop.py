"""The control loop: look, judge what was decided before, propose, settle.

A pure function from state and observation to state, settings and sentences. Replaying a recorded
trace of observations gives the same decisions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from headrace.control.elastic import Rest, propose_scaling
from headrace.control.journal import Decision, Expectation, Outcome, compare
from headrace.control.proposals import Proposal, hold, propose_chains, propose_deadlines, propose_sizes
from headrace.control.settings import Change, Job, Policy, Settings
from headrace.control.standing import standing
from headrace.control.view import Observation, View
from headrace.measure.recent import Recent
from headrace.measure.report import ChannelId
from headrace.measure.summary import Summary

_FRESH_INTERVALS = 2.5
"""A report that is one interval late still says how things are; one that is two late does not."""


@dataclass(frozen=True, slots=True)
class State:
    """What the loop remembers from one cycle to the next.

    ``since``: the settings version that last changed a channel. ``too_large``: buffer sizes that had
    to be shrunk. ``shape``: the parallelism that was there, unchanged and rested since ``shaped_s``.
    ``said``: what was held or given up in the cycle before, not to be said again.
    """

    recent: Recent
    settings: Settings = field(default_factory=Settings)
    cycle: int = 0
    since: Mapping[ChannelId, int] = field(default_factory=dict)
    too_large: Mapping[ChannelId, int] = field(default_factory=dict)
    shape: Mapping[str, int] = field(default_factory=dict)
    shaped_s: float = -math.inf
    rest: Rest = field(default_factory=Rest)
    awaited: tuple[Decision, ...] = ()
    said: frozenset[tuple[str, str, str]] = frozenset()

    @staticmethod
    def of(job: Job) -> State:
        """The state at the start: all buffers ship at once, every step at its first parallelism."""
        span_s = max([c.over_s for c in job.constraints] + [_FRESH_INTERVALS * job.policy.interval_s])
        parallelism = {step.name: step.parallelism for step in job.topology.steps}
        parallelism.update(job.overrides.parallelism)
        chained = frozenset(edge for edge, chained in job.overrides.chained.items() if chained)
        largest = job.topology.scaled(
            {step.name: max(step.most, parallelism[step.name]) for step in job.topology.steps}
        )
        deadlines = {c: ms for edge, ms in job.overrides.deadlines_ms.items() for c in largest.channels(edge)}
        rest = Rest(cycles=job.policy.rest_cycles + 1)  # what is measured while a job starts says little
        return State(Recent(span_s), Settings(0, deadlines, {}, parallelism, chained), rest=rest)


@dataclass(frozen=True, slots=True)
class Cycle:
    """What one turn of the loop gives; ``state.settings`` are to be put into force."""

    state: State
    decisions: tuple[Decision, ...]
    outcomes: tuple[Outcome, ...]


def decide(job: Job, state: State, seen: Observation) -> Cycle:
    """One turn of the loop."""
    recent = state.recent.add(seen.reports, seen.at_s)
    rest = _rested(job.policy, state, seen)
    if rest.cycles:
        state = replace(state, shape=seen.parallelism, shaped_s=seen.at_s)
    elif seen.parallelism != state.shape:
        state = replace(state, shape=seen.parallelism, shaped_s=seen.at_s - job.policy.interval_s)
    view = look(job, state, recent, seen)
    outcomes, awaited = _judge(view, state, moving=rest.rising)
    proposals = [_pinned(job, proposal) for proposal in _proposals(view, state, rest)]
    changes = [proposal.change for proposal in proposals if proposal.decision.withheld is None]
    settings = state.settings
    for change in changes:
        settings = settings.changed(change)
    settings = settings if settings is state.settings else replace(settings, version=state.settings.version + 1)
    holds = frozenset((p.decision.action, p.decision.subject, p.decision.reason) for p in proposals if _is_still(p))
    decisions = tuple(p.decision for p in proposals if not (_is_still(p) and _key(p) in state.said))
    after = State(
        recent,
        settings,
        state.cycle + 1,
        _since(state, changes, settings.version),
        _too_large(view, state, changes),
        state.shape,
        state.shaped_s,
        _next_rest(job.policy, rest, state.settings, settings),
        (*awaited, *(d for d in decisions if d.expects is not None and d.withheld is None)),
        holds,
    )
    return Cycle(after, decisions, outcomes)


def replay(job: Job, trace: Iterable[Observation]) -> Iterator[Cycle]:
    """The decisions that a recorded trace leads to."""
    state = State.of(job)
    for seen in trace:
        cycle = decide(job, state, seen)
        state = cycle.state
        yield cycle


def look(job: Job, state: State, recent: Recent, seen: Observation) -> View:
    """All that is known now, with the parallelism that is there, not the one that was asked for."""
    topology = job.topology.scaled(seen.parallelism)
    summary = recent.summary(seen.at_s, _FRESH_INTERVALS * job.policy.interval_s)
    standings = tuple(standing(c, topology, recent, seen.at_s, state.settings.chained) for c in job.constraints)
    pooled = Summary(recent.pooled(max(state.shaped_s, seen.at_s - recent.span_s)), {}, {})
    return View(job, state.cycle, seen.at_s, topology, state.settings, summary, pooled, standings, state.since)


def _proposals(view: View, state: State, rest: Rest) -> Iterator[Proposal]:
    policy = view.job.policy
    if policy.cut_by == "deadline":
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


def _rested(policy: Policy, state: State, seen: Observation) -> Rest:
    asked = state.settings.parallelism
    complete = all(seen.parallelism.get(step, n) == n for step, n in asked.items())
    return state.rest.after(complete, policy.rest_cycles)


def _judge(view: View, state: State, *, moving: bool) -> tuple[tuple[Outcome, ...], tuple[Decision, ...]]:
    """Compare what is due with what is seen; while a scale-up is under way its decisions wait."""
    outcomes: list[Outcome] = []
    awaited: list[Decision] = []
    for decision in state.awaited:
        expects = decision.expects
        if expects is None:
            continue
        if moving and decision.action == "scale":
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


def _pinned(job: Job, proposal: Proposal) -> Proposal:
    """Withhold what the user decided by hand, and everything if only to observe."""
    change, pins = proposal.change, job.overrides
    if change == Change():
        return proposal
    why = "observing only" if job.policy.observe_only else None
    if any(channel.edge in pins.deadlines_ms for channel in change.deadlines_ms):
        why = "the user pinned this edge's deadline"
    elif any(step in pins.parallelism for step in change.parallelism):
        why = "the user pinned this step's parallelism"
    elif any(edge in pins.chained for edge in change.joined | change.parted):
        why = "the user pinned a chain on this path"
    return replace(proposal, decision=replace(proposal.decision, withheld=why))


def _is_still(proposal: Proposal) -> bool:
    return proposal.decision.action in ("hold", "give up")


def _key(proposal: Proposal) -> tuple[str, str, str]:
    return proposal.decision.action, proposal.decision.subject, proposal.decision.reason


def _next_rest(policy: Policy, rest: Rest, before: Settings, after: Settings) -> Rest:
    """A scale-up has to be complete before the rest begins; new chains are in force at once."""
    if any(n > before.parallelism.get(step, n) for step, n in after.parallelism.items()):
        return Rest(rising=True)
    return rest if after.chained == before.chained else Rest(cycles=policy.rest_cycles + 1)


def _since(state: State, changes: Iterable[Change], version: int) -> dict[ChannelId, int]:
    changed = [channel for change in changes for channel in (*change.deadlines_ms, *change.sizes_bytes)]
    return {**state.since, **dict.fromkeys(changed, version)}


def _too_large(view: View, state: State, changes: Iterable[Change]) -> Mapping[ChannelId, int]:
    if not any(standing.met is False for standing in view.standings):
        return {}  # the load may be another when the bound is next violated
    largest = view.job.policy.sizes.most_bytes
    before = {c: state.settings.sizes_bytes.get(c, largest) for change in changes for c in change.sizes_bytes}
    after = {c: size for change in changes for c, size in change.sizes_bytes.items()}
    shrunk = {channel: before[channel] for channel, size in after.items() if size < before[channel]}
    return {**state.too_large, **shrunk}
