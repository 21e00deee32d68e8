"""What is asked of a keeper, and its answers: one type for each kind, in msgpack. Nothing else is read."""

from __future__ import annotations

import msgspec

from headrace.errors import MessageError
from headrace.tokens import Attempt

MAX_MESSAGE_BYTES = 256_000_000
"""What a keeper takes at once, and at most answers with; a larger block is in the checkpoint alone."""


class _Ask(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """``number`` comes back with the answer: one that is late must not be taken for the next one's."""

    number: int


class PutExtents(_Ask, frozen=True, tag="put"):
    """Keep some bytes of a segment of ``size`` bytes: (where, what)."""

    file: str
    size: int
    extents: list[tuple[int, bytes]]


class GetRanges(_Ask, frozen=True, tag="get"):
    """Give what is kept in place of some blocks: (segment, where, how much)."""

    ranges: list[tuple[str, int, int]]


class HoldSlices(_Ask, frozen=True, tag="hold"):
    """Have all blocks of these slices that the version log names, for an attempt and what follows it."""

    attempt: Attempt
    slices: list[tuple[str, int]]


class AskComplete(_Ask, frozen=True, tag="complete"):
    """Up to which version have you all blocks of these slices?"""

    slices: list[tuple[str, int]]


class _Answer(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    number: int


class Done(_Answer, frozen=True, tag="done"):
    """``ok``: it is done. If not, there was no room, or what was asked for makes no sense."""

    ok: bool


class Found(_Answer, frozen=True, tag="found"):
    """What is kept, in the order asked for; None where nothing is."""

    bodies: list[bytes | None]


class CompleteTo(_Answer, frozen=True, tag="complete"):
    """The number of the version's cut; None if some are missing, or not to be held."""

    cut: int | None


Ask = PutExtents | GetRanges | HoldSlices | AskComplete
Answer = Done | Found | CompleteTo
_ENCODER = msgspec.msgpack.Encoder()
_ASKS: msgspec.msgpack.Decoder[Ask] = msgspec.msgpack.Decoder(Ask)
_ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def packed(message: Ask | Answer) -> bytes:
    """The bytes of a message."""
    return _ENCODER.encode(message)


def read_ask(data: bytes) -> Ask:
    """What is asked; MessageError if it is nothing that can be."""
    try:
        return _ASKS.decode(data)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"a keeper was asked what it does not understand ({len(data)} bytes): {error}") from error


def read_answer(data: bytes) -> Answer:
    """An answer; MessageError if it is none."""
    try:
        return _ANSWERS.decode(data)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"a keeper's answer cannot be read ({len(data)} bytes): {error}") from error
