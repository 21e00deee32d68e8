"""One subtask's way through one epoch: HELLO, PLAN, load, GO, work, DESC, SEALED."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from headrace.runtime.plan import JobPlan, Ticket
from headrace.runtime.subtask import Control, Subtask
from headrace.runtime.wire.inbox import Inbox, read_into


class Channel(Control, Protocol):
    """The control channel as an epoch needs it."""

    def wait(self, kind: str, token: str | None, timeout_s: float) -> dict[str, Any]: ...


@dataclass(slots=True)
class Cache:
    """A worker's memory between epochs: at most one subtask per stage. A cache, never the truth."""

    subtasks: dict[tuple[str, int], Subtask] = field(default_factory=dict)

    def inventory(self, run: str, stage: int) -> tuple[str | None, int | None, int] | None:
        """The version, and which group of how many, of the slices held for a stage."""
        held = self.subtasks.get((run, stage))
        if held is None or held.version is None:
            return None
        base, group, groups = held.version
        return str(base) if base else None, group, groups

    def take(self, plan: JobPlan, stage: int, ticket: Ticket) -> Subtask:
        """The subtask in memory if it is just what the ticket asks for, else a new one."""
        held = self.subtasks.pop((plan.run, stage), None)
        if held is not None and held.version == (ticket.base, ticket.group, ticket.groups):
            return held
        if held is not None:
            held.close()
        return Subtask(plan, stage)

    def keep(self, subtask: Subtask) -> None:
        for run, stage in list(self.subtasks):
            if run != subtask.plan.run:
                self.subtasks.pop((run, stage)).close()
        self.subtasks[subtask.plan.run, subtask.stage] = subtask


def run_epoch(
    plan: JobPlan,
    stage: int,
    index: int,
    epoch: int,
    query: int,
    batches: Iterable[pa.RecordBatch],
    channel: Channel,
    cache: Cache,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one subtask for the next stage until the epoch is over and sealed."""
    inbox = Inbox(plan.settings.queue_bytes)
    read_into(inbox, batches)
    timeout_s = plan.settings.join_timeout_s
    place = {"stage": stage, "index": index}
    worker = {"pid": os.getpid(), "daemon": os.getppid(), "host": socket.gethostname()}
    inventory = cache.inventory(plan.run, stage)
    channel.tell("hello", {**place, "query": query, "epoch": epoch, "inventory": inventory, **worker})
    ticket = Ticket.from_wire(channel.wait("plan", None, timeout_s))
    token = str(ticket.token)
    subtask = cache.take(plan, stage, ticket)
    done = False
    try:
        subtask.begin(index, ticket, channel)
        channel.tell("loaded", {**place, "token": token})
        if subtask.has_sources:
            channel.wait("go", token, timeout_s)
        yield from subtask.run(inbox)
        channel.tell("desc", subtask.finish().to_wire())
        if plan.eager and stage == len(plan.layout.stages) - 1:
            channel.wait("sealed", token, timeout_s)
        subtask.await_end(inbox, timeout_s)
        done = True
    finally:
        if done:
            cache.keep(subtask)
        else:
            subtask.close()
