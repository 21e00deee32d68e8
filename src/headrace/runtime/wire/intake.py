"""What comes into a subtask: rows of frames, checked per edge and sender, handed to the operators."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from headrace.errors import ProtocolError
from headrace.runtime.batch import Batch, from_wire, wire_schema
from headrace.runtime.operators.operator import Operator
from headrace.runtime.operators.polling import Sources
from headrace.runtime.operators.queues import QueuedBuffer
from headrace.runtime.plan import JobPlan
from headrace.runtime.wire.channelmeter import ChannelMeter, Stamp
from headrace.runtime.wire.frames import Frame, Kind, decode, read_ipc
from headrace.runtime.wire.inbound import Inbound
from headrace.runtime.wire.inbox import Row
from headrace.runtime.wire.links import Links


class Intake:
    """The receiving ends of all edges into one stage's subtask."""

    def __init__(
        self, plan: JobPlan, stage: int, inbound: Mapping[int, Inbound], links: Links | None, sources: Sources,
        stamp: Stamp,
    ) -> None:  # fmt: skip
        self._plan, self._stage, self._stamp = plan, stage, stamp
        self._inbound, self._links, self._sources = inbound, links, sources
        self._leg = links if plan.layout.stages[stage].first < stage else None

    def begin(self, index: int) -> None:
        """A new attempt: sequences, audit counts and watermarks of all senders start anew."""
        senders = range(0)
        if self._stage and self._plan.eager:
            stages = self._plan.layout.stages
            before, here = stages[self._stage - 1].subtasks, stages[self._stage]
            senders = range(before) if here.shuffled else range(index, index + 1)
        for inbound in self._inbound.values():
            inbound.begin(senders)

    @property
    def ended(self) -> bool:
        """Whether every sender's last buffer is here: no need to wait until Spark closes the pipe too."""
        if self._leg is not None:
            return self._leg.ended
        return bool(self._inbound) and all(len(i.ended) == len(i.last) for i in self._inbound.values())

    def take(self, row: Row) -> None:
        for frame in decode(row.payload):
            if frame.kind is Kind.EXTERNAL:
                self._sources.take_external(frame.edge, read_ipc(frame.body))
                continue
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
            if frame.kind >= Kind.WATERMARK:
                if self._plan.eager:
                    inbound.operator.watermark(inbound.edge.port, inbound.lowest())
                continue
            inbound.operator.meter.arrived(row.queued_us)
            waiting, operator = self._waiting(inbound, frame, row.queued_us), inbound.operator
            if operator.queue is None:
                operator.work(waiting)
            else:
                operator.queue.put(waiting)

    def refuse(self, row: Row) -> None:
        """A row after all senders had ended: only what came before, or no data at all, is in order."""
        for frame in decode(row.payload):
            if self._leg is not None or (self._inbound[frame.edge].accept(frame) and frame.kind < Kind.WATERMARK):
                raise ProtocolError(f"stage {self._stage} received a buffer after its senders had ended")

    def close(self, operator: Operator) -> None:
        """The operator's input is over: every sender must have said so; its last watermark holds."""
        for inbound in self._inbound.values():
            if inbound.operator is not operator:
                continue
            missing = set(inbound.last) - inbound.ended
            if missing:
                edge = f"edge {inbound.edge.source} → {inbound.edge.target}"
                raise ProtocolError(f"{edge}: the input ended before senders {sorted(missing)} did")
            operator.watermark(inbound.edge.port, inbound.lowest())

    def consumed(self) -> dict[int, dict[int, list[int]]]:
        """Items per edge, sender and slice, for the audit."""
        at_border = {
            id: {sender: counts.tolist() for sender, counts in inbound.consumed.items()}
            for id, inbound in self._inbound.items()
        }
        return at_border | (self._links.consumed() if self._links is not None else {})

    def meters(self) -> list[ChannelMeter]:
        links = self._links.meters() if self._links is not None else []
        return [*(inbound.meter for inbound in self._inbound.values()), *links]

    def _waiting(self, inbound: Inbound, frame: Frame, queued_us: int) -> QueuedBuffer:
        """A frame's records or partials, decoded."""

        def began(now: int) -> None:
            inbound.meter.served(frame, queued_us, now)

        data: Batch | pa.RecordBatch
        body = pa.py_buffer(frame.body)
        born_us, tag_us = frame.born_us - self._stamp.offset_us, frame.tagged_us - self._stamp.offset_us
        if frame.kind is Kind.PARTIAL:
            assert inbound.partial_schema is not None
            data = pa.ipc.read_record_batch(body, inbound.partial_schema)
        else:
            schema = wire_schema(inbound.schema, late=frame.kind is Kind.LATE)
            data = from_wire(pa.ipc.read_record_batch(body, schema), inbound.schema, born_us, tag_us)
        return QueuedBuffer(inbound.edge.port, data, born_us, frame.items, len(frame.body), began, tag_us)
