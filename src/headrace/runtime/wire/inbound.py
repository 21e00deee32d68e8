"""The receiving end of an edge: order, audit counts and watermarks per sender."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import ProtocolError
from headrace.graph.stages import Edge
from headrace.graph.windowing import FOREVER_US, IDLE_US, NEVER_US
from headrace.runtime.operators.operator import Operator
from headrace.runtime.operators.progress import Progress
from headrace.runtime.wire.channelmeter import ChannelMeter
from headrace.runtime.wire.frames import Frame, Kind
from headrace.runtime.wire.marks import CutMark


@dataclass(slots=True)
class Inbound:
    """The receiving end of one edge: order, audit counts and watermarks per sender.

    ``reached_us`` is how far the operator was ever told that the edge has come. It outlives attempts: what was closed by
    it stays closed, whatever senders say after a restart.
    """

    edge: Edge
    operator: Operator
    schema: pa.Schema
    partial_schema: pa.Schema | None
    slices: int
    meter: ChannelMeter
    last: dict[int, int] = field(default_factory=dict)
    consumed: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict)
    stood: dict[int, int] = field(default_factory=dict)
    senders: Progress = field(default_factory=Progress)
    reached_us: int = NEVER_US

    @property
    def name(self) -> str:
        """The same in every layout of the job, also of one that has grown."""
        return f"{self.edge.source} → {self.edge.target}:{self.edge.port}"

    def begin(self, senders: range) -> None:
        """A new attempt: nothing has come."""
        self.last = dict.fromkeys(senders, 0)
        self.senders = Progress(senders)
        self.consumed, self.stood = {}, {}
        self.meter.forget()

    def take_counts(self) -> tuple[dict[int, list[int]], dict[int, int]]:
        """By sender: items per slice, and the records that they stood for, since this was last asked."""
        consumed, stood = self.consumed, self.stood
        self.consumed, self.stood = {}, {}
        return {sender: counts.tolist() for sender, counts in consumed.items()}, stood

    def accept(self, frame: Frame) -> bool:
        """Check a frame's place in its sender's sequence; False for one that came before."""
        last = self.last.setdefault(frame.sender, 0)
        carries_data = frame.kind < Kind.WATERMARK
        if carries_data and frame.sequence <= last:
            return False
        self._check(frame.sender, frame.sequence, last + carries_data)
        if not carries_data:
            self.senders.rise(frame.sender, frame.watermark_us)
            return True
        self.last[frame.sender] = frame.sequence
        self.stood[frame.sender] = self.stood.get(frame.sender, 0) + frame.stands
        if frame.slices is not None and frame.counts is not None:
            counts = self.consumed.get(frame.sender)
            if counts is None:
                counts = self.consumed[frame.sender] = np.zeros(self.slices if self.edge.keyed else 1, np.int64)
            counts[frame.slices] += frame.counts
        return True

    def marked(self, sender: int, mark: CutMark) -> None:
        """A sender's last buffer before a cut must have come."""
        self._check(sender, mark.sequences.get(self.edge.id, 0), self.last.setdefault(sender, 0))

    def follow(self, sender: int, mark: CutMark) -> None:
        """From a cut on the watermark in a sender's mark counts, even if it is lower than the one known of it."""
        self.senders.hear(sender, mark.watermarks.get(self.edge.id, NEVER_US))

    def advance(self) -> None:
        """Tell the operator how far all senders have come. An input that has ended may have more in the next attempt."""
        lowest = self.lowest()
        if lowest < FOREVER_US:
            self.reached_us = max(self.reached_us, lowest)
        self.operator.watermark(self.edge.port, lowest)
        if self.senders.idle:
            self.operator.watermark(self.edge.port, IDLE_US)

    def resume(self) -> None:
        """A new attempt: the operator has come as far as it had before."""
        self.operator.watermark(self.edge.port, self.reached_us)

    def _check(self, sender: int, sequence: int, expected: int) -> None:
        if sequence != expected:
            raise ProtocolError(
                f"edge {self.edge.source} → {self.edge.target}: buffer {sequence} of sender {sender} "
                f"after {self.last[sender]}: buffers are missing"
            )

    def lowest(self) -> int:
        return self.senders.reached_us
