"""What leaves a subtask: the open buffers of its edges, cut together by size or deadline into rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from headrace.runtime.build import DeadLetter, build_edges
from headrace.runtime.edges import EdgeWriter, now_us
from headrace.runtime.operators import Operator
from headrace.runtime.plan import JobPlan, Ticket
from headrace.runtime.stamps import Stamp
from headrace.runtime.usercode import Guard

ROW_SCHEMA = pa.schema([("route", pa.int32()), ("payload", pa.binary())])


class Outlet:
    """The sending ends of all edges out of one stage's subtask."""

    def __init__(self, plan: JobPlan, stage: int, stamp: Stamp) -> None:
        self._plan, self._stage, self._stamp = plan, stage, stamp
        self._edges: list[EdgeWriter] = []
        self._news_us = 0
        self.cut_us = int(plan.settings.cut_s * 1e6)

    def begin(
        self, index: int, ticket: Ticket, operators: Mapping[str, Operator], guards: dict[str, Guard],
        dead_letter: DeadLetter | None,
    ) -> None:  # fmt: skip
        """Fresh sending ends: sequences and audit counts start anew with each attempt."""
        for operator in operators.values():
            operator.outputs = [(t, p) for t, p in operator.outputs if isinstance(t, Operator)]
        self._edges = build_edges(self._plan, self._stage, index, guards, dead_letter)
        self._news_us = 0
        places = np.array(ticket.places, np.int64)
        for edge in self._edges:
            edge.stamp = self._stamp
            if edge.edge.keyed:
                edge.table = places[np.arange(self._plan.settings.slices) % len(places)]
            operators[edge.edge.source].outputs.append((edge, 0))

    def look(self, now: int, *, from_source: bool) -> None:
        """Start the clock of what is new; at a source it started when the records were due."""
        if not self._news_us and any(edge.news for edge in self._edges):
            born = [batch.born_us for edge in self._edges for batch in edge.pending] if from_source else []
            self._news_us = min([now, *born])

    def due_us(self) -> int | None:
        """When the open buffers must be cut."""
        return self._news_us + self.cut_us if self._news_us else None

    def flush(self, *, last: bool = False) -> Iterator[pa.RecordBatch]:
        """Rows for the next stage, if buffers are full or due; all of them at the epoch's end."""
        if not self._edges:
            return
        due = self.due_us()
        full = any(edge.pending_bytes >= self._plan.settings.cut_bytes for edge in self._edges)
        if not (last or full or (due is not None and now_us() >= due)):
            return
        self._news_us = 0
        rows: list[list[bytes]] = [[] for _ in range(self._edges[0].receivers)]
        for edge in self._edges:
            edge.cut(rows)
            if last:
                edge.end(rows)
        yield from self._rows(rows)

    def _rows(self, frames: list[list[bytes]]) -> Iterator[pa.RecordBatch]:
        routes = [route for route, mine in enumerate(frames) if mine]
        payloads = [b"".join(frames[route]) for route in routes]
        if self._plan.eager:  # the pipe holds one row per receiver back: an empty one pushes it through
            payloads += [b""] * len(routes)
            routes += routes
        if routes:
            columns = [pa.array(routes, pa.int32()), pa.array(payloads, pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)

    def sent(self) -> dict[int, list[int]]:
        """Items per edge and slice, for the audit."""
        return {edge.edge.id: edge.sent.tolist() for edge in self._edges}
