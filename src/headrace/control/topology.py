"""The running job as the controller sees it: steps with their subtasks, edges with their channels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from headrace.errors import GraphError
from headrace.measure.report import ChannelId, SubtaskId

LatencyKind = Literal["read-ready", "read-write"]


@dataclass(frozen=True, slots=True)
class ControlledStep:
    """A step and its subtasks now; ``minimum`` and ``maximum`` are the user's limits.

    ``workers`` names the process of each subtask, where it is known.
    """

    name: str
    parallelism: int = 1
    minimum: int = 1
    maximum: int = 1
    latency: LatencyKind = "read-ready"
    source: bool = False
    sink: bool = False
    chain: bool = True
    workers: tuple[str, ...] = ()

    @property
    def elastic(self) -> bool:
        return self.minimum < self.maximum

    @property
    def measurable(self) -> bool:
        """Whether the step has a latency at all: no source has, nor a read-write sink."""
        return not self.source and not (self.sink and self.latency == "read-write")


@dataclass(frozen=True, slots=True)
class StepEdge:
    """A stream from one step to another; ``paired``: subtask i sends to subtask i only.

    ``fixed``: whether it is chained cannot change while the job runs. ``common``: a sender has one
    buffer for all its receivers, and one deadline.
    """

    id: int
    source: str
    target: str
    paired: bool = False
    fixed: bool = False
    common: bool = False


@dataclass(frozen=True, slots=True)
class Topology:
    """The template graph with its parallelism: steps and edges in order of flow."""

    steps: tuple[ControlledStep, ...]
    edges: tuple[StepEdge, ...]
    by_name: Mapping[str, ControlledStep] = field(init=False, repr=False, compare=False)
    by_id: Mapping[int, StepEdge] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {step.name: step for step in self.steps})
        object.__setattr__(self, "by_id", {edge.id: edge for edge in self.edges})
        for edge in self.edges:
            missing = {edge.source, edge.target} - self.by_name.keys()
            if missing:
                raise GraphError(f"edge {edge.id} joins {sorted(missing)}, which are not steps of this topology")

    def out_of(self, step: str) -> tuple[StepEdge, ...]:
        return tuple(edge for edge in self.edges if edge.source == step)

    def into(self, step: str) -> tuple[StepEdge, ...]:
        return tuple(edge for edge in self.edges if edge.target == step)

    def subtasks(self, step: str) -> Iterator[SubtaskId]:
        return (SubtaskId(step, index) for index in range(self.by_name[step].parallelism))

    def channels(self, edge: int) -> Iterator[ChannelId]:
        """The induced channels: all pairs, or equal indices on a paired edge."""
        wire = self.by_id[edge]
        senders = self.by_name[wire.source].parallelism
        receivers = self.by_name[wire.target].parallelism
        for sender in range(senders):
            if wire.paired:
                if sender < receivers:
                    yield ChannelId(edge, sender, sender)
            else:
                yield from (ChannelId(edge, sender, receiver) for receiver in range(receivers))

    def scaled_with(self, step: str) -> frozenset[str]:
        """The steps that must have this one's parallelism: those that paired edges lead to."""
        group, todo = {step}, [step]
        while todo:
            name = todo.pop()
            for edge in self.edges:
                if edge.paired and name in (edge.source, edge.target):
                    fresh = {edge.source, edge.target} - group
                    group |= fresh
                    todo += fresh
        return frozenset(group)

    def scaled(self, parallelism: Mapping[str, int]) -> Topology:
        """The same job with other numbers of subtasks; steps that are not named keep theirs."""
        steps = tuple(replace(s, parallelism=parallelism.get(s.name, s.parallelism)) for s in self.steps)
        return Topology(steps, self.edges)
