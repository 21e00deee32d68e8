"""What the loop remembers from one cycle to the next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.control.decisions import Decision
from headrace.control.policy import ControlledJob, ControlPolicy, ControlSettings, SettingsChange
from headrace.control.view import View
from headrace.measure.recent import Recent
from headrace.measure.report import ChannelId
from headrace.measure.trace import Observation

FRESH_INTERVALS = 2.5
"""A report that is one interval late still describes the present; one that is two late does not."""


@dataclass(frozen=True, slots=True)
class Rest:
    """``rising``: a scale-up has been asked for and is not complete, since ``cycles``; otherwise these
    are left to rest. ``abandoned``: it was waited for in vain until now.
    """

    rising: bool = False
    cycles: int = 0
    abandoned: bool = False

    @property
    def resting(self) -> bool:
        return self.rising or self.cycles > 0

    def after(self, complete: bool, policy: ControlPolicy) -> Rest:
        """One cycle later."""
        if not self.rising:
            return Rest(cycles=max(0, self.cycles - 1))
        if complete:
            return Rest(cycles=policy.rest_cycles)
        waited = self.cycles + 1
        return Rest(abandoned=True) if waited >= policy.patience_cycles else Rest(rising=True, cycles=waited)


@dataclass(frozen=True, slots=True)
class State:
    """``since``: the settings version that last changed a channel. ``too_large``: buffer sizes that had
    to be shrunk. ``shape``: the parallelism that was there, unchanged and rested since ``shaped_s``.
    ``said``: what was held or given up in the cycle before, not to be said again.
    """

    recent: Recent
    settings: ControlSettings = field(default_factory=ControlSettings)
    cycle: int = 0
    since: Mapping[ChannelId, int] = field(default_factory=dict)
    too_large: Mapping[ChannelId, int] = field(default_factory=dict)
    shape: Mapping[str, int] = field(default_factory=dict)
    shaped_s: float = -math.inf
    rest: Rest = field(default_factory=Rest)
    awaited: tuple[Decision, ...] = ()
    said: frozenset[tuple[str, str, str]] = frozenset()

    @staticmethod
    def of(job: ControlledJob) -> State:
        """The state at the start: all buffers ship at once, every step at its first parallelism."""
        span_s = max([c.over_s for c in job.constraints] + [FRESH_INTERVALS * job.policy.interval_s])
        parallelism = {step.name: step.parallelism for step in job.topology.steps}
        parallelism.update(job.overrides.parallelism)
        pins = job.overrides.chained
        chained = frozenset(edge for edge in job.chained | pins.keys() if pins.get(edge, True))
        largest = job.topology.scaled(
            {step.name: max(step.maximum, parallelism[step.name]) for step in job.topology.steps}
        )
        first_ms = job.policy.first_deadline_ms if job.policy.flush_by == "deadline" else 0.0
        constrained = sorted({edge for constraint in job.constraints for edge in constraint.edges})
        deadlines = {c: first_ms for edge in constrained if first_ms for c in largest.channels(edge)}
        deadlines |= {c: ms for edge, ms in job.overrides.deadlines_ms.items() for c in largest.channels(edge)}
        rest = Rest(cycles=job.policy.rest_cycles + 1)  # measurements of a job's start say little
        return State(Recent(span_s), ControlSettings(0, deadlines, {}, parallelism, chained), rest=rest)

    def seeing(self, seen: Observation, job: ControlledJob) -> State:
        """One cycle later: closer to the end of the rest, and aware of the parallelism that is there.

        What was measured while it rested, or with another parallelism, says nothing about the next.
        """
        asked = self.settings.parallelism
        complete = all(seen.parallelism.get(step, n) == n for step, n in asked.items())
        rest = self.rest.after(complete, job.policy)
        settings, shaped_s = self.settings, self.shaped_s
        if rest.abandoned:
            there = {step: n for step, n in seen.parallelism.items() if step not in job.overrides.parallelism}
            settings = settings.changed([SettingsChange(parallelism=there)])
        if rest.cycles and not rest.rising:
            shaped_s = seen.at_s
        elif seen.parallelism != self.shape:
            shaped_s = seen.at_s - job.policy.interval_s
        return replace(self, settings=settings, rest=rest, shape=seen.parallelism, shaped_s=shaped_s)

    def after(self, changes: Sequence[SettingsChange], view: View) -> State:
        """With the changes put into force."""
        settings = self.settings.changed(changes)
        channels = [channel for change in changes for channel in (*change.deadlines_ms, *change.sizes_bytes)]
        return replace(
            self,
            settings=settings,
            since={**self.since, **dict.fromkeys(channels, settings.version)},
            too_large=self._too_large(changes, view),
            rest=self._next_rest(settings, view.job.policy),
        )

    def _next_rest(self, settings: ControlSettings, policy: ControlPolicy) -> Rest:
        """A scale-up has to be complete before the rest begins; new chains are in force at once."""
        if any(n > self.settings.parallelism.get(step, n) for step, n in settings.parallelism.items()):
            return Rest(rising=True)
        return self.rest if settings.chained == self.settings.chained else Rest(cycles=policy.rest_cycles + 1)

    def _too_large(self, changes: Sequence[SettingsChange], view: View) -> Mapping[ChannelId, int]:
        if not any(standing.met is False for standing in view.standings):
            return {}  # the load may be another when the bound is next violated
        largest = view.job.policy.sizes.max_bytes
        wanted = {channel: size for change in changes for channel, size in change.sizes_bytes.items()}
        before = {channel: self.settings.sizes_bytes.get(channel, largest) for channel in wanted}
        shrunk = {channel: size for channel, size in before.items() if wanted[channel] < size}
        return {**self.too_large, **shrunk}
