"""The mark of a cut: what a sender puts into every pipe between the last buffer before a cut and the first one after it.

A mark is the last frame of its row. Where stages run one after the other there is one, at the end of what a sender has.
"""

from __future__ import annotations

import msgspec

from headrace.errors import CorruptionError
from headrace.runtime.ownership import Table
from headrace.runtime.wire.frames import Frame, Kind
from headrace.tokens import Token

CUT_EDGE = 65_535
"""In place of an edge: a mark is about all edges that its sender feeds."""


class CutMark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One sender's mark for one receiver. ``end``: nothing follows.

    By edge: ``sequences`` are the numbers of the last buffers before it, ``watermarks`` how far the sender's output has
    come; an edge that is missing there has none. ``tables`` say who owns the slices of a stage from the cut on, ``editions``
    where lookups look records up, both where that changes.
    """

    token: Token
    end: bool
    sequences: dict[int, int]
    watermarks: dict[int, int]
    tables: dict[int, Table] = {}
    editions: dict[str, str] = {}

    def frame(self, sender: int) -> Frame:
        """The mark as it is sent."""
        return Frame(Kind.CUT, CUT_EDGE, sender, 0, body=_ENCODER.encode(self))


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(CutMark)


def read_mark(frame: Frame) -> CutMark:
    """The mark in a frame; CorruptionError if there is none."""
    try:
        return _DECODER.decode(bytes(frame.body))
    except ValueError as error:  # msgspec's errors, and those of text that is no UTF-8
        raise CorruptionError(f"the mark of a cut by sender {frame.sender} cannot be read: {error}") from error
