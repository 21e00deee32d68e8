"""What leaves a subtask: the open buffers of its edges, cut by size or deadline into rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from headrace.runtime.build import DeadLetter, build_edges, build_links
from headrace.runtime.clock import now_us
from headrace.runtime.operators.operator import Operator, Receiver
from headrace.runtime.operators.usercode import Guard
from headrace.runtime.orders import Orders
from headrace.runtime.plan import JobPlan, Ticket
from headrace.runtime.wire.channelmeter import Stamp
from headrace.runtime.wire.edges import EdgeWriter
from headrace.runtime.wire.frames import Frame, Kind, sender_id
from headrace.runtime.wire.links import LEG_END, Links

ROW_SCHEMA = pa.schema([("route", pa.int32()), ("payload", pa.binary())])
_SAME_ROW = 2
"""A buffer leaves along with one that is due if its deadline is at most so many times that one's."""


class Outlet:
    """The sending ends of all edges out of one stage's subtask, and the links within its leg."""

    def __init__(self, plan: JobPlan, stage: int, stamp: Stamp) -> None:
        self._plan, self._stage, self._stamp = plan, plan.layout.stages[stage], stamp
        self._edges: list[EdgeWriter] = []
        self._index = 0
        self._moved = False
        self._chained = Orders().chained
        self._places = plan.layout.stage_of
        self.links: Links | None = None
        self.orders = Orders()

    def begin(
        self, index: int, ticket: Ticket, operators: Mapping[str, Operator], guards: dict[str, Guard],
        dead_letter: DeadLetter | None,
    ) -> None:  # fmt: skip
        """Fresh sending ends: sequences and audit counts start anew with each attempt."""
        plan, stage = self._plan, self._stage
        self._index = index
        for operator in operators.values():
            stay: list[tuple[Receiver, int]] = [(t, p) for t, p in operator.outputs if isinstance(t, Operator)]
            operator.outputs = stay if stage.first == stage.last else []
        border = build_edges(plan, stage.index, index, guards, dead_letter) if stage.index == stage.last else []
        places = np.array(ticket.places, np.int64)
        for edge in border:
            if edge.edge.keyed:
                edge.table = places[np.arange(plan.settings.slices) % len(places)]
        if stage.first == stage.last:
            for edge in border:
                operators[edge.edge.source].outputs.append((edge, 0))
            self._edges = border
        else:
            self.links = build_links(plan, stage, index, operators, border, self._stamp)
            self._edges = [*self.links.writers, *border]
        for edge in self._edges:
            edge.stamp = self._stamp
        self.obey(self.orders)
        self._move()

    def obey(self, orders: Orders) -> None:
        """Take new orders; a change of chains waits until all that is buffered has left."""
        self._moved = self.links is not None and orders.chained != self._chained
        self.orders = orders
        self._stamp.version = orders.version
        settings, active = self._plan.settings, orders.active.get(self._stage.index + 1)
        for edge in self._edges:
            sender = (edge.edge.id, self._index)
            edge.deadline_us = orders.deadlines_us.get(sender, int(settings.flush_s * 1e6))
            edge.limit_bytes = orders.sizes_bytes.get(sender, settings.flush_bytes)
            if active is not None:
                edge.active = active

    def _move(self) -> None:
        if self.links is not None:
            layout, chained = self._plan.layout, self.orders.chained
            self._chained = chained
            self._places = layout.places(layout.chained if chained is None else chained)
            self.links.place(self._places)
        self._moved = False

    def is_here(self, step: str) -> bool:
        """Whether this stage is a step's place now; others of its leg only help out while chains move."""
        return self._places[step] == self._stage.index

    def look(self, now: int, *, from_source: bool) -> None:
        """Start the clock of what is new; at a source it started when the records were due."""
        for edge in self._edges:
            if edge.news and not edge.since_us:
                edge.since_us = min([now, *(batch.born_us for batch in edge.pending)]) if from_source else now

    @property
    def patience_us(self) -> int:
        """How long what a source has ready may wait, as it would in the buffer that is cut first."""
        return min((edge.deadline_us for edge in self._edges), default=int(self._plan.settings.flush_s * 1e6))

    def due_us(self) -> int | None:
        """When the next open buffer must be cut."""
        return min((edge.due_us for edge in self._edges if edge.since_us), default=None)

    def flush(self, *, last: bool = False) -> Iterator[pa.RecordBatch]:
        """Rows for the next stage, of the buffers that are full or due; all of them at the epoch's end."""
        if not self._edges:
            return
        leaving = self._edges if last or self._moved else self._leaving()
        passing = self.links.passing if self.links is not None else []
        if leaving or passing:
            rows: list[list[bytes]] = [[] for _ in range(self._edges[0].receivers)]
            if passing:
                rows[self._index] += passing
                passing.clear()
            for edge in leaving:
                edge.flush(rows)
            if last:
                self._end(rows)
            yield from self._rows(rows)
        if self._moved:
            self._move()

    def _leaving(self) -> list[EdgeWriter]:
        now = now_us()
        due = [edge for edge in self._edges if edge.since_us and (now >= edge.due_us or edge.full)]
        longest = _SAME_ROW * min((edge.deadline_us for edge in due), default=0)
        return (
            [edge for edge in self._edges if edge.news and (edge in due or edge.deadline_us <= longest)] if due else []
        )

    def _end(self, rows: list[list[bytes]]) -> None:
        if self._stage.index < self._stage.last:
            sender = sender_id(self._stage.index - self._stage.first, self._index)
            rows[self._index].append(Frame(Kind.END, LEG_END, sender, 0).encode())
            return
        for edge in self._edges:
            edge.end(rows)

    def _rows(self, frames: list[list[bytes]]) -> Iterator[pa.RecordBatch]:
        routes = [route for route, mine in enumerate(frames) if mine]
        payloads = [b"".join(frames[route]) for route in routes]
        if self._plan.eager:  # the pipe holds one row per receiver back: an empty one pushes it through
            payloads += [b""] * len(routes)
            routes += routes
        if routes:
            columns = [pa.array(routes, pa.int32()), pa.array(payloads, pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)

    def sent(self) -> dict[int, dict[int, list[int]]]:
        """Items per edge, sender and slice, for the audit."""
        return {edge.edge.id: {edge.sender: edge.sent.tolist()} for edge in self._edges}
