"""Edges inside a leg of several stages: called through where both ends are in one process, else shipped on.

Every process of a leg can run any of its stateless steps, and a buffer says which edge it is on, so
a chain is joined or parted by changing where a step's place is: at any time, in each process by
itself. A buffer that finds its target's place further on is passed on; one that finds it behind is
served where it is. Buffers stay in order: what waits on an edge leaves before what comes after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.errors import ProtocolError
from headrace.graph.stages import Edge, Layout, Stage
from headrace.graph.windowing import IDLE_US, NEVER_US
from headrace.runtime.batch import Batch, from_wire, wire_schema
from headrace.runtime.clock import now_us
from headrace.runtime.operators.operator import Receiver
from headrace.runtime.wire.channelmeter import ChannelMeter, Stamp
from headrace.runtime.wire.edges import EdgeWriter
from headrace.runtime.wire.frames import Frame, Kind
from headrace.runtime.wire.inbox import Row


@dataclass(slots=True)
class Link:
    """One edge at one stage of its leg. ``target`` is None where the step can never run here.

    ``said_us`` and ``idle`` are what was last said of time: where the target comes to be it is told again, since a source
    that is silent may not say more for long.
    """

    edge: Edge
    schema: pa.Schema
    target: Receiver | None
    writer: EdgeWriter | None
    meter: ChannelMeter
    here: bool = True
    last: dict[int, int] = field(default_factory=dict)
    consumed: dict[int, int] = field(default_factory=dict)
    stood: dict[int, int] = field(default_factory=dict)
    said_us: int = NEVER_US
    idle: bool = False

    def begin(self) -> None:
        """A new attempt: nothing has come yet."""
        self.last, self.consumed, self.stood = {}, {}, {}
        self.said_us, self.idle = NEVER_US, False
        self.meter.forget()

    def receive(self, port: int, batch: Batch) -> None:
        self._next.receive(self.edge.port, batch)

    def watermark(self, port: int, watermark_us: int) -> None:
        self.note(watermark_us)
        self._next.watermark(self.edge.port, watermark_us)

    def note(self, watermark_us: int) -> None:
        """What is said of time to the target, wherever that is."""
        self.idle = watermark_us == IDLE_US
        if not self.idle:
            self.said_us = max(self.said_us, watermark_us)

    def place(self, *, here: bool) -> None:
        """Where the target is from now on; what waits in buffers must have left before."""
        if here == self.here:
            return
        self.here = here
        if self.said_us > NEVER_US:
            self._next.watermark(self.edge.port, self.said_us)
        if self.idle:
            self._next.watermark(self.edge.port, IDLE_US)

    @property
    def _next(self) -> Receiver:
        way = self.target if self.here else self.writer
        if way is None:
            raise ProtocolError(f"edge {self.edge.source} → {self.edge.target} has no way on from here")
        return way

    def deliver(self, frame: Frame, ahead_us: int) -> None:
        """Serve a buffer of an earlier process; its number must be higher than the last one's."""
        if frame.kind is Kind.WATERMARK:
            self.watermark(self.edge.port, frame.watermark_us)
            return
        if frame.sequence <= self.last.get(frame.sender, 0):
            return
        self.last[frame.sender] = frame.sequence
        self.consumed[frame.sender] = self.consumed.get(frame.sender, 0) + frame.items
        self.stood[frame.sender] = self.stood.get(frame.sender, 0) + frame.stands
        records = pa.ipc.read_record_batch(
            pa.py_buffer(frame.body), wire_schema(self.schema, late=frame.kind is Kind.LATE)
        )
        self._next.receive(
            self.edge.port, from_wire(records, self.schema, frame.born_us - ahead_us, frame.tag_us(ahead_us))
        )


class Links:
    """All links of one subtask of a leg with several stages, and the way through for buffers."""

    def __init__(self, layout: Layout, stage: Stage, links: Mapping[int, Link], stamp: Stamp) -> None:
        self._stage, self._stamp = stage, stamp
        self._links = links
        self._upstream = _upstream(layout.inside(stage))
        self.passing: list[bytes] = []

    def begin(self) -> None:
        """A new attempt; its writers begin with all others of the subtask."""
        self.passing = []
        for link in self._links.values():
            link.begin()

    @property
    def writers(self) -> list[EdgeWriter]:
        """Senders' ends in order of flow."""
        return [link.writer for link in self._links.values() if link.writer is not None]

    def place(self, places: Mapping[str, int]) -> None:
        """Where steps are from now on."""
        for link in self._links.values():
            if link.target is None:
                link.place(here=False)
            elif link.writer is None:
                link.place(here=True)
            elif link.edge.border is None:
                link.place(here=places[link.edge.target] <= self._stage.index)

    def take(self, frame: Frame, row: Row) -> None:
        """A frame from the stage before."""
        link = self._links.get(frame.edge)
        if link is None:
            raise ProtocolError(
                f"stage {self._stage.index} received a buffer of edge {frame.edge}, which is not its own"
            )
        if not link.here:
            if frame.kind is Kind.WATERMARK:
                link.note(frame.watermark_us)
            self._pass_on(frame)
            return
        if frame.kind < Kind.WATERMARK:
            link.meter.step.arrived(row.queued_us)
            link.meter.served(frame, row.queued_us, now_us())
        link.deliver(frame, self._stamp.offset_us)

    def _pass_on(self, frame: Frame) -> None:
        """Send a buffer on, behind what waits on its edge or on edges that lead to it."""
        for id in self._upstream[frame.edge]:
            writer = self._links[id].writer
            if writer is not None and writer.news:
                rows: list[list[bytes]] = [[] for _ in range(writer.receivers)]
                writer.flush(rows)
                self.passing += rows[writer.targets[0]]
        self.passing.append(frame.encode())

    def take_counts(self) -> Iterator[tuple[int, dict[int, list[int]], dict[int, int]]]:
        """By edge and sender: items, and the records that they stood for, since this was last asked."""
        for id, link in self._links.items():
            consumed, stood = link.consumed, link.stood
            link.consumed, link.stood = {}, {}
            yield id, {sender: [n] for sender, n in consumed.items()}, stood

    def meters(self) -> list[ChannelMeter]:
        return [link.meter for link in self._links.values()]


def _upstream(edges: tuple[Edge, ...]) -> dict[int, list[int]]:
    """For each edge: itself and those of the leg whose items may come to be on it, in order of flow."""
    upstream: dict[int, list[int]] = {}
    for edge in edges:
        before = {
            id for other in edges if other.id in upstream and other.target == edge.source for id in upstream[other.id]
        }
        upstream[edge.id] = sorted({*before, edge.id})
    return upstream
