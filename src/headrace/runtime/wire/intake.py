"""What comes into a subtask: rows of frames, checked per edge and sender, handed to the operators."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from headrace.errors import ProtocolError
from headrace.graph.windowing import NEVER_US
from headrace.runtime.batch import Batch, from_wire, wire_schema
from headrace.runtime.clock import now_us
from headrace.runtime.operators.operator import Operator
from headrace.runtime.operators.polling import Sources
from headrace.runtime.operators.queues import QueuedBuffer
from headrace.runtime.plan import JobPlan
from headrace.runtime.wire.alignment import Alignment
from headrace.runtime.wire.auditcounts import Counts
from headrace.runtime.wire.channelmeter import ChannelMeter, Stamp
from headrace.runtime.wire.frames import Frame, Kind, decode, read_ipc, sender_of, subtask_of
from headrace.runtime.wire.inbound import Inbound
from headrace.runtime.wire.inbox import Row
from headrace.runtime.wire.links import Links
from headrace.runtime.wire.marks import CutMark, read_mark
from headrace.runtime.wire.rowshelf import RowShelf
from headrace.runtime.wire.waitlist import Waitlist, split
from headrace.state.spill.diskrows import spill_home
from headrace.tokens import Token


class Intake:
    """The receiving ends of all edges into one stage's subtask, and the alignment of those who send along them.

    ``marked_us``: when the first sender marked the last cut.
    """

    def __init__(
        self, plan: JobPlan, stage: int, inbound: Mapping[int, Inbound], links: Links | None, sources: Sources,
        stamp: Stamp,
    ) -> None:  # fmt: skip
        self._plan, self._stage, self._stamp = plan, stage, stamp
        self._inbound, self._links, self._sources = inbound, links, sources
        self._leg = links if plan.layout.stages[stage].first < stage else None
        self._shelf = RowShelf(spill_home)
        self.waitlist: Waitlist[Inbound, QueuedBuffer] = Waitlist(split)
        self.alignment: Alignment[Row, CutMark] = Alignment(self._shelf)
        self._ended: dict[int, CutMark] = {}
        self._index = self.marked_us = 0
        self._next: Token | None = None

    def begin(self, index: int, first: Token) -> None:
        """A new attempt: sequences, audit counts and watermarks of all senders start anew. ``first`` is its first cut."""
        senders = range(0)
        if self._stage and self._plan.eager:
            stages = self._plan.layout.stages
            before, here = stages[self._stage - 1].subtasks, stages[self._stage]
            senders = range(before) if here.shuffled else range(index, index + 1)
        for inbound in self._inbound.values():
            inbound.begin(senders)
        self.alignment.begin(senders)
        self.waitlist.clear()
        self._index, self._next, self._ended = index, first, {}

    def restore(self, reached: Mapping[str, int]) -> None:
        """How far the edges had come at the version that an attempt starts from, by name."""
        for inbound in self._inbound.values():
            inbound.reached_us = reached.get(inbound.name, NEVER_US)

    def resume(self) -> None:
        """Before anything is taken in: operators have come as far as they had at that version."""
        for inbound in self._inbound.values():
            inbound.resume()

    def reached(self) -> dict[str, int]:
        """How far the edges have ever come, by name."""
        return {inbound.name: inbound.reached_us for inbound in self._inbound.values()}

    def take(self, row: Row) -> None:
        """Serve a row, or hold it if its sender is ahead of others at a cut."""
        held = self.alignment.held
        if held and (sender := self._index if self._leg is not None else sender_of(row.payload)) in held:
            self.alignment.hold(sender, row, len(row.payload))
        else:
            self.serve(row)

    def take_held(self) -> bool:
        """Serve a row that was held and need not be any more; False if there is none."""
        row = self.alignment.take()
        if row is not None:
            self.serve(row)
        return row is not None

    def serve(self, row: Row) -> None:
        """Hand a row's frames to the operators."""
        frames = decode(row.payload)
        for frame in frames:
            if frame.kind is Kind.EXTERNAL:
                self._sources.take_external(frame.edge, read_ipc(frame.body))
                continue
            if frame.kind is Kind.CUT:
                self._mark(frame)
                if next(frames, None) is not None:
                    raise ProtocolError(f"stage {self._stage}: sender {frame.sender} sent more in a row with its mark")
                return
            if self._leg is not None:
                self._leg.take(frame, row)
                continue
            inbound = self._inbound.get(frame.edge)
            if inbound is None:
                raise ProtocolError(
                    f"stage {self._stage} received a buffer of edge {frame.edge}, which does not end here"
                )
            if not inbound.accept(frame):
                continue
            waits = bool(self.waitlist.slices) and inbound.edge.keyed  # watermarks too: they close windows
            if frame.kind is Kind.WATERMARK:
                if self._plan.eager and not waits:
                    inbound.advance()
                continue
            inbound.operator.meter.arrived(row.queued_us)
            buffer: QueuedBuffer | None = self._waiting(inbound, frame, row.queued_us)
            if waits and buffer is not None:
                buffer = self.waitlist.sift(inbound, buffer)
            if buffer is not None:
                _hand_on(inbound.operator, buffer)

    def go_on(self) -> None:
        """All slices that were waited for are here: what has waited for them follows, and then time."""
        for inbound, buffer in self.waitlist.take():
            _hand_on(inbound.operator, buffer)
        for inbound in self._inbound.values():
            inbound.advance()

    def refuse(self, row: Row) -> None:
        """A row after all senders had ended: only what came before is in order."""
        for frame in decode(row.payload):
            if frame.kind is Kind.CUT and self._is_made(read_mark(frame).token):
                continue
            known = self._inbound.get(frame.edge) if self._leg is None else None
            if known is None or (known.accept(frame) and frame.kind < Kind.WATERMARK):
                raise ProtocolError(f"stage {self._stage} received a buffer after its senders had ended")

    def made(self, token: Token) -> None:
        """The cut has been made here: from now on the senders' marks say how far they have come."""
        self._next = token.by.cut(token.cut + 1)
        if not self.alignment.under_way:
            return
        marks = self.alignment.made()
        if len({mark.end for mark in marks.values()}) > 1:
            raise ProtocolError(f"stage {self._stage}: senders do not agree whether {token} is the end")
        for sender, mark in marks.items():
            for inbound in self._inbound.values():
                inbound.follow(sender, mark)

    def close(self) -> None:
        """The input is over, stage by stage: every sender must have said so, and its last watermark holds."""
        for inbound in self._inbound.values():
            if missing := inbound.last.keys() - self._ended.keys():
                edge = f"edge {inbound.edge.source} → {inbound.edge.target}"
                raise ProtocolError(f"{edge}: the input ended before senders {sorted(missing)} did")
            for sender, mark in self._ended.items():
                inbound.follow(sender, mark)

    def advance(self, operator: Operator) -> None:
        """Tell an operator how far its inputs have come."""
        for inbound in self._inbound.values():
            if inbound.operator is operator:
                inbound.advance()

    def give_up(self) -> None:
        """Leave nothing on disk."""
        self._shelf.close()

    def take_counts(self) -> Counts:
        """What was consumed since this was last asked, for the audit."""
        counts = Counts({}, {})
        for id, inbound in self._inbound.items():
            counts.items[id], counts.records[id] = inbound.take_counts()
        for id, items, records in self._links.take_counts() if self._links is not None else ():
            counts.items[id], counts.records[id] = items, records
        return counts

    def watermarks(self) -> dict[int, int]:
        """How far the edges have come that arrive through a shuffle; at a cut the same in all subtasks of the stage."""
        return {id: inbound.lowest() for id, inbound in self._inbound.items()}

    def meters(self) -> list[ChannelMeter]:
        links = self._links.meters() if self._links is not None else []
        return [*(inbound.meter for inbound in self._inbound.values()), *links]

    def _mark(self, frame: Frame) -> None:
        """A sender has ended what belongs to a cut."""
        mark, sender = read_mark(frame), subtask_of(frame.sender) if self._leg is not None else frame.sender
        if self._is_made(mark.token):
            return  # it comes again
        if mark.token != self._next:
            raise ProtocolError(
                f"stage {self._stage}: sender {sender} marked {mark.token}; the next cut is {self._next}"
            )
        for inbound in self._inbound.values():
            inbound.marked(sender, mark)
        if self._plan.eager:
            if not self.alignment.under_way:
                self.marked_us = now_us()
            self.alignment.mark(sender, mark)
        else:
            self._ended[sender] = mark

    def _is_made(self, token: Token) -> bool:
        """Whether a cut of this attempt has been made here."""
        assert self._next is not None
        return token.by == self._next.by and token.cut < self._next.cut

    def _waiting(self, inbound: Inbound, frame: Frame, queued_us: int) -> QueuedBuffer:
        """A frame's records or partials, decoded."""

        def began(now: int) -> None:
            inbound.meter.served(frame, queued_us, now)

        data: Batch | pa.RecordBatch
        body = pa.py_buffer(frame.body)
        born_us, tag_us = frame.born_us - self._stamp.offset_us, frame.tag_us(self._stamp.offset_us)
        if frame.kind is Kind.PARTIAL:
            assert inbound.partial_schema is not None
            data = pa.ipc.read_record_batch(body, inbound.partial_schema)
        else:
            schema = wire_schema(inbound.schema, late=frame.kind is Kind.LATE)
            data = from_wire(pa.ipc.read_record_batch(body, schema), inbound.schema, born_us, tag_us)
        return QueuedBuffer(inbound.edge.port, data, born_us, frame.items, len(frame.body), began, tag_us)


def _hand_on(operator: Operator, buffer: QueuedBuffer) -> None:
    if operator.queue is None:
        operator.work(buffer)
    else:
        operator.queue.put(buffer)
