"""The control channel: who may speak, and what happens when nobody listens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
import zmq

from headrace.channel.client import ChannelClient
from headrace.channel.keys import RunKeys
from headrace.channel.server import ChannelServer
from headrace.errors import ChannelError, FencedError, MessageError
from headrace.runtime.messages import (
    Described,
    Fenced,
    Go,
    Hello,
    Inventory,
    Loaded,
    Logged,
    Ordered,
    Planned,
    Reply,
    ToDriver,
    ToWorker,
    encode,
)
from headrace.runtime.orders import NO_ORDERS, Orders
from headrace.runtime.plan import Description, Ticket
from headrace.state.copies.nearest import NOTHING_LOADED
from headrace.tokens import Attempt

ATTEMPT = Attempt(1, 2)
TICKET = Ticket(ATTEMPT, None, 0, (0,), (0, 1), Orders(3, {(0, 1): 5}, {}, {}, None, None), (), {}, {}, {})
HELLO = Hello(
    1, 0, query=1, batch=2, inventory=Inventory(None, (0,)), host="here", daemon=1, pid=2, node=None, executor=None
)


def _server(received: list[ToDriver]) -> ChannelServer:
    def on_message(sender: bytes, message: ToDriver) -> list[Reply]:
        received.append(message)
        return [(sender, Planned(0, TICKET) if isinstance(message, Hello) else Fenced(0, "old"))]

    return ChannelServer("127.0.0.1", on_message)


def test_a_worker_with_the_runs_key_is_answered() -> None:
    received: list[ToDriver] = []
    server = _server(received)
    client = ChannelClient(server.address)
    try:
        client.tell(HELLO)
        assert client.wait(Planned, 5, attempt=ATTEMPT) == Planned(0, TICKET)
        described = Described(
            Description(
                1, 0, ATTEMPT.cut(3), (), {}, {0: {0: [1, 2]}}, {}, {0: {0: 3}}, {0: 9}, (), {}, False, 1.0, 2.0, 3, {}
            )
        )
        client.tell(described)
        with pytest.raises(FencedError, match="old"):
            client.wait(Logged, 5, attempt=ATTEMPT)
        assert received == [HELLO, described]
    finally:
        client.close()
        server.close()


def test_a_stranger_is_not_heard() -> None:
    received: list[ToDriver] = []
    server = _server(received)
    other = RunKeys.make()
    stranger = ChannelClient(
        replace(server.address, client_public=other.client_public, client_secret=other.client_secret)
    )
    plain = zmq.Context()
    socket = plain.socket(zmq.DEALER)
    socket.linger = 0
    socket.connect(server.address.endpoint)
    try:
        stranger.tell(HELLO)
        socket.send(encode(HELLO))
        with pytest.raises(ChannelError, match="did not send 'plan' within 0.5 s"):
            stranger.wait(Planned, 0.5)
        assert received == []
    finally:
        stranger.close()
        socket.close()
        plain.term()
        server.close()


def test_telling_a_dead_driver_neither_blocks_nor_fails() -> None:
    server = _server([])
    address = server.address
    server.close()
    client = ChannelClient(address)
    try:
        for i in range(5000):  # to wait for a dead driver would be to wait for ever
            client.tell(Loaded(0, i, ATTEMPT, NOTHING_LOADED))
        assert client.poll() == []
    finally:
        client.close()


def test_what_is_no_message_is_refused_with_its_kind_and_the_connection_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    received: list[ToDriver] = []
    server = _server(received)
    client = ChannelClient(server.address)
    try:
        for data in (b"", b"\xc1", encode(HELLO)[:-3], encode(HELLO).replace(b"query", b"quest"), encode(Go(ATTEMPT))):
            client._socket.send(data)
        client._socket.send_multipart([b"one", b"two"])
        client.tell(HELLO)
        assert client.wait(Planned, 5) == Planned(0, TICKET)
        assert received == [HELLO], "nobody was called for the others"
    finally:
        client.close()
        server.close()
    refused = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    kinds = ["no kind", "no kind", "kind 'hello'", "kind 'hello'", "kind 'go'", "no kind"]
    assert len(refused) == len(kinds) and all(f"of {kind}" in text for kind, text in zip(kinds, refused))


def test_a_worker_names_a_message_that_it_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "headrace.channel.server.encode", lambda message: encode(message).replace(b"attempt", b"attemps")
    )
    server = ChannelServer(
        "127.0.0.1", lambda sender, message: [(sender, Go(ATTEMPT)), (sender, Ordered(ATTEMPT, NO_ORDERS))]
    )
    client = ChannelClient(server.address)
    try:
        client.tell(Loaded(0, 0, ATTEMPT, NOTHING_LOADED))
        with pytest.raises(MessageError, match="of kind 'go' was refused"):
            client.wait(Go, 5)
        with pytest.raises(MessageError, match="of kind 'orders' was refused"):
            while client.poll() == []:
                time.sleep(0.001)
    finally:
        client.close()
        server.close()


def test_a_message_that_cannot_be_handled_keeps_no_reply_from_others(caplog: pytest.LogCaptureFixture) -> None:
    def on_message(sender: bytes, message: ToDriver) -> list[Reply]:
        if isinstance(message, Hello):
            assert server._socket.poll(5000), "what has come by now is handled in the same turn"
            return [(sender, Planned(0, TICKET))]
        raise RuntimeError("a driver's fault")

    server = ChannelServer("127.0.0.1", on_message)
    client = ChannelClient(server.address)
    try:
        client.tell(HELLO)
        client.tell(Loaded(0, 0, ATTEMPT, NOTHING_LOADED))
        assert client.wait(Planned, 5) == Planned(0, TICKET)
    finally:
        client.close()
        server.close()
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.getMessage() == "a control message of kind 'loaded' could not be handled"


# a process that Spark uses again shares its channel with the tasks it had before
def test_what_was_for_a_task_of_another_query_is_dropped() -> None:
    def on_message(sender: bytes, message: ToDriver) -> list[Reply]:
        stale = [Fenced(1, "old"), Planned(1, TICKET), Fenced(3, "not yet")]
        return [(sender, reply) for reply in (*stale, Planned(2, TICKET), *stale, Go(ATTEMPT), Fenced(2, "now"))]

    server = ChannelServer("127.0.0.1", on_message)
    client = ChannelClient(server.address)
    client.begin(2)
    try:
        client.tell(HELLO)
        assert client.wait(Planned, 5) == Planned(2, TICKET)
        polled: list[ToWorker] = []
        while len(polled) < 2:
            polled += client.poll()
        assert polled == [Go(ATTEMPT), Fenced(2, "now")]
    finally:
        client.close()
        server.close()


def test_the_server_listens_on_loopback_only_and_hides_its_secrets() -> None:
    server = _server([])
    try:
        assert server.address.endpoint.startswith("tcp://127.0.0.1:")
        assert server.address.client_secret.decode() not in repr(server.address)
    finally:
        server.close()


def test_only_what_is_of_the_attempt_is_waited_for() -> None:
    others = [Go(Attempt(1, 1)), Go(Attempt(2, 2)), Logged(ATTEMPT.cut(7))]
    server = ChannelServer("127.0.0.1", lambda sender, message: [(sender, m) for m in (*others, Go(ATTEMPT))])
    client = ChannelClient(server.address)
    try:
        client.tell(Loaded(0, 0, ATTEMPT, NOTHING_LOADED))
        assert client.wait(Go, 5, attempt=ATTEMPT) == Go(ATTEMPT)
        assert client.poll() == others, "the rest is for whoever polls"
    finally:
        client.close()
        server.close()


# cuts.md rule 24: a worker without a sign of its driver for the lease stops
def test_a_worker_gives_up_when_its_driver_has_been_silent_for_the_lease() -> None:
    server = ChannelServer("127.0.0.1", lambda sender, message: [(sender, Go(ATTEMPT))])
    patient, client = ChannelClient(server.address), ChannelClient(server.address, lease_s=1.5)
    try:
        for worker in (patient, client):
            worker.tell(Loaded(0, 0, ATTEMPT, NOTHING_LOADED))
            worker.wait(Go, 5)
        time.sleep(2)  # one that does not look for longer than its lease finds the signs that came meanwhile
        began = time.monotonic()
        while time.monotonic() - began < 2:
            assert client.poll() == [], "a driver that has nothing to say still gives signs of life"
            time.sleep(0.02)
        server.close()
        with pytest.raises(ChannelError, match="no sign of life for 1.5 s"):
            while time.monotonic() - began < 30:
                assert client.poll() == []
                time.sleep(0.02)
        assert patient.poll() == []
    finally:
        patient.close()
        client.close()
        server.close()


_BUSY_WORKER = """
import sys, time
from headrace.channel.client import ChannelClient
from headrace.channel.keys import Address
from headrace.runtime.messages import Go, Loaded
from headrace.state.copies.nearest import NOTHING_LOADED
from headrace.tokens import Attempt
client = ChannelClient(Address(sys.argv[1], *(key.encode() for key in sys.argv[2:])))
client.tell(Loaded(0, 0, Attempt(1, 2), NOTHING_LOADED))
client.wait(Go, 10)
while True:  # a long user function: no report, no poll
    sum(range(1_000_000))
"""


# fault plan 3: a hang is told from work
def test_a_stopped_worker_is_lost_after_its_lease_but_a_busy_one_is_not() -> None:
    lost: list[bytes] = []
    gone = threading.Event()

    def on_lost(sender: bytes) -> None:
        lost.append(sender)
        gone.set()

    def on_loaded(sender: bytes, message: ToDriver) -> list[Reply]:
        came.set()
        return [(sender, Go(ATTEMPT))]

    came = threading.Event()
    server = ChannelServer("127.0.0.1", on_loaded, on_lost=on_lost, lease_s=1.5)
    address = server.address
    keys = [key.decode() for key in (address.server_public, address.client_public, address.client_secret)]
    worker = subprocess.Popen([sys.executable, "-c", _BUSY_WORKER, address.endpoint, *keys])
    try:
        assert came.wait(60)
        assert not gone.wait(3), "busy for two leases is not lost"
        os.kill(worker.pid, signal.SIGSTOP)
        assert gone.wait(60)
        assert len(lost) == 1
    finally:
        worker.kill()
        worker.wait()
        server.close()
