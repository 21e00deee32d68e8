"""What leaves a subtask: the open buffers of its edges, flushed by size or deadline into rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from headrace.graph.windowing import NEVER_US
from headrace.runtime.clock import now_us
from headrace.runtime.orders import NO_ORDERS, Orders
from headrace.runtime.ownership import Table
from headrace.runtime.plan import JobPlan, Ticket
from headrace.runtime.wire.auditcounts import Counts
from headrace.runtime.wire.channelmeter import Stamp
from headrace.runtime.wire.edges import EdgeWriter
from headrace.runtime.wire.frames import sender_id
from headrace.runtime.wire.links import Links
from headrace.runtime.wire.marks import CutMark
from headrace.tokens import Token

ROW_SCHEMA = pa.schema([("route", pa.int32()), ("payload", pa.binary())])
_SAME_ROW = 2
"""A buffer leaves along with one that is due if its deadline is at most so many times that one's."""


class Outlet:
    """The sending ends of all edges out of one stage's subtask, and the links within its leg.

    ``sent_bytes`` counts all that has left, since ever.
    """

    def __init__(
        self, plan: JobPlan, stage: int, border: Sequence[EdgeWriter], links: Links | None, stamp: Stamp
    ) -> None:
        self._plan, self._stage, self._stamp = plan, plan.layout.stages[stage], stamp
        self._edges = [*(links.writers if links is not None else ()), *border]
        self._active = plan.layout.stages[stage + 1].active if self._edges else 0
        self._index = 0
        self._moved = False
        self._chained = NO_ORDERS.chained
        self._places = plan.layout.stage_of
        self.links = links
        self.orders = NO_ORDERS
        self.sent_bytes = 0

    def begin(self, index: int, ticket: Ticket) -> None:
        """A new attempt, as which of the stage's subtasks; it starts with the orders of its ticket."""
        self._index = index
        for edge in self._edges:
            edge.begin(index, ticket.table, self._active)
        if self.links is not None:
            self.links.begin()
        self.obey(ticket.orders)
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
        """How long what a source has ready may wait, as it would in the buffer that is flushed first."""
        return min((edge.deadline_us for edge in self._edges), default=int(self._plan.settings.flush_s * 1e6))

    def due_us(self) -> int | None:
        """When the next open buffer must be flushed."""
        return min((edge.due_us for edge in self._edges if edge.since_us), default=None)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Rows for the next stage, of the buffers that are full or due."""
        if not self._edges:
            return
        leaving = self._edges if self._moved else self._leaving()
        if leaving or (self.links is not None and self.links.passing):
            yield from self._rows(self._flushed(leaving))
        if self._moved:
            self._move()

    def cut(
        self, token: Token, *, end: bool, tables: Mapping[int, Table], editions: Mapping[str, str]
    ) -> Iterator[pa.RecordBatch]:
        """Rows with all that is open, and behind it, in the same row for each receiver, the mark of a cut.

        What is put in from now on goes where ``tables`` say; ``editions`` are for those who receive the mark.
        """
        if not self._edges:
            return
        rows = self._flushed(self._edges)
        inside = self._stage.index < self._stage.last
        sender = sender_id(self._stage.index - self._stage.first, self._index) if inside else self._index
        watermarks = {edge.edge.id: edge.marked_us for edge in self._edges if edge.marked_us > NEVER_US}
        for receiver in [self._index] if inside else self._edges[0].targets:
            sequences = {edge.edge.id: edge.sequences[receiver] for edge in self._edges}
            mark = CutMark(token, end, sequences, watermarks, dict(tables), dict(editions))
            rows[receiver].append(mark.frame(sender).encode())
        if (table := tables.get(self._stage.index + 1)) is not None:
            for edge in self._edges:
                edge.route(table)
        yield from self._rows(rows)
        if self._moved:
            self._move()

    def _flushed(self, leaving: Sequence[EdgeWriter]) -> list[list[bytes]]:
        """For each receiver the frames of buffers that leave, behind those that only pass through."""
        rows: list[list[bytes]] = [[] for _ in range(self._edges[0].receivers)]
        if self.links is not None and self.links.passing:
            rows[self._index] += self.links.passing
            self.links.passing.clear()
        for edge in leaving:
            edge.flush(rows)
        return rows

    def _leaving(self) -> list[EdgeWriter]:
        now = now_us()
        due = [edge for edge in self._edges if edge.since_us and (now >= edge.due_us or edge.full)]
        longest = _SAME_ROW * min((edge.deadline_us for edge in due), default=0)
        return (
            [edge for edge in self._edges if edge.news and (edge in due or edge.deadline_us <= longest)] if due else []
        )

    def _rows(self, frames: list[list[bytes]]) -> Iterator[pa.RecordBatch]:
        routes = [route for route, mine in enumerate(frames) if mine]
        payloads = [b"".join(frames[route]) for route in routes]
        self.sent_bytes += sum(map(len, payloads))
        if self._plan.eager:  # the pipe holds one row per receiver back: an empty one pushes it through
            payloads += [b""] * len(routes)
            routes += routes
        if routes:
            columns = [pa.array(routes, pa.int32()), pa.array(payloads, pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)

    def take_counts(self) -> Counts:
        """What was put in and sent since this was last asked, for the audit."""
        counts = Counts({}, {})
        for edge in self._edges:
            sent, put = edge.take_counts()
            counts.items[edge.edge.id], counts.records[edge.edge.id] = {edge.sender: sent}, {edge.sender: put}
        return counts
