"""A worker's end of the control channel."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from typing import TypeVar

import zmq

from headrace.channel.clocks import ClockFilter, Exchange, clock_name, system_us
from headrace.channel.keys import Address
from headrace.errors import ChannelError, FencedError
from headrace.runtime.messages import (
    ClockAsked,
    ClockTold,
    Fenced,
    Ping,
    Planned,
    ToDriver,
    ToWorker,
    Turn,
    encode,
    read_as_worker,
)
from headrace.tokens import Attempt

_MAX_UNSENT = 1000
_IDLE_TALK = (Ping, ClockTold)
"""Messages that mean nothing when nobody waits for them."""
_EXCHANGES = 8
_EXCHANGE_S = 0.25
Kind = TypeVar("Kind", bound=ToWorker)


class ChannelClient:
    """Sends without waiting; answers are picked up by ``poll`` or awaited by ``wait``.

    ZeroMQ reconnects by itself. While the driver cannot be reached, reports beyond a bounded
    number are dropped and data goes on, but not for longer than ``lease_s`` without any sign of it, if that is given:
    another driver may have taken over. ``clock_us`` reads this end's clock, ``clock`` is its name. ``on_poll`` is called with
    every ``poll``.
    """

    def __init__(
        self,
        address: Address,
        *,
        lease_s: float | None = None,
        clock_us: Callable[[], int] = system_us,
        clock: str | None = None,
        on_poll: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_poll = on_poll
        self.pid = os.getpid()
        self._lease_s, self._heard_s = lease_s, time.monotonic()
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
        self._early: list[ToWorker] = []
        self._query: int | None = None

    def tell(self, message: ToDriver) -> None:
        """Send a message if there is room; what does not fit is dropped."""
        try:
            self._socket.send(encode(message), zmq.DONTWAIT)
        except zmq.Again:
            return

    def poll(self) -> list[ToWorker]:
        """Messages that have come; never blocks. MessageError for what is none, ChannelError after a lease of silence."""
        self._on_poll()
        messages, self._early = self._early, []
        while self._socket.poll(0):
            messages.append(self._receive())
        if self._lease_s is not None and time.monotonic() - self._heard_s > self._lease_s:
            raise ChannelError(f"the driver has given no sign of life for {self._lease_s:g} s: it hangs or is gone")
        return [message for message in messages if not self._is_idle(message)]

    def begin(self, query: int) -> None:
        """A task of a query begins: drop what has come for a task before, and what still comes for other queries' tasks."""
        self._query = query
        self._early.clear()
        while self._socket.poll(0):
            self._receive()

    def wait(self, turn: type[Turn], timeout_s: float, *, attempt: Attempt | None = None) -> Turn:
        """The next message of a type (and attempt); others are kept for ``poll``.

        Raises FencedError when told so, ChannelError after ``timeout_s``, MessageError for what is no message.
        """
        return self._await(turn, lambda message: attempt is None or message.attempt == attempt, timeout_s)

    def offset_us(self) -> int:
        """How much to add to this host's clock to get the driver's; 0 on the driver's own host.

        Asks a few times and takes the answer that was fastest lately. While the driver does not answer,
        what was known before holds, and 0 if nothing was: the hosts' own synchronisation.
        """
        for _ in range(_EXCHANGES):
            try:
                told = self._ask_clock(self._clock_us())
            except ChannelError:
                break
            if told.clock == self._clock:
                return 0
            self._exchanges.add(Exchange(told.sent_us, told.received_us, told.answered_us, self._clock_us()))
        best = self._exchanges.best
        return best.offset_us if best is not None else 0

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def _ask_clock(self, sent_us: int) -> ClockTold:
        self.tell(ClockAsked(sent_us))
        return self._await(ClockTold, lambda told: told.sent_us == sent_us, _EXCHANGE_S)

    def _await(self, kind: type[Kind], wanted: Callable[[Kind], bool], timeout_s: float) -> Kind:
        deadline = time.monotonic() + timeout_s
        while True:
            left_ms = int((deadline - time.monotonic()) * 1000)
            if left_ms <= 0 or not self._socket.poll(left_ms):
                raise ChannelError(f"the driver did not send {kind.__struct_config__.tag!r} within {timeout_s:g} s")
            message = self._receive()
            if isinstance(message, kind) and wanted(message) and not self._is_for_another(message):
                return message
            if self._is_idle(message):
                continue
            if isinstance(message, Fenced):
                raise FencedError(message.why)
            self._early.append(message)

    def _is_idle(self, message: ToWorker) -> bool:
        """Whether it means nothing to who does not wait for it."""
        return isinstance(message, _IDLE_TALK) or self._is_for_another(message)

    def _is_for_another(self, message: ToWorker) -> bool:
        """Whether it was for a task of another query that this process has had."""
        return self._query is not None and isinstance(message, (Planned, Fenced)) and message.query != self._query

    def _receive(self) -> ToWorker:
        data = self._socket.recv()
        self._heard_s = time.monotonic()
        return read_as_worker(data)
