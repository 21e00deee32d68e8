"""How long buffers, and the items in them, spend on their way: what their sender writes into the headers for that, and
what their receiver makes of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.measure.report import ChannelId, ChannelReport
from headrace.runtime.metering.meter import StepMeter
from headrace.runtime.metering.tallies import Tally
from headrace.runtime.wire.frames import Frame, subtask_of

_US_PER_MS = 1000
_GOLDEN = 0x9E3779B1
"""2³² divided by the golden ratio: multiples of it, modulo 2³², are spread as evenly as can be."""


@dataclass(slots=True)
class Stamp:
    """How far this host's clock is behind the driver's, and the version of the settings in force.

    Times in headers are the driver's: the sender adds its offset, the receiver subtracts its own.
    """

    offset_us: int = 0
    version: int = 0


def tagged(edge: int, sender: int, sequence: int, share: float) -> bool:
    """Whether a buffer is one of the sampled; sender and receiver agree without a word.

    The thesis (section 2.5 of our specification) draws each event by luck. Here a share of the
    sequence is taken evenly, at distances that repeat no period of the load.
    """
    return (sequence * _GOLDEN + edge * 0x85EBCA6B + sender * 0xC2B2AE35) & 0xFFFFFFFF < share * 2**32


@dataclass(slots=True)
class ChannelTally:
    """One sender's buffers along one edge: where they, and the items in them, spent their time (µs).

    ``spare`` counts if no buffer of the interval was tagged: HPDC'12 has a sample per interval, too. It
    must not count besides others: the first buffer after a report is often one that came late.
    """

    items: int = 0
    buffers: int = 0
    spare: tuple[int, int, int, int, int] | None = None
    _parts: tuple[Tally, Tally, Tally, Tally] = field(default_factory=lambda: (Tally(), Tally(), Tally(), Tally()))

    def add(self, items: int, wait: int, lifetime: int, transfer: int, queue: int) -> None:
        for tally, value, weight in zip(self._parts, (wait, lifetime, transfer, queue), (items, 1, items, items)):
            tally.add(value, weight)

    def report(self, id: ChannelId) -> ChannelReport:
        if self.spare is not None and not self._parts[0].n:
            self.add(*self.spare)
        return ChannelReport(id, self.items, self.buffers, *(part.take(_US_PER_MS) for part in self._parts))


@dataclass(slots=True)
class ChannelMeter:
    """All channels of one edge into one subtask. ``oldest`` is the lowest settings version of their buffers."""

    edge: int
    step: StepMeter
    share: float
    stamp: Stamp
    oldest: int | None = None
    _senders: dict[int, ChannelTally] = field(default_factory=dict)

    def forget(self) -> None:
        """Senders may be others from now on."""
        self._senders.clear()

    def served(self, frame: Frame, queued_us: int, now_us: int) -> None:
        """A buffer's service begins now; it was queued here at ``queued_us``, both by this host's clock."""
        tally = self._senders.setdefault(subtask_of(frame.sender), ChannelTally())
        tally.items += frame.items
        tally.buffers += 1
        self.oldest = frame.settings if self.oldest is None else min(self.oldest, frame.settings)
        self.step.dequeued(now_us - queued_us)
        sampled = tagged(frame.edge, frame.sender, frame.sequence, self.share)
        if not sampled and tally.spare is not None:
            return
        wait_us, lifetime_us = frame.waited_us // frame.items, frame.shipped_us - frame.opened_us
        transfer_us = queued_us + self.stamp.offset_us - frame.shipped_us
        times = frame.items, wait_us, lifetime_us, transfer_us, now_us - queued_us
        if sampled:
            tally.add(*times)
        else:
            tally.spare = times

    def take(self, receiver: int) -> list[ChannelReport]:
        """The interval's figures per sender, then start anew; a sender known from before reports its silence."""
        reports = [
            tally.report(ChannelId(self.edge, sender, receiver)) for sender, tally in sorted(self._senders.items())
        ]
        self._senders, self.oldest = {sender: ChannelTally() for sender in self._senders}, None
        return reports
