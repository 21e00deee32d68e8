"""The control channel: who may speak, and what happens when nobody listens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from typing import Any

import pytest
import zmq

from headrace.channel.client import ChannelClient
from headrace.channel.keys import RunKeys
from headrace.channel.server import ChannelServer, Reply
from headrace.errors import ChannelError, FencedError


def _server(received: list[Any]) -> ChannelServer:
    def on_message(sender: bytes, kind: str, body: dict[str, Any]) -> list[Any]:
        received.append((kind, body))
        return (
            [(sender, "plan", {"token": "t", "echo": body})]
            if kind == "hello"
            else [(sender, "fenced", {"why": "old"})]
        )

    return ChannelServer("127.0.0.1", on_message)


def test_a_worker_with_the_runs_key_is_answered() -> None:
    received: list[Any] = []
    server = _server(received)
    client = ChannelClient(server.address)
    try:
        client.tell("hello", {"stage": 1, "counts": {0: [1, 2]}})
        assert client.wait("plan", "t", 5)["echo"] == {"stage": 1, "counts": {0: [1, 2]}}
        client.tell("desc", {})
        with pytest.raises(FencedError, match="old"):
            client.wait("sealed", "t", 5)
    finally:
        client.close()
        server.close()


def test_a_stranger_is_not_heard() -> None:
    received: list[Any] = []
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
        stranger.tell("hello", {})
        socket.send(b"\x92\xa5hello\x80")
        with pytest.raises(ChannelError):
            stranger.wait("plan", None, 0.5)
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
            client.tell("report", {"i": i})
        assert client.poll() == []
    finally:
        client.close()


def test_the_server_listens_on_loopback_only_and_hides_its_secrets() -> None:
    server = _server([])
    try:
        assert server.address.endpoint.startswith("tcp://127.0.0.1:")
        assert server.address.client_secret.decode() not in repr(server.address)
    finally:
        server.close()


_BUSY_WORKER = """
import sys, time
from headrace.channel.client import ChannelClient
from headrace.channel.keys import Address
client = ChannelClient(Address(sys.argv[1], *(key.encode() for key in sys.argv[2:])))
client.tell("hello", {})
client.wait("plan", "t", 10)
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

    def on_hello(sender: bytes, kind: str, body: dict[str, Any]) -> list[Reply]:
        came.set()
        return [(sender, "plan", {"token": "t"})]

    came = threading.Event()
    server = ChannelServer("127.0.0.1", on_hello, on_lost=on_lost, lease_s=1.5)
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
