"""Which subtasks of a stage have work: the controller numbers those, and sees no others.

A stage holds as many subtasks as may be needed before the next restart. Of a stateless stage the first few are
active; of a keyed one those that own slices, which may be any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec.structs

from headrace.measure.report import ChannelId, Report, SubtaskId
from headrace.runtime.orders import Orders
from headrace.runtime.ownership import Table, owners
from headrace.runtime.plan import JobPlan


@dataclass(frozen=True, slots=True)
class Ranks:
    """Per stage: the active subtasks, in the order of their ranks."""

    plan: JobPlan
    active: Mapping[int, tuple[int, ...]]

    @staticmethod
    def of(plan: JobPlan, orders: Orders, tables: Sequence[Table]) -> Ranks:
        """``tables`` say who owns slices in the running attempt, per stage; there are none before the first."""
        active: dict[int, tuple[int, ...]] = {}
        for stage in plan.layout.stages:
            first = plan.layout.stages[stage.first]
            keyed = any(edge.keyed for edge in plan.layout.border(first.index))
            if not first.elastic or (keyed and not tables):
                active[stage.index] = tuple(range(stage.active))
            elif keyed:
                active[stage.index] = owners(tables[first.index])
            else:
                active[stage.index] = tuple(range(orders.active.get(first.index, first.active)))
        return Ranks(plan, active)

    def parallelism(self) -> dict[str, int]:
        return {step: len(self.active[at]) for step, at in self.plan.layout.stage_of.items()}

    def translated(self, report: Report) -> Report:
        """A worker's report with ranks for indices, without those that have no work."""
        subtasks = [
            msgspec.structs.replace(s, id=SubtaskId(s.id.step, rank))
            for s in report.subtasks
            if (rank := self._rank(s.id.step, s.id.index)) is not None
        ]
        channels = []
        for channel in report.channels:
            edge = self.plan.layout.edges[channel.id.edge]
            sender = self._rank(edge.source, channel.id.sender)
            receiver = self._rank(edge.target, channel.id.receiver)
            if sender is not None and receiver is not None:
                channels.append(msgspec.structs.replace(channel, id=ChannelId(edge.id, sender, receiver)))
        return msgspec.structs.replace(report, subtasks=tuple(subtasks), channels=tuple(channels))

    def channels(self, edge: int) -> list[ChannelId]:
        """An edge's channels between subtasks that have work."""
        wire, stage_of = self.plan.layout.edges[edge], self.plan.layout.stage_of
        senders, receivers = (len(self.active[stage_of[step]]) for step in (wire.source, wire.target))
        return [ChannelId(edge, i, j) for i in range(senders) for j in range(receivers)]

    def index(self, step: str, rank: int) -> int | None:
        """The subtask with a rank now, if there is one."""
        active = self.active[self.plan.layout.stage_of[step]]
        return active[rank] if rank < len(active) else None

    def _rank(self, step: str, index: int) -> int | None:
        active = self.active[self.plan.layout.stage_of[step]]
        return active.index(index) if index in active else None
