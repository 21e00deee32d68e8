"""The driver's end: one thread that serves all workers."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

import zmq
from zmq.auth.thread import ThreadAuthenticator

from headrace.channel.clocks import clock_name, system_us
from headrace.channel.keys import Address, OnlyKey, RunKeys
from headrace.errors import MessageError
from headrace.runtime.messages import ClockAsked, ClockTold, Ping, Reply, ToDriver, ToWorker, encode, read_as_driver

_log = logging.getLogger("headrace.channel")
_POLL_MS = 50
_PING_EVERY_S = 0.5
_RECONNECT_S = 1.0
"""A connection that broke may be made again within this time before its peer counts as lost."""


class ChannelServer:
    """Calls ``on_message(sender, message)`` for each message; what it returns is sent.

    What is no message is refused: a warning names its kind, and nobody is called.
    ``send`` may be called from any thread. ``on_lost(sender)`` is called once when a peer has shown no sign of
    life for ``lease_s``. Signs of life come from ZeroMQ's own threads: a peer busy with a long Python or C call
    has not gone.
    """

    def __init__(
        self,
        host: str,
        on_message: Callable[[bytes, ToDriver], list[Reply]],
        *,
        on_lost: Callable[[bytes], None] = lambda _: None,
        lease_s: float = 5.0,
        clock_us: Callable[[], int] = system_us,
    ) -> None:
        self._clock_us, self._clock = clock_us, clock_name()
        self._on_message, self._on_lost = on_message, on_lost
        self._unreachable_s: dict[bytes, float | None] = {}
        self._pinged_s = 0.0
        keys = RunKeys.make()
        self._context = zmq.Context()
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", OnlyKey(keys.client_public))
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.curve_server = True
        self._socket.curve_publickey, self._socket.curve_secretkey = keys.server_public, keys.server_secret
        self._socket.linger = 0
        self._socket.router_mandatory = self._socket.router_handover = True
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, int(lease_s * 200))
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(lease_s * 1000))
        port = self._socket.bind_to_random_port(f"tcp://{host}")
        self.address: Address = keys.address(f"tcp://{host}:{port}")
        self._outbox: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="headrace-channel", daemon=True)
        self._thread.start()

    def send(self, to: bytes, message: ToWorker) -> None:
        self._outbox.put((to, message))

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(5)
        self._authenticator.stop()
        self._socket.close()
        self._context.term()

    def _serve(self) -> None:
        while not self._stopping.is_set():
            try:
                replies = self._take()
            except zmq.ZMQError:
                return
            while not self._outbox.empty():
                replies.append(self._outbox.get())
            for reply in replies:
                self._send(*reply)
            self._check_peers(time.monotonic())

    def _take(self) -> list[Reply]:
        """Handle what has come, and wait a little if nothing has."""
        replies: list[Reply] = []
        ready = self._socket.poll(_POLL_MS)
        while ready:
            sender, *parts = self._socket.recv_multipart()
            self._unreachable_s.setdefault(sender, None)
            replies += self._handle(sender, b"".join(parts))
            ready = self._socket.poll(0)
        return replies

    def _send(self, to: bytes, message: ToWorker) -> bool:
        """False if the peer cannot be reached now; a peer that does not read is not waited for."""
        try:
            self._socket.send_multipart([to, encode(message)], zmq.DONTWAIT)
        except zmq.Again:
            _log.warning("a peer does not read its control messages; dropped %r", type(message).__struct_config__.tag)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def _check_peers(self, now_s: float) -> None:
        if now_s - self._pinged_s < _PING_EVERY_S:
            return
        self._pinged_s = now_s
        for peer, since_s in list(self._unreachable_s.items()):
            if self._send(peer, Ping()):
                self._unreachable_s[peer] = None
            elif since_s is None:
                self._unreachable_s[peer] = now_s
            elif now_s - since_s >= _RECONNECT_S:
                del self._unreachable_s[peer]
                self._on_lost(peer)

    def _handle(self, sender: bytes, data: bytes) -> list[Reply]:
        received_us = self._clock_us()
        try:
            message = read_as_driver(data)
        except MessageError as error:
            _log.warning("%s", error)
            return []
        if isinstance(
            message, ClockAsked
        ):  # answered at once, not with the others: what waits would look like distance
            self._send(sender, ClockTold(message.sent_us, self._clock, received_us, self._clock_us()))
            return []
        try:
            return self._on_message(sender, message)
        except Exception:  # it must not take with it what others are to be told
            _log.exception("a control message of kind %r could not be handled", type(message).__struct_config__.tag)
            return []
