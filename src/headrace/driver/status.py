"""What a run tells about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from headrace.control.recovering import Recovered
from headrace.measure.report import ChannelId, ChannelReport
from headrace.measure.summary import EdgeFigures, StepFigures, Summary

State = Literal["standby", "starting", "running", "restarting", "finished", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to the run, in words and printed with its time; ``number`` counts the run's events from 0."""

    at_s: float
    what: str
    detail: str
    number: int = 0

    @property
    def at(self) -> datetime:
        """When it happened, in local time."""
        return datetime.fromtimestamp(self.at_s).astimezone()

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S} {self.what}: {self.detail}"


@dataclass(frozen=True, slots=True)
class CutFigures:
    """The last cut that was logged: how long it took from its order to the log, how long it held records up and a core worked
    for it, where that was longest, and what it wrote.
    """

    number: int
    logged_s: float
    took_ms: float
    aligned_ms: float
    worked_ms: float
    bytes: int


@dataclass(slots=True)
class Status:
    """What a run is doing.

    ``counters`` follow the reports while it runs, about once a second; in the end they are those of its logged cuts.
    ``cuts`` were logged by this run, ``cut`` is the last one, ``cut_age_s`` how long ago that was: what a failure now would
    repeat. ``unpublished`` cuts wait for their sinks. ``loaded``: slices that the last start loaded, by where from:
    ``memory`` and ``node`` (a disk) of the own executor, ``peer``, ``checkpoint``. ``recovered`` is the last failure that is
    over: how long that took, and what ``recovery`` promises. ``copied_cut``: up to this cut copies of all slices are complete on
    all executors that are to have them; None if something is missing, or no copies are kept. ``steps`` and ``channels`` are the figures of the last reports; what
    nobody has measured lately is left out. ``edges`` are the same channels by edge of the plan
    (``run.plan.layout.edges``). ``dropped_events`` are so old that ``decisions()`` no longer has them.
    """

    state: State
    cuts: int
    restarts: int
    counters: dict[str, int] = field(default_factory=dict)
    workers: int = 0
    dropped_events: int = 0
    cut: CutFigures | None = None
    cut_age_s: float | None = None
    unpublished: int = 0
    loaded: Mapping[str, int] = field(default_factory=dict)
    recovered: Recovered | None = None
    copied_cut: int | None = None
    steps: Mapping[str, StepFigures] = field(default_factory=dict)
    edges: Mapping[int, EdgeFigures] = field(default_factory=dict)
    channels: Mapping[ChannelId, ChannelReport] = field(default_factory=dict)

    def measured(self, summary: Summary) -> Status:
        """With the figures of a summary."""
        self.steps = {step: summary.step(step) for step in sorted({id.step for id in summary.subtasks})}
        self.edges = {edge: summary.edge(edge) for edge in sorted({id.edge for id in summary.channels})}
        self.channels = summary.channels
        return self
