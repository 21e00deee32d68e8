"""The keeper's process: takes copies in, gives them out, and looks after them, until its executor is gone.

Started as ``python -m headrace.channel.keeping.keeper``, with what it needs to know (a ``KeeperTask``) on its standard
input, a listening socket and a locked file among its descriptors. It never unpickles, and opens only names of segments in
its own directories, and the checkpoint for reading. Its argument only shows users whose keeper it is.
"""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil
import zmq
from zmq.auth.thread import ThreadAuthenticator

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
    read_ask,
)
from headrace.channel.keeping.sweeping import sweep
from headrace.channel.keys import OnlyKey
from headrace.errors import HeadraceError, MessageError
from headrace.state.copies.nodestore import NodeStore, Origin, Tier
from headrace.state.copies.tending import Tending
from headrace.state.durable.manifest import SliceKey
from headrace.state.durable.storage import LocalStorage
from headrace.tokens import Attempt

_log = logging.getLogger("headrace.keeper")
_POLL_MS = 500
_TEND_S = 2.0
_IDLE_S = 900.0
"""A keeper that nobody has asked anything for so long is of a run that is over: its executor may serve others."""
_WAITING = 100
"""Questions that may wait for an answer, each client's; a worker asks one at a time."""


class KeeperTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a keeper needs to know. ``socket`` listens at ``endpoint``; ``daemon`` is the process it ends with.

    ``tiers`` are origin, directory and limit of each.
    """

    socket: int
    endpoint: str
    public: bytes
    secret: bytes
    client_public: bytes
    daemon: int
    daemon_began_s: float
    checkpoint: str
    tiers: tuple[tuple[Origin, str, int], ...]


class Keeping:
    """What a keeper does, whoever asks."""

    def __init__(self, store: NodeStore) -> None:
        self._store = store
        self._attempt: Attempt | None = None
        self._held: frozenset[SliceKey] = frozenset()
        self._complete: tuple[frozenset[SliceKey], int | None] = frozenset(), None

    @property
    def held(self) -> frozenset[SliceKey]:
        """The slices that this node is to have copies of."""
        return self._held

    def tended(self, held: frozenset[SliceKey], cut: int | None) -> None:
        """Copies of these slices are complete up to a cut, or are not."""
        self._complete = held, cut

    def answer(self, ask: Ask) -> Answer:
        try:
            match ask:
                case PutExtents():
                    return Done(ask.number, self._store.put(ask.file, ask.size, ask.extents))
                case GetRanges():
                    return Found(ask.number, self._find(ask.ranges))
                case HoldSlices():
                    return Done(ask.number, self._hold(ask.attempt, frozenset(ask.slices)))
                case AskComplete():
                    held, cut = self._complete
                    return CompleteTo(ask.number, cut if held.issuperset(ask.slices) else None)
        except (ValueError, OSError, OverflowError):
            return Done(ask.number, ok=False)

    def _hold(self, attempt: Attempt, slices: frozenset[SliceKey]) -> bool:
        """Of a newer attempt: nothing that was to be held for an earlier one is, unless it is named again."""
        if self._attempt is not None and attempt < self._attempt:
            return False
        self._held = slices | (self._held if attempt == self._attempt else frozenset())
        self._attempt = attempt
        return True

    def _find(self, ranges: list[tuple[str, int, int]]) -> list[bytes | None]:
        bodies: list[bytes | None] = []
        size = 0
        for file, offset, length in ranges:
            size += length
            if length < 0 or offset < 0 or size > MAX_MESSAGE_BYTES:
                raise ValueError("too much at once")
            bodies.append(next((body for _, body in self._store.find(file, offset, length)), None))
        return bodies


def serve(task: KeeperTask, going_on: Callable[[], bool]) -> None:
    """Answer until it is over."""
    store = NodeStore([Tier(origin, Path(root), limit_bytes) for origin, root, limit_bytes in task.tiers])
    keeping = Keeping(store)
    context = zmq.Context()
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback("*", OnlyKey(task.client_public))
    socket = context.socket(zmq.ROUTER)
    socket.curve_server = True
    socket.curve_publickey, socket.curve_secretkey = task.public, task.secret
    socket.linger = 0
    socket.rcvhwm = socket.sndhwm = _WAITING
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.USE_FD, task.socket)
    socket.bind(task.endpoint)
    tending = Tending(store, LocalStorage(Path(task.checkpoint)), going_on)
    threading.Thread(target=_tend, args=(tending, keeping, going_on), name="headrace-tending", daemon=True).start()
    try:
        _answer_all(socket, keeping, going_on)
    finally:
        authenticator.stop()
        socket.close()
        context.term()


def _answer_all(socket: zmq.Socket[bytes], keeping: Keeping, going_on: Callable[[], bool]) -> None:
    asked_s = time.monotonic()
    while going_on() and time.monotonic() - asked_s < _IDLE_S:
        if not socket.poll(_POLL_MS):
            continue
        asked_s = time.monotonic()
        sender, *parts = socket.recv_multipart()
        try:
            answer = keeping.answer(read_ask(b"".join(parts)))
        except MessageError as error:
            _log.warning("%s", error)
            continue
        with suppress(zmq.Again):  # who does not read its answers does without
            socket.send_multipart([sender, packed(answer)], zmq.DONTWAIT)


def _tend(tending: Tending, keeping: Keeping, going_on: Callable[[], bool]) -> None:
    while going_on():
        time.sleep(_TEND_S)
        try:
            held = keeping.held
            keeping.tended(held, tending.turn(held).cut)
        except (OSError, HeadraceError) as error:
            _log.warning("copies cannot be looked after for now: %s", error)


def main() -> None:
    """Read the task, serve, and leave nothing behind."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    task = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=KeeperTask)
    sweep([Path(root) for _, root, _ in task.tiers])
    try:
        serve(task, lambda: _lives(task.daemon, task.daemon_began_s))
    finally:
        for _, root, _ in task.tiers:
            shutil.rmtree(root, ignore_errors=True)


def _lives(pid: int, began_s: float) -> bool:
    try:
        return psutil.Process(pid).create_time() == began_s
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    main()
