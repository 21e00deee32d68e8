"""Small jobs for the simulated plant, and the loop closed around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from headrace.control.constraints import PathConstraint, paths_between
from headrace.control.decisions import Decision, Outcome
from headrace.control.loop import decide, look
from headrace.control.policy import ControlledJob, ControlPolicy, ControlSettings
from headrace.control.remembered import State
from headrace.control.standing import Standing
from headrace.control.topology import ControlledStep, StepEdge, Topology
from headrace.control.view import View
from headrace.measure.trace import Observation
from headrace.testing.plant import Plant


def line(*middle: ControlledStep, sources: int = 1, sinks: int = 1, paired: bool = False) -> Topology:
    """src → middle … → out; ``paired`` joins the middle steps one to one."""
    steps = (ControlledStep("src", sources, source=True), *middle, ControlledStep("out", sinks, sink=True))
    inner = range(1, len(steps) - 2)
    edges = tuple(StepEdge(i, a.name, b.name, paired and i in inner) for i, (a, b) in enumerate(pairwise(steps)))
    return Topology(steps, edges)


def job_of(topology: Topology, bound_ms: float, *, end: str = "out", **policy: Any) -> ControlledJob:
    constraint = PathConstraint("c", paths_between(topology, "src", end), bound_ms)
    return ControlledJob(topology, (constraint,), ControlPolicy(**policy))


@dataclass
class Run:
    """What happened in a closed loop, interval by interval."""

    seen: list[Observation] = field(default_factory=list)
    views: list[View] = field(default_factory=list)
    decisions: list[tuple[Decision, ...]] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    settings: list[ControlSettings] = field(default_factory=list)

    def of(self, action: str) -> list[Decision]:
        return [d for cycle in self.decisions for d in cycle if d.action == action]

    def standings(self, index: int = 0) -> list[Standing]:
        return [view.standings[index] for view in self.views]

    def met_share(self, first: int = 0) -> float:
        met = [standing.met for standing in self.standings()[first:]]
        return sum(m is True for m in met) / len(met)

    def subtask_s(self, step: str) -> float:
        return sum(seen.parallelism[step] for seen in self.seen)


def drive(job: ControlledJob, plant: Plant, cycles: int, *, watch: Callable[[Plant], None] = lambda plant: None) -> Run:
    """Run plant and controller against each other."""
    run, state = Run(), State.of(job)
    for _ in range(cycles):
        seen = plant.run(state.settings)
        watch(plant)
        cycle = decide(job, state, seen)
        run.seen.append(seen)
        run.views.append(look(job, state, cycle.state.recent, seen))
        run.decisions.append(cycle.decisions)
        run.outcomes += cycle.outcomes
        run.settings.append(state.settings)
        state = cycle.state
    return run
