"""One subtask's way through one batch of Spark's: HELLO, PLAN, load, GO, work, cut after cut, and the end."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from headrace.runtime.controlend import Control
from headrace.runtime.cutmaking.copying import Near
from headrace.runtime.messages import Go, Hello, Inventory, Loaded, Planned, Turn
from headrace.runtime.plan import JobPlan, Ticket
from headrace.runtime.subtask import Subtask
from headrace.runtime.wire.inbox import Inbox, read_into
from headrace.tokens import Attempt


class Channel(Control, Protocol):
    """The control channel as an attempt needs it."""

    def wait(self, turn: type[Turn], timeout_s: float, *, attempt: Attempt | None = None) -> Turn:
        """The next message of a type (and attempt); FencedError when told so, ChannelError after ``timeout_s``."""
        ...


@dataclass(slots=True)
class Cache:
    """A worker's memory between batches: at most one subtask per stage. A cache, never the truth."""

    subtasks: dict[tuple[str, int], Subtask] = field(default_factory=dict)

    def inventory(self, run: str, stage: int) -> Inventory | None:
        """The slices held for a stage."""
        held = self.subtasks.get((run, stage))
        return Inventory(*held.version) if held is not None and held.version is not None else None

    def take(self, plan: JobPlan, stage: int, ticket: Ticket) -> Subtask:
        """The subtask in memory if it is just what the ticket asks for, else a new one."""
        held = self.subtasks.pop((plan.run, stage), None)
        if held is not None and held.version == (ticket.base, ticket.mine):
            return held
        if held is not None:
            held.close()
        return Subtask(plan, stage)

    def keep(self, subtask: Subtask) -> None:
        for run, stage in list(self.subtasks):
            if run != subtask.plan.run:
                self.subtasks.pop((run, stage)).close()
        self.subtasks[subtask.plan.run, subtask.stage] = subtask


def run_attempt(
    plan: JobPlan,
    stage: int,
    index: int,
    batch: int,
    query: int,
    batches: Iterable[pa.RecordBatch],
    channel: Channel,
    cache: Cache,
    near: Near | None = None,
    executor: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one subtask for the next stage, until the cut that ends the batch has been made.

    In real-time mode it is in the version log when this returns; stage by stage it is durable, and described.
    ``near`` is the node that keeps copies of state here, if any does, ``executor`` what Spark calls the executor.
    """
    inbox = Inbox(plan.settings.queue_bytes)
    read_into(inbox, batches)
    timeout_s = plan.settings.join_timeout_s
    inventory = cache.inventory(plan.run, stage)
    node = near.node if near is not None else None
    who = socket.gethostname(), os.getppid(), os.getpid(), node, executor
    channel.tell(Hello(stage, index, query, batch, inventory, *who))
    ticket = channel.wait(Planned, timeout_s).ticket
    subtask = cache.take(plan, stage, ticket)
    done = False
    try:
        loading = subtask.begin(index, ticket, channel, near)
        channel.tell(Loaded(stage, index, ticket.attempt, loading))
        if subtask.has_sources:
            channel.wait(Go, timeout_s, attempt=ticket.attempt)
        yield from subtask.run(inbox)
        subtask.settle(inbox)
        subtask.await_end(inbox, timeout_s)
        done = True
    finally:
        if done:
            cache.keep(subtask)
        else:
            subtask.close()
