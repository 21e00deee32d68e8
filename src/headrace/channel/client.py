"""A worker's end of the control channel."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from typing import Any

import msgpack
import zmq

from headrace.channel.clocks import ClockFilter, Exchange, clock_name, system_us
from headrace.channel.keys import CLOCK, PING, Address
from headrace.errors import ChannelError, FencedError

_MAX_UNSENT = 1000
_IDLE_TALK = (PING, CLOCK)
"""Kinds that mean nothing when nobody waits for them."""
_EXCHANGES = 8
_EXCHANGE_S = 0.25


class ChannelClient:
    """Sends without waiting; answers are picked up by ``poll`` or awaited by ``wait``.

    ZeroMQ reconnects by itself. While the driver cannot be reached, reports beyond a bounded
    number are dropped and data goes on. ``clock_us`` reads this end's clock, ``clock`` is its name.
    """

    def __init__(self, address: Address, *, clock_us: Callable[[], int] = system_us, clock: str | None = None) -> None:
        self.pid = os.getpid()
        self._clock_us, self._clock = clock_us, clock or clock_name()
        self._exchanges = ClockFilter()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.identity = uuid.uuid4().bytes
        self._socket.curve_serverkey = address.server_public
        self._socket.curve_publickey, self._socket.curve_secretkey = address.client_public, address.client_secret
        self._socket.linger = 200
        self._socket.sndhwm = _MAX_UNSENT
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
        return [message for message in messages if message["kind"] not in _IDLE_TALK]

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
            if message["kind"] not in _IDLE_TALK:
                self._early.append(message)

    def offset_us(self) -> int:
        """How much to add to this host's clock to get the driver's; 0 on the driver's own host.

        Asks a few times and takes the answer that was fastest lately. While the driver does not answer,
        what was known before holds, and 0 if nothing was: the hosts' own synchronisation.
        """
        for _ in range(_EXCHANGES):
            sent_us = self._clock_us()
            self.tell(CLOCK, {"token": str(sent_us)})
            try:
                answer = self.wait(CLOCK, str(sent_us), _EXCHANGE_S)
            except ChannelError:
                break
            if answer["clock"] == self._clock:
                return 0
            self._exchanges.add(Exchange(sent_us, answer["received_us"], answer["answered_us"], self._clock_us()))
        best = self._exchanges.best
        return best.offset_us if best is not None else 0

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def _receive(self) -> dict[str, Any]:
        kind, body = msgpack.unpackb(self._socket.recv(), strict_map_key=False)
        return {**body, "kind": kind}
