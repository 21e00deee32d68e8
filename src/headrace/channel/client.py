"""A worker's end of the control channel."""

from __future__ import annotations

import os
import time
import uuid
from typing import Any

import msgpack
import zmq

from headrace.channel.keys import PING, Address
from headrace.errors import ChannelError, FencedError

_MOST_UNSENT = 1000


class ChannelClient:
    """Sends without waiting; answers are picked up by ``poll`` or awaited by ``wait``.

    ZeroMQ reconnects by itself. While the driver cannot be reached, reports beyond a bounded
    number are dropped and data goes on.
    """

    def __init__(self, address: Address) -> None:
        self.pid = os.getpid()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.identity = uuid.uuid4().bytes
        self._socket.curve_serverkey = address.server_public
        self._socket.curve_publickey, self._socket.curve_secretkey = address.client_public, address.client_secret
        self._socket.linger = 200
        self._socket.sndhwm = _MOST_UNSENT
        self._socket.connect(address.endpoint)
        self._early: list[dict[str, Any]] = []

    def tell(self, kind: str, body: dict[str, Any]) -> None:
        """Send a message if there is room; what does not fit is dropped."""
        try:
            self._socket.send(msgpack.packb([kind, body]), zmq.DONTWAIT)
        except zmq.Again:
            return

    def poll(self) -> list[dict[str, Any]]:
        """Messages that have come, each with its ``kind``; never blocks."""
        messages, self._early = self._early, []
        while self._socket.poll(0):
            messages.append(self._receive())
        return [message for message in messages if message["kind"] != PING]

    def wait(self, kind: str, token: str | None, timeout_s: float) -> dict[str, Any]:
        """The next message of a kind (and attempt); others are kept for ``poll``.

        Raises FencedError when told so, ChannelError after ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            left_ms = int((deadline - time.monotonic()) * 1000)
            if left_ms <= 0 or not self._socket.poll(left_ms):
                raise ChannelError(f"the driver did not send {kind!r} within {timeout_s:g} s")
            message = self._receive()
            if message["kind"] == "fenced":
                raise FencedError(str(message.get("why", "a newer attempt owns this work")))
            if message["kind"] == kind and (token is None or message.get("token") == token):
                return message
            if message["kind"] != PING:
                self._early.append(message)

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def _receive(self) -> dict[str, Any]:
        kind, body = msgpack.unpackb(self._socket.recv(), strict_map_key=False)
        return {**body, "kind": kind}
