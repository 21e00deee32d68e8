"""The driver's end: one thread that serves all workers."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import msgpack
import zmq
from zmq.auth.thread import ThreadAuthenticator

from headrace.channel.clocks import clock_name, system_us
from headrace.channel.keys import CLOCK, PING, Address, RunKeys

_log = logging.getLogger("headrace.channel")
_POLL_MS = 50
_PING_EVERY_S = 0.5
_RECONNECT_S = 1.0
"""A connection that broke may be made again within this time before its peer counts as lost."""

Body = dict[str, Any]
Reply = tuple[bytes, str, Body]
"""To whom, kind, body."""


class ChannelServer:
    """Calls ``on_message(sender, kind, body)`` for each message; what it returns is sent.

    ``send`` may be called from any thread. ``on_tick`` is called about twenty times a second.
    ``on_lost(sender)`` is called once when a peer has shown no sign of life for ``lease_s``. Signs of
    life come from ZeroMQ's own threads: a peer busy with a long Python or C call has not gone.
    """

    def __init__(
        self,
        host: str,
        on_message: Callable[[bytes, str, Body], list[Reply]],
        on_tick: Callable[[], list[Reply]] = list,
        *,
        on_lost: Callable[[bytes], None] = lambda _: None,
        lease_s: float = 5.0,
        clock_us: Callable[[], int] = system_us,
    ) -> None:
        self._clock_us, self._clock = clock_us, clock_name()
        self._on_message, self._on_tick, self._on_lost = on_message, on_tick, on_lost
        self._unreachable_s: dict[bytes, float | None] = {}
        self._pinged_s = 0.0
        keys = RunKeys.make()
        self._context = zmq.Context()
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", _OnlyKey(keys.client_public))
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

    def send(self, to: bytes, kind: str, body: Body) -> None:
        self._outbox.put((to, kind, body))

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(5)
        self._authenticator.stop()
        self._socket.close()
        self._context.term()

    def _serve(self) -> None:
        while not self._stopping.is_set():
            try:
                ready = self._socket.poll(_POLL_MS)
                replies = []
                while ready:
                    sender, data = self._socket.recv_multipart()
                    self._unreachable_s.setdefault(sender, None)
                    replies += self._handle(sender, data)
                    ready = self._socket.poll(0)
                replies += self._on_tick()
            except zmq.ZMQError:
                return
            except Exception:
                _log.exception("a control message could not be handled")
                continue
            while not self._outbox.empty():
                replies.append(self._outbox.get())
            for reply in replies:
                self._send(*reply)
            self._check_peers(time.monotonic())

    def _send(self, to: bytes, kind: str, body: Body) -> bool:
        """False if the peer cannot be reached now; a peer that does not read is not waited for."""
        try:
            self._socket.send_multipart([to, msgpack.packb([kind, body])], zmq.DONTWAIT)
        except zmq.Again:
            _log.warning("a peer does not read its control messages; dropped %r", kind)
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
            if self._send(peer, PING, {}):
                self._unreachable_s[peer] = None
            elif since_s is None:
                self._unreachable_s[peer] = now_s
            elif now_s - since_s >= _RECONNECT_S:
                del self._unreachable_s[peer]
                self._on_lost(peer)

    def _handle(self, sender: bytes, data: bytes) -> list[Reply]:
        received_us = self._clock_us()
        try:
            kind, body = msgpack.unpackb(data, strict_map_key=False)
        except (ValueError, TypeError, msgpack.UnpackException):
            _log.warning("dropped a control message that is not msgpack")
            return []
        if kind == CLOCK:  # answered at once, not with the other replies: what waits here would look like distance
            times = {"received_us": received_us, "answered_us": self._clock_us()}
            self._send(sender, CLOCK, {"token": body["token"], "clock": self._clock, **times})
            return []
        return self._on_message(sender, kind, body)


class _OnlyKey:
    """Lets in holders of one public key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self._key
