"""The input queue of a reduce with ``overload=hr.shed()``: what cannot be processed in time is abandoned (SCALLA, 2.13).

A record's deadline is when its buffer's oldest record was due, or read, plus the bound: buffers do not say when
each record was, and event time need not be the clock's, so the thesis's deadline by window does not apply. With
one cost for all records whole buffers are scheduled, earliest deadline first; where keys are in memory or on disk,
the largest schedulable subset is kept (facts 36 and 37: the same, or more).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from headrace.graph.paths import bound_through
from headrace.runtime.batch import Batch
from headrace.runtime.clock import now_us
from headrace.runtime.operators.operator import OnDisk, Operator
from headrace.runtime.operators.queues import QueuedBuffer, QueuedWatermark
from headrace.runtime.plan import JobPlan
from headrace.runtime.shedding.deadlines import Item, KeyPlace, RecordCosts, batch_item, items_of
from headrace.runtime.shedding.shedders import CostAware, EarliestDeadline, Shedder, ShedFigures


@dataclass(slots=True)
class _Arrival:
    """A buffer, by its number; ``on_disk`` None where all records cost the same."""

    number: int
    waiting: QueuedBuffer
    batch: Batch
    on_disk: npt.NDArray[np.bool_] | None
    begun: bool = False


class ShedQueue:
    """Records by deadline; a watermark takes effect when all that came before it is processed or shed.

    What came after a watermark may be processed before it takes effect: to the operator that is as if the watermark
    had come later, which it may at any time.
    """

    def __init__(self, bound_us: int, on_disk: OnDisk | None, clock_us: Callable[[], int] = now_us) -> None:
        self._bound_us, self._on_disk, self._clock_us = bound_us, on_disk, clock_us
        self._shedder: Shedder = EarliestDeadline() if on_disk is None else CostAware()
        self._costs = RecordCosts()
        self._watermarks: deque[tuple[int, QueuedWatermark]] = deque()
        self._arrivals = self._told = 0
        self._place = KeyPlace.MEMORY
        self.put_bytes = self.put_rows = 0

    @property
    def figures(self) -> ShedFigures:
        return self._shedder.figures()

    def newly_shed(self) -> int:
        """Records shed since this was last asked."""
        before, self._told = self._told, self.figures.shed
        return self._told - before

    @property
    def nbytes(self) -> int:
        """By the mean size of records so far: which ones were shed is not known."""
        return self.figures.waiting * self.put_bytes // max(self.put_rows, 1)

    @property
    def buffers(self) -> int:
        return len({item.batch.number for item in self._shedder.kept()})

    @property
    def empty(self) -> bool:
        return not self._watermarks and not self.figures.waiting

    @property
    def born_us(self) -> int | None:
        deadline_us = self._shedder.earliest_us()
        return None if deadline_us is None else deadline_us - self._bound_us

    def put(self, waiting: QueuedBuffer) -> None:
        batch = waiting.data
        assert isinstance(batch, Batch), "nothing is combined before a reduce that sheds"
        self._arrivals += 1
        self.put_bytes += waiting.nbytes
        self.put_rows += waiting.rows
        deadlines_us = np.full(batch.rows, waiting.born_us + self._bound_us)
        on_disk = self._on_disk(batch) if self._on_disk is not None else None
        arrival = _Arrival(self._arrivals, waiting, batch, on_disk)
        if on_disk is None:
            items = [batch_item(deadlines_us, self._bound_us, self._costs, batch=arrival)]
        else:
            items = list(items_of(deadlines_us, on_disk, self._bound_us, self._costs, batch=arrival))
        self._shedder.release(items, self._clock_us())

    def put_watermark(self, port: int, watermark_us: int) -> None:
        new = QueuedWatermark(port, watermark_us)
        in_a_row = bool(self._watermarks) and self._watermarks[-1][0] == self._arrivals
        if in_a_row and (both := self._watermarks[-1][1].joined(new)) is not None:
            self._watermarks.pop()
            new = both
        self._watermarks.append((self._arrivals, new))

    def take_watermark(self) -> QueuedWatermark | None:
        if not self._watermarks:
            return None
        first = min((item.batch.number for item in self._shedder.kept()), default=self._arrivals + 1)
        return self._watermarks.popleft()[1] if self._watermarks[0][0] < first else None

    def take(self, now_us: int, rows: int) -> QueuedBuffer | None:
        item = self._shedder.next_to_process(now_us)
        return None if item is None else self._part(item)

    def worked(self, waiting: QueuedBuffer, elapsed_ns: int) -> None:
        self._costs.measured(self._place, elapsed_ns, waiting.rows)

    def _part(self, item: Item) -> QueuedBuffer:
        """The records of an item; the buffer itself if it is all of it."""
        arrival: _Arrival = item.batch
        rows = (item.rows if item.rows is not None else np.arange(arrival.batch.rows))[: item.count]
        disk = arrival.on_disk is not None and bool(arrival.on_disk[rows[0]])
        self._place = KeyPlace.DISK if disk else KeyPlace.MEMORY
        waiting = replace(arrival.waiting, began=None) if arrival.begun else arrival.waiting
        arrival.begun = True
        if len(rows) == arrival.batch.rows:
            return waiting
        nbytes = waiting.nbytes * len(rows) // arrival.batch.rows
        return replace(waiting, data=arrival.batch.take(rows), rows=len(rows), nbytes=nbytes)


def shed_queues(plan: JobPlan, operators: Iterable[Operator]) -> dict[str, ShedQueue]:
    """A queue for each step that sheds; none where stages run one after the other: there nothing is late."""
    queues = {}
    for operator in operators:
        rule = operator.shed_rule if plan.eager else None
        if rule is not None:
            bound_us = rule.within_us or bound_through(plan.graph, operator.name)
            assert bound_us is not None, "the graph was validated"
            queues[operator.name] = ShedQueue(bound_us, rule.on_disk)
    return queues
