"""One subtask at work by itself: a driver and senders that do what a test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.config import Settings
from headrace.driver.planning import plan_job
from headrace.runtime.batch import Batch
from headrace.runtime.messages import Aligned, Described, Logged, ToDriver, ToWorker
from headrace.runtime.orders import NO_ORDERS
from headrace.runtime.ownership import Table, dealt, owned
from headrace.runtime.plan import Description, JobPlan, Ticket
from headrace.runtime.subtask import Subtask
from headrace.runtime.wire.channelmeter import Stamp
from headrace.runtime.wire.edges import EdgeWriter
from headrace.runtime.wire.frames import Frame, decode
from headrace.runtime.wire.inbox import End, Inbox
from headrace.runtime.wire.marks import CutMark, read_mark
from headrace.runtime.wiring import Wiring
from headrace.state.durable.loading import read_slice
from headrace.state.durable.manifest import SliceVersion
from headrace.state.durable.storage import LocalStorage
from headrace.testing import scripted
from headrace.tokens import Attempt, Token

ATTEMPT = Attempt(3, 2)
KEYS = [{"k": i, "v": 1} for i in range(40)]
PATIENCE_S = 20.0
Message = TypeVar("Message", bound=ToDriver)


def planned(job: hr.Job, checkpoint: Path, **settings: Any) -> JobPlan:
    """A job as its subtasks get it; its sinks collect."""
    return plan_job(
        job, checkpoint, Settings.of(**{"parallelism": 2, "slices": 4, "report": "1 hour", **settings}), collect=True
    )


def ticket_of(plan: JobPlan, stage: int, index: int = 0, base: Token | None = None, entry: int = 0) -> Ticket:
    """What a subtask gets when all of its stage are active, and slices are dealt in turn."""
    stages = plan.layout.stages
    mine = owned(dealt(plan.slices_of(stage), range(stages[stage].subtasks)), index)
    more = stage + 1 < len(stages)
    table = dealt(plan.slices_of(stage + 1), range(stages[stage + 1].subtasks)) if more else ()
    return Ticket(ATTEMPT, base, entry, mine, table, NO_ORDERS, (), {}, {}, {})


class Driver:
    """The control channel of one subtask: keeps what it is told, hands out what a test gives it."""

    def __init__(self) -> None:
        self.told: list[ToDriver] = []
        self._given: list[ToWorker] = []
        self.polls = 0

    def tell(self, message: ToDriver) -> None:
        self.told.append(message)

    def poll(self) -> list[ToWorker]:
        self.polls += 1
        given, self._given = self._given, []
        return given

    def offset_us(self) -> int:
        return 0

    def give(self, *messages: ToWorker) -> None:
        self._given = [*self._given, *messages]

    def heard(self, kind: type[Message]) -> list[Message]:
        return [message for message in self.told if isinstance(message, kind)]


class Working:
    """A subtask in a thread of its own, from GO on; ``given`` are messages that are there from the start, as is the end
    of the input if it is ``ended``.

    ``rows`` are what it has sent, by receiver.
    """

    def __init__(
        self, plan: JobPlan, stage: int, index: int = 0, *, ticket: Ticket | None = None,
        given: Sequence[ToWorker] = (), ended: bool = False,
    ) -> None:  # fmt: skip
        self.plan, self.driver, self.inbox = plan, Driver(), Inbox(plan.settings.queue_bytes)
        self.rows: list[tuple[int, bytes]] = []
        self.error: Exception | None = None
        self.driver.give(*given)
        if ended:
            self.ends_input()
        self.subtask = Subtask(plan, stage)
        self.subtask.begin(index, ticket or ticket_of(plan, stage, index), self.driver)
        self._thread = threading.Thread(target=self._work, name="subtask-alone")
        self._thread.start()

    def _work(self) -> None:
        try:
            for batch in self.subtask.run(self.inbox):
                self.rows += zip(batch.column("route").to_pylist(), batch.column("payload").to_pylist())
            self.subtask.settle(self.inbox)
            self.subtask.await_end(self.inbox, PATIENCE_S)
        except Exception as error:
            self.error = error

    def __enter__(self) -> Working:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Break it off, unless it has ended."""
        self.inbox.put_end(End(ConnectionResetError("the test is over")))
        self._thread.join(PATIENCE_S)
        self.subtask.close()
        if self.error is not None and "the test is over" not in str(self.error) and kind is None:
            raise self.error

    def until(self, done: Callable[[], object], what: str = "") -> None:
        """Wait until something is so; fails with what the subtask failed with."""
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            if self.error is not None:
                raise self.error
            assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {what}"
            time.sleep(0.001)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def fails(self) -> Exception:
        """What it ends with."""
        self._thread.join(PATIENCE_S)
        assert self.error is not None and not self._thread.is_alive()
        error, self.error = self.error, None
        return error

    def ends(self) -> None:
        """Its input is closed, and it returns."""
        self.inbox.put_end(End())
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive() and self.error is None, self.error

    def ends_input(self) -> None:
        self.inbox.put_end(End())

    def take(self, rows: Iterable[bytes]) -> None:
        for row in rows:
            self.inbox.put_row(memoryview(row))

    def a_while(self) -> None:
        """Let it go around a few times."""
        polls = self.driver.polls
        self.until(lambda: self.driver.polls > polls + 3, "the loop stands still")

    def aligned(self, number: int) -> None:
        """Wait until a cut has been made."""
        wanted = ATTEMPT.cut(number)
        self.until(lambda: wanted in [m.token for m in self.driver.heard(Aligned)], f"{wanted} was not made")

    def description(self, number: int, *, logged: bool = True) -> Description:
        """Wait for the description of a cut, and say that it is logged."""
        wanted = ATTEMPT.cut(number)
        self.until(lambda: wanted in [m.token for m in self.driver.heard(Described)], f"{wanted} was not described")
        if logged:
            self.driver.give(Logged(wanted))
        return next(m.description for m in self.driver.heard(Described) if m.token == wanted)

    def frames(self, receiver: int) -> list[Frame]:
        return [frame for to, row in list(self.rows) if to == receiver for frame in decode(row)]

    def marks(self, receiver: int) -> list[CutMark]:
        return [read_mark(frame) for frame in self.frames(receiver) if frame.edge == 65_535]


class Sender:
    """A subtask of the stage before, as its receivers see it."""

    def __init__(self, plan: JobPlan, stage: int, index: int) -> None:
        self._plan, self._index = plan, index
        self.writers: Sequence[EdgeWriter] = Wiring(plan, plan.layout.stages[stage], {}, {}, None, Stamp()).border()
        ticket = ticket_of(plan, stage, index)
        for writer in self.writers:
            writer.begin(index, ticket.table, plan.layout.stages[stage + 1].active)

    def put(self, records: list[dict[str, Any]], times_us: Any = 0) -> None:
        """Records into the open buffer of its first edge."""
        schema = self._plan.schemas[self.writers[0].edge.source]
        times = np.full(len(records), times_us) if isinstance(times_us, int) else np.array(times_us)
        self.writers[0].receive(0, Batch(pa.RecordBatch.from_pylist(records, schema=schema), times, 1))

    def flush(self) -> list[list[bytes]]:
        """What is open, as a row for each receiver."""
        frames: list[list[bytes]] = [[] for _ in range(self.writers[0].receivers)]
        for writer in self.writers:
            writer.flush(frames)
        return [[b"".join(mine)] if mine else [] for mine in frames]

    def send(self, records: list[dict[str, Any]], times_us: Any = 0) -> list[list[bytes]]:
        self.put(records, times_us)
        return self.flush()

    def mark(
        self, number: int, *, end: bool = False, receiver: int = 0, attempt: Attempt = ATTEMPT,
        tables: dict[int, Table] | None = None,
    ) -> list[bytes]:  # fmt: skip
        """The mark of a cut for one receiver, as a row of its own."""
        sequences = {writer.edge.id: writer.sequences[receiver] for writer in self.writers}
        watermarks = {writer.edge.id: writer.told_us for writer in self.writers}
        return [CutMark(attempt.cut(number), end, sequences, watermarks, tables or {}).frame(self._index).encode()]


def counting(checkpoint: Path, **settings: Any) -> JobPlan:
    """A running count per key of what two subtasks send."""
    job = hr.Job("counting")
    read = job.source("read", scripted(KEYS, KEYS))
    read.key_by("k").reduce(name="count", n=hr.sum("v")).sink("out", hr.callback(print))
    return planned(job, checkpoint, **settings)


def totals(plan: JobPlan, *descriptions: Description, step: str = "count") -> dict[int, int]:
    """The counts that descriptions' blocks add up to."""
    storage, found = LocalStorage(plan.checkpoint / "headrace"), {}
    changes = [change for description in descriptions for change in description.changes if change.step == step]
    for slice in {change.slice for change in changes}:
        mine = [change for change in changes if change.slice == slice]
        version = SliceVersion(mine[-1].digest, tuple(change.block for change in mine))
        image = read_slice(storage, step, slice, version)

        found.update(zip(image.column("k").to_pylist(), image.column("n.value").to_pylist()))
    return found


def both(plan: JobPlan) -> tuple[Sender, Sender]:
    return Sender(plan, 0, 0), Sender(plan, 0, 1)


def consumed(description: Description) -> dict[int, int]:
    """Items by sender."""
    return {sender: sum(counts) for by in description.consumed.values() for sender, counts in by.items()}
