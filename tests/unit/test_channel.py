"""The control channel: who may speak, and what happens when nobody listens."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import zmq

from headrace.channel.client import ChannelClient
from headrace.channel.keys import RunKeys
from headrace.channel.server import ChannelServer
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
        began = time.monotonic()
        for i in range(5000):
            client.tell("report", {"i": i})
        assert time.monotonic() - began < 2
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
