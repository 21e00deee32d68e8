"""Frames: what an output buffer is made of on the wire.

A row between two stages is ``(route, payload)``; the payload is one or more frames, each a fixed
header, the item counts per slice, and a body (an Arrow record batch without schema, which both ends
know). An empty payload only pushes the row before it through the pipe, which holds one row back.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import CorruptionError

_HEADER = struct.Struct("<BBHHIIqqqqHIqqIII")
_SENDER = struct.Struct("<4xH")
_VERSION = 3


_MAX_SUBTASKS = 2_048


def sender_id(hop: int, index: int) -> int:
    """Who sent a buffer inside a leg: any of its earlier processes may have, none of another leg's."""
    return (hop + 1) * _MAX_SUBTASKS + index


def subtask_of(sender: int) -> int:
    """The index of the subtask that a sender's number stands for."""
    return sender % _MAX_SUBTASKS


class Kind(IntEnum):
    """What a frame carries."""

    DATA = 1
    LATE = 2
    PARTIAL = 3
    WATERMARK = 4
    CUT = 5
    EXTERNAL = 6


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame. Times are µs since 1970 by the driver's clock; ``watermark_us`` (event time) counts for
    WATERMARK only.

    ``born_us`` is when the oldest item was due or read, ``tagged_us`` when one was that was drawn
    at random, 0 if that is not known; ``waited_us`` is how long all items together waited in the open buffer, and
    ``settings`` the version of the settings that were in force when it was flushed.
    ``sequence`` is contiguous from 1 per sender, edge and receiver. ``slices`` and ``counts`` say
    how many items of each slice are inside, for the audit that all that was sent was consumed; ``stands`` is for how
    many records they stand. Of a buffer that was combined the first frame stands for all of it.
    """

    kind: Kind
    edge: int
    sender: int
    sequence: int
    items: int = 0
    born_us: int = 0
    opened_us: int = 0
    shipped_us: int = 0
    watermark_us: int = 0
    slices: npt.NDArray[np.uint16] | None = None
    counts: npt.NDArray[np.uint32] | None = None
    body: pa.Buffer | bytes = b""
    tagged_us: int = 0
    waited_us: int = 0
    settings: int = 0
    stands: int = 0

    def tag_us(self, ahead_us: int) -> int | None:
        """``tagged_us`` by a clock that the driver's is so much ahead of; None if it is not known."""
        return self.tagged_us - ahead_us if self.tagged_us else None

    def encode(self) -> bytes:
        runs = b""
        n_slices = 0
        if self.slices is not None and self.counts is not None:
            n_slices = len(self.slices)
            runs = self.slices.tobytes() + self.counts.tobytes()
        body = bytes(self.body)
        size = len(body)
        fields = (
            _VERSION, self.kind, self.edge, self.sender, self.sequence, self.items, self.born_us,
            self.opened_us, self.shipped_us, self.watermark_us, n_slices, size, self.tagged_us,
            self.waited_us, self.settings, self.stands,
        )  # fmt: skip
        crc = zlib.crc32(body, zlib.crc32(runs, zlib.crc32(_HEADER.pack(*fields, 0))))
        return b"".join([_HEADER.pack(*fields, crc), runs, body])


def decode(payload: memoryview | bytes) -> Iterator[Frame]:
    """The frames of a payload; CorruptionError if a byte is not what was sent."""
    view = memoryview(payload)
    at = 0
    while at < len(view):
        try:
            fields = _HEADER.unpack_from(view, at)
        except struct.error:
            raise CorruptionError("a buffer between two stages is cut off") from None
        n_slices, size, crc = fields[10], fields[11], fields[16]
        runs_at = at + _HEADER.size
        body_at = runs_at + 6 * n_slices
        end = body_at + size
        body = view[body_at:end]
        expected = zlib.crc32(body, zlib.crc32(view[runs_at:body_at], zlib.crc32(_HEADER.pack(*fields[:16], 0))))
        if fields[0] != _VERSION or end > len(view) or crc != expected:
            raise CorruptionError("a buffer between two stages was damaged on its way (checksum differs)")
        slices = np.frombuffer(view, np.uint16, n_slices, runs_at) if n_slices else None
        counts = np.frombuffer(bytes(view[runs_at + 2 * n_slices : body_at]), np.uint32) if n_slices else None
        edge, sender, sequence, items, born_us, opened_us, shipped_us, watermark_us = fields[2:10]
        yield Frame(
            Kind(fields[1]), edge, sender, sequence, items, born_us, opened_us, shipped_us, watermark_us,
            slices, counts, bytes(body), *fields[12:16],
        )  # fmt: skip
        at = end


def sender_of(payload: memoryview) -> int:
    """Who sent a row, without a look at what is in it; all of its frames came through one pipe."""
    sender: int = _SENDER.unpack_from(payload)[0]
    return sender


def external_row(source: int, records: pa.RecordBatch) -> bytes:
    """Records that Spark read itself, for the source with this number among those of stage 0."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, records.schema) as writer:
        writer.write_batch(records)
    return Frame(Kind.EXTERNAL, source, 0, 0, records.num_rows, body=out.getvalue()).encode()


def read_ipc(body: pa.Buffer | bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(body) as reader:
        return reader.read_next_batch()
