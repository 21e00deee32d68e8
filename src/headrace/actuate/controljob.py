"""The running job as the controller sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from headrace.config import Settings
from headrace.control.constraints import PathConstraint, paths_between
from headrace.control.executors import PATIENCE_S
from headrace.control.policy import ControlledJob, ControlPolicy, Overrides
from headrace.control.topology import ControlledStep, StepEdge, Topology
from headrace.errors import ConfigError
from headrace.graph.nodes import Constraint, SinkNode, SourceNode, StepOptions
from headrace.runtime.plan import JobPlan
from headrace.units import Duration, duration_s

_BATCHING_SHARE = 0.6
"""The prototype has 0.8. A step serves a whole buffer at once here, so its latency grows with the buffer's deadline;
with 0.8 the mean of a busy path would lie at the bound itself, and above it half of the time."""
_FIT_LIMITS = 0.8, 2.0
"""The prototype clamps to 1.2 above; a backlog that drains makes waits look longer than any load would."""

_QUIET_CYCLES = 2
"""The thesis adjusts every 5 s; after one second, a tenth of what was measured is still of the parallelism before."""


def topology_of(plan: JobPlan) -> Topology:
    """Steps, those that edges pass through among them, with the subtasks of their stages; all edges.

    Edges inside a leg are paired: their steps always have equally many subtasks. Where a leg is one
    process, its edges are fixed; so are those to steps that cannot move.
    """
    layout = plan.layout
    steps = []
    for name, at in layout.stage_of.items():
        node, stage = plan.graph.by_name.get(name), layout.stages[at]
        options = node.options if node is not None else StepOptions()
        step = ControlledStep(name, stage.active, stage.minimum, stage.maximum, options.latency, chain=options.chain)
        steps.append(replace(step, source=isinstance(node, SourceNode), sink=isinstance(node, SinkNode)))
    edges = tuple(
        StepEdge(e.id, e.source, e.target, e.border is None, e.target not in layout.movable, common=True)
        for e in layout.edges
    )
    return Topology(tuple(steps), edges)


def control_job(plan: JobPlan, *, observe_only: bool = False, overrides: Overrides | None = None) -> ControlledJob:
    """The controller's job; GraphError for constraints that no controller could keep together."""
    topology = topology_of(plan)
    settings = plan.settings
    policy = ControlPolicy(
        interval_s=settings.report_s,
        flush_by=settings.flush_by,
        chaining=settings.chaining == "dynamic",
        observe_only=observe_only,
        first_deadline_ms=settings.flush_s * 1000,
        fit_limits=_FIT_LIMITS,
        batching_share=_BATCHING_SHARE,
        patience_cycles=_patience_cycles(settings),
        quiet_cycles=_QUIET_CYCLES,
    )
    constraints = tuple(constraint_of(bound, topology) for bound in plan.graph.constraints)
    return ControlledJob(topology, constraints, policy, overrides or Overrides(), plan.layout.chained)


def _patience_cycles(settings: Settings) -> int:
    """Executors that are asked for take their time to come, and then wait for a cut."""
    usual = ControlPolicy().patience_cycles
    if settings.executors is None:
        return usual
    return max(usual, ceil(2 * (PATIENCE_S + settings.cut_every_s) / settings.report_s))


def constraint_of(bound: Constraint, topology: Topology) -> PathConstraint:
    """A user's bound over all paths between its two steps."""
    bound_us = bound.mean_us if bound.quantile is None else bound.quantile_us
    return PathConstraint(
        f"{bound.start} → {bound.end}", paths_between(topology, bound.start, bound.end), (bound_us or 0) / 1000,
        bound.over_us / 1e6, bound.quantile,
    )  # fmt: skip


def overrides_of(
    plan: JobPlan, deadlines: Mapping[str, Duration], parallelism: Mapping[str, int], chained: Mapping[str, bool]
) -> Overrides:
    """What a user writes as the controller's pins; ConfigError for unknown names and impossible numbers."""
    limits = {step.name: step for step in topology_of(plan).steps}
    for name, n in parallelism.items():
        step = limits.get(name)
        if step is None or not step.minimum <= n <= step.maximum:
            known = ", ".join(f"{s.name} {s.minimum} to {s.maximum}" for s in limits.values() if s.elastic)
            raise ConfigError(
                f"parallelism {name}={n}: elastic steps are {known or 'none; give one parallelism=(min, start, max)'}"
            )
    scaled = {member: n for name, n in parallelism.items() for member in topology_of(plan).scaled_with(name)}
    return Overrides(
        {_edge(plan, name): duration_s(bound, name) * 1000 for name, bound in deadlines.items()},
        scaled,
        {_edge(plan, name): bool(join) for name, join in chained.items()},
    )


def _edge(plan: JobPlan, name: str) -> int:
    ends = tuple(part.strip() for part in name.replace("→", ">").split(">"))
    for edge in plan.layout.edges:
        if (edge.source, edge.target) == ends:
            return edge.id
    known = ", ".join(f"{edge.source} → {edge.target}" for edge in plan.layout.edges)
    raise ConfigError(f"{name!r} is no edge of this job; its edges are {known}")
