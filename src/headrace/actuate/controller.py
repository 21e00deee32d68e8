"""The control loop at work: reports in, orders out, every decision journaled.

``decide`` is pure; here are its memory, its clock and its hands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from headrace.actuate.ledger import Ledger
from headrace.actuate.ranks import Ranks
from headrace.control.decisions import Decision, Outcome
from headrace.control.loop import decide
from headrace.control.policy import ControlledJob, ControlSettings, Overrides, SettingsChange
from headrace.control.remembered import State
from headrace.control.standing import Standing
from headrace.graph.slots import elastic_legs
from headrace.graph.stages import Layout
from headrace.measure.report import ChannelId, Report
from headrace.measure.trace import Observation, write
from headrace.runtime.orders import NO_ORDERS, Orders, Sender
from headrace.runtime.plan import JobPlan

_LONGEST_MS = 1000.0

Say = Callable[[str, str], None]
"""What happened, and the sentence about it."""


@dataclass(slots=True)
class BoundKept:
    """How often a constraint was met, of the cycles in which that was known, and what was measured last and at worst."""

    bound_ms: float
    cycles: int = 0
    met: int = 0
    latest_ms: float | None = None
    worst_ms: float | None = None

    def add(self, standing: Standing) -> None:
        if standing.observed_ms is not None:
            self.latest_ms = standing.observed_ms
            self.worst_ms = max(standing.observed_ms, self.worst_ms or 0.0)
        if standing.met is not None:
            self.cycles += 1
            self.met += standing.met

    @property
    def met_share(self) -> float | None:
        return self.met / self.cycles if self.cycles else None


@dataclass(slots=True)
class Controller:
    """Turns observations into orders; ``trace`` keeps the observations for a replay."""

    plan: JobPlan
    job: ControlledJob
    order: Callable[[Orders], None]
    say: Say
    trace: TextIO | None = None
    state: State = field(init=False)
    ledger: Ledger = field(default_factory=Ledger)
    kept: dict[str, BoundKept] = field(default_factory=dict)
    _ranked: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = State.of(self.job)
        self.kept = {c.describe(): BoundKept(c.bound_ms) for c in self.job.constraints}

    def start(self) -> None:
        """Put the first settings into force."""
        self._order(Ranks.of(self.plan, NO_ORDERS, ()))

    def laid_out(self, plan: JobPlan, ranks: Ranks) -> None:
        """The job goes on with other subtasks: settings that the former ones could not follow may be in force now."""
        self.plan = plan
        self._order(ranks)

    def _order(self, ranks: Ranks) -> None:
        policy, edges = self.job.policy, {edge for c in self.job.constraints for edge in c.edges}
        sized = dict.fromkeys(sorted(edges), policy.sizes.max_bytes) if policy.flush_by == "size" else {}
        self.order(orders_of(self.state.settings, ranks, sized))

    def cycle(self, at_s: float, reports: Iterable[Report], ranks: Ranks) -> None:
        """One turn of the loop."""
        seen = Observation(at_s, tuple(map(ranks.translated, reports)), ranks.parallelism())
        if self.trace is not None:
            write(self.trace, seen)
        self.ledger.add(seen.at_s, seen.parallelism)
        before, moved = self.state.settings, ranks.active != self._ranked
        self._ranked = ranks.active
        cycle = decide(self.job, self.state, seen)
        self.state = cycle.state
        for standing in cycle.standings:
            self.kept[standing.constraint.describe()].add(standing)
        if moved or self.state.settings is not before:
            self._order(ranks)
        self._journal(cycle.decisions, cycle.outcomes)

    def override(self, overrides: Overrides, ranks: Ranks) -> None:
        """What the user decides by hand is in force at once and stays; the controller works around it."""
        channels = {c: ms for edge, ms in overrides.deadlines_ms.items() for c in self.job.topology.channels(edge)}
        change = SettingsChange(
            deadlines_ms=channels,
            parallelism=dict(overrides.parallelism),
            joined=frozenset(edge for edge, chained in overrides.chained.items() if chained),
            parted=frozenset(edge for edge, chained in overrides.chained.items() if not chained),
        )
        self.job = replace(self.job, overrides=overrides)
        self.state = replace(self.state, settings=self.state.settings.changed([change]))
        self._order(ranks)
        self.say("override", f"by hand: {overrides}")

    def _journal(self, decisions: tuple[Decision, ...], outcomes: tuple[Outcome, ...]) -> None:
        for decision in decisions:
            self.say(decision.action, decision.sentence())
        for outcome in outcomes:
            self.say("outcome", outcome.sentence())

    def close(self) -> None:
        if self.trace is not None:
            self.trace.close()


def orders_of(settings: ControlSettings, ranks: Ranks, sized: Mapping[int, int] | None = None) -> Orders:
    """Settings per channel as orders per sender: an edge has one buffer for all its receivers, so the lowest wins.

    ``sized`` edges are flushed by size, at first by the one given; no record waits longer than a second for that.
    """
    layout = ranks.plan.layout
    active = {at: min(n, layout.stages[at].subtasks) for at, n in wanted_subtasks(settings, layout).items()}
    deadlines_ms, sizes = dict(settings.deadlines_ms), dict(settings.sizes_bytes)
    for edge, size in (sized or {}).items():
        for channel in ranks.channels(edge):
            deadlines_ms.setdefault(channel, _LONGEST_MS)
            sizes.setdefault(channel, size)
    deadlines = {channel: round(1000 * ms) for channel, ms in deadlines_ms.items()}
    return Orders(settings.version, _lowest(deadlines, ranks), _lowest(sizes, ranks), active, settings.chained, None)


def wanted_subtasks(settings: ControlSettings, layout: Layout) -> dict[int, int]:
    """Per elastic leg: how many subtasks the settings ask for, whether or not they are there."""
    return {leg.index: settings.parallelism[leg.steps[0]] for leg in elastic_legs(layout)}


def _lowest(values: Mapping[ChannelId, int], ranks: Ranks) -> dict[Sender, int]:
    lowest: dict[Sender, int] = {}
    for channel, value in values.items():
        edge = ranks.plan.layout.edges[channel.edge]
        sender, receiver = ranks.index(edge.source, channel.sender), ranks.index(edge.target, channel.receiver)
        if sender is not None and receiver is not None:
            lowest[edge.id, sender] = min(value, lowest.get((edge.id, sender), value))
    return lowest


def open_trace(path: Path | None) -> TextIO | None:
    return None if path is None else path.open("w", encoding="utf-8")
