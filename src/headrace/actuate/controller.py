"""The control loop at work: reports in, orders out, every decision journaled.

``decide`` is pure; here are its memory, its clock and its hands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from headrace.actuate.ledger import Ledger
from headrace.control.journal import Decision, Outcome
from headrace.control.loop import decide
from headrace.control.settings import Change, Job, Overrides, Settings
from headrace.control.standing import Standing
from headrace.control.state import State
from headrace.measure.trace import Observation, write
from headrace.runtime.orders import Orders
from headrace.runtime.plan import JobPlan

Say = Callable[[str, str], None]
"""What happened, and the sentence about it."""


@dataclass(slots=True)
class Kept:
    """How often a constraint was met, of the cycles in which that was known."""

    bound_ms: float
    cycles: int = 0
    met: int = 0
    latest_ms: float | None = None

    def add(self, standing: Standing) -> None:
        self.latest_ms = standing.observed_ms
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
    job: Job
    order: Callable[[Orders], None]
    say: Say
    trace: TextIO | None = None
    state: State = field(init=False)
    ledger: Ledger = field(default_factory=Ledger)
    kept: dict[str, Kept] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = State.of(self.job)
        self.kept = {c.describe(): Kept(c.bound_ms) for c in self.job.constraints}

    def start(self) -> None:
        """Put the first settings into force."""
        self.order(orders_of(self.state.settings, self.plan))

    def cycle(self, seen: Observation) -> None:
        """One turn of the loop."""
        if self.trace is not None:
            write(self.trace, seen)
        self.ledger.add(seen.at_s, seen.parallelism)
        before = self.state.settings
        cycle = decide(self.job, self.state, seen)
        self.state = cycle.state
        for standing in cycle.standings:
            self.kept[standing.constraint.describe()].add(standing)
        if self.state.settings is not before:
            self.order(orders_of(self.state.settings, self.plan))
        self._journal(cycle.decisions, cycle.outcomes)

    def override(self, overrides: Overrides) -> None:
        """What the user decides by hand is in force at once and stays; the controller works around it."""
        channels = {c: ms for edge, ms in overrides.deadlines_ms.items() for c in self.job.topology.channels(edge)}
        change = Change(
            deadlines_ms=channels,
            parallelism=dict(overrides.parallelism),
            joined=frozenset(edge for edge, chained in overrides.chained.items() if chained),
            parted=frozenset(edge for edge, chained in overrides.chained.items() if not chained),
        )
        self.job = replace(self.job, overrides=overrides)
        self.state = replace(self.state, settings=self.state.settings.changed([change]))
        self.order(orders_of(self.state.settings, self.plan))
        self.say("override", f"by hand: {overrides}")

    def _journal(self, decisions: tuple[Decision, ...], outcomes: tuple[Outcome, ...]) -> None:
        for decision in decisions:
            self.say(decision.action, decision.sentence())
        for outcome in outcomes:
            self.say("outcome", outcome.sentence())

    def close(self) -> None:
        if self.trace is not None:
            self.trace.close()


def orders_of(settings: Settings, plan: JobPlan) -> Orders:
    """Settings per channel as orders per sender: an edge has one buffer for all its receivers, so the lowest wins."""
    deadlines: dict[tuple[int, int], int] = {}
    for channel, ms in settings.deadlines_ms.items():
        sender = (channel.edge, channel.sender)
        deadlines[sender] = min(round(1000 * ms), deadlines.get(sender, 1 << 62))
    sizes: dict[tuple[int, int], int] = {}
    for channel, size in settings.sizes_bytes.items():
        sender = (channel.edge, channel.sender)
        sizes[sender] = min(size, sizes.get(sender, size))
    active = {
        stage.index: settings.parallelism[stage.steps[0]]
        for stage in plan.layout.stages
        if stage.index == stage.first and stage.steps and stage.least < stage.subtasks
    }
    return Orders(settings.version, deadlines, sizes, active, settings.chained)


def open_trace(path: Path | None) -> TextIO | None:
    return None if path is None else path.open("w", encoding="utf-8")
