"""The receiving end of an edge: order, audit counts and watermarks per sender."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import ProtocolError
from headrace.graph.stages import Edge
from headrace.graph.windowing import NEVER_US
from headrace.runtime.operators.operator import Operator, lowest_of
from headrace.runtime.wire.channelmeter import ChannelMeter
from headrace.runtime.wire.frames import Frame, Kind


@dataclass(slots=True)
class Inbound:
    """The receiving end of one edge: order, audit counts and watermarks per sender."""

    edge: Edge
    operator: Operator
    schema: pa.Schema
    partial_schema: pa.Schema | None
    slices: int
    meter: ChannelMeter
    last: dict[int, int] = field(default_factory=dict)
    consumed: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict)
    watermarks: dict[int, int] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)

    def begin(self, senders: range) -> None:
        self.last = dict.fromkeys(senders, 0)
        self.consumed = {sender: np.zeros(self.slices if self.edge.keyed else 1, np.int64) for sender in senders}
        self.watermarks = dict.fromkeys(senders, NEVER_US)
        self.ended = set()
        self.meter.forget()

    def accept(self, frame: Frame) -> bool:
        """Check a frame's place in its sender's sequence; False for one that came before."""
        last = self.last.setdefault(frame.sender, 0)
        carries_data = frame.kind < Kind.WATERMARK
        if carries_data and frame.sequence <= last:
            return False
        if frame.sequence != last + carries_data:
            raise ProtocolError(
                f"edge {self.edge.source} → {self.edge.target}: buffer {frame.sequence} of sender {frame.sender} "
                f"after {last}: buffers are missing"
            )
        self.last[frame.sender] = frame.sequence
        if carries_data and frame.slices is not None and frame.counts is not None:
            counts = self.consumed.setdefault(frame.sender, np.zeros(self.slices if self.edge.keyed else 1, np.int64))
            counts[frame.slices] += frame.counts
        if not carries_data:
            self.watermarks[frame.sender] = max(self.watermarks.get(frame.sender, NEVER_US), frame.watermark_us)
        if frame.kind is Kind.END:
            self.ended.add(frame.sender)
        return True

    def lowest(self) -> int:
        return lowest_of(self.watermarks.values()) if self.watermarks else NEVER_US
