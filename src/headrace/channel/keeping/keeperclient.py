"""A worker's connection to a keeper. A keeper that does not answer has nothing, and is not asked again for a while."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import zmq

from headrace.channel.keeping.asks import (
    MAX_MESSAGE_BYTES,
    Answer,
    Ask,
    AskComplete,
    CompleteTo,
    Done,
    Found,
    GetRanges,
    HoldSlices,
    PutExtents,
    packed,
    read_answer,
)
from headrace.channel.keys import Address
from headrace.errors import MessageError
from headrace.state.copies.nodestore import Extent
from headrace.state.copies.placement import CopyNode
from headrace.state.durable.manifest import SliceKey
from headrace.state.durable.segments import BlockRef
from headrace.tokens import Attempt

_PATIENCE_S = 5.0
"""A new keeper takes about a second to start."""
_SHUNNED_S, _CONNECT_S = 10.0, 1.0
_BYTES_AT_ONCE = 16_000_000
"""Asked for or sent in one message; a larger block goes alone."""


class KeeperClient:
    """Asks one keeper, one question after the other; to be used by one thread."""

    def __init__(self, node: CopyNode, address: Address, patience_s: float = _PATIENCE_S) -> None:
        self._patience_s, self._shunned_until_s, self._number = patience_s, 0.0, 0
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.curve_serverkey = node.public.encode()
        self._socket.curve_publickey, self._socket.curve_secretkey = address.client_public, address.client_secret
        self._socket.linger = 0
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._socket.connect(node.endpoint)
        if not _listens(node.endpoint):
            self._shun()

    def get(self, blocks: Sequence[BlockRef]) -> list[bytes | None]:
        bodies: list[bytes | None] = []
        for some in _portions([(block.file, block.offset, block.length) for block in blocks]):
            answer = self._ask(GetRanges(self._next(), some))
            got = answer.bodies if isinstance(answer, Found) and len(answer.bodies) == len(some) else None
            bodies += got if got is not None else [None] * len(some)
        return bodies

    def put(self, file: str, size: int, extents: Sequence[Extent]) -> bool:
        done = [self._done(PutExtents(self._next(), file, size, some)) for some in _extents_at_once(extents)]
        return all(done)

    def hold(self, attempt: Attempt, slices: Sequence[SliceKey]) -> bool:
        return self._done(HoldSlices(self._next(), attempt, list(slices)))

    def complete_to(self, slices: Sequence[SliceKey]) -> int | None:
        """Up to which cut all blocks of some slices are there; None if some are missing, or nobody answers."""
        answer = self._ask(AskComplete(self._next(), list(slices)))
        return answer.cut if isinstance(answer, CompleteTo) else None

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _done(self, ask: Ask) -> bool:
        answer = self._ask(ask)
        return isinstance(answer, Done) and answer.ok

    def _ask(self, ask: Ask) -> Answer | None:
        now_s = time.monotonic()
        if now_s < self._shunned_until_s:
            return None
        try:
            self._socket.send(packed(ask), zmq.DONTWAIT)
            return self._answer(ask.number, now_s + self._patience_s)
        except (zmq.ZMQError, MessageError, TimeoutError):
            self._shun()
            return None

    def _shun(self) -> None:
        self._shunned_until_s = time.monotonic() + _SHUNNED_S

    def _answer(self, number: int, deadline_s: float) -> Answer:
        while (left_ms := int(1e3 * (deadline_s - time.monotonic()))) > 0 and self._socket.poll(left_ms):
            answer = read_answer(self._socket.recv())
            if answer.number == number:
                return answer
        raise TimeoutError


def _listens(endpoint: str) -> bool:
    """Whether anybody is there at all: ZeroMQ would try for as long as it is let."""
    parts = urlsplit(endpoint)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), _CONNECT_S).close()
    except OSError:
        return False
    return True


def _portions(ranges: Sequence[tuple[str, int, int]]) -> list[list[tuple[str, int, int]]]:
    portions: list[list[tuple[str, int, int]]] = []
    size = 0
    for one in ranges:
        if not portions or size + one[2] > _BYTES_AT_ONCE:
            portions.append([])
            size = 0
        portions[-1].append(one)
        size += one[2]
    return portions


def _extents_at_once(extents: Sequence[Extent]) -> list[list[Extent]]:
    portions: list[list[Extent]] = []
    size = 0
    for one in extents:
        if not portions or size + len(one[1]) > _BYTES_AT_ONCE:
            portions.append([])
            size = 0
        portions[-1].append(one)
        size += len(one[1])
    return portions
