"""The TCP source against a real server: crashes, torn lines, reconnects, its log."""

from __future__ import annotations

import socket as tcp
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connect.reading.bytelog import ByteLog
from headrace.connect.sockets import SocketReader, socket
from headrace.errors import ConfigError, CorruptionError, SchemaError, StateError


class Server:
    """Accepts connections on a loopback port and sends what it is told."""

    def __init__(self, port: int = 0) -> None:
        self._listener = tcp.create_server(("127.0.0.1", port))
        self._listener.settimeout(5)
        self.port: int = self._listener.getsockname()[1]
        self._client: tcp.socket | None = None

    def accept(self) -> None:
        self.hang_up()
        self._client, _ = self._listener.accept()

    def send(self, data: bytes) -> None:
        assert self._client is not None
        self._client.sendall(data)

    def hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None

    def close(self) -> None:
        self.hang_up()
        self._listener.close()


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.close()


def now_us() -> int:
    return time.time_ns() // 1000


def open_one(port: int, log_dir: Path, offset: Any = None, **options: Any) -> SocketReader:
    source = socket("127.0.0.1", port, **options)
    return source.open(0, 1, offset, source.schema(), log_dir)


def poll_until(reader: SocketReader, enough: Callable[[list[Any]], bool], max_rows: int = 100) -> list[Any]:
    seen: list[Any] = []
    deadline_s = time.monotonic() + 5
    while not enough(seen) and time.monotonic() < deadline_s:
        poll = reader.poll(max_rows, now_us())
        if poll is None:
            time.sleep(0.002)
        else:
            seen += [
                tuple(row.values()) if len(row) > 1 else next(iter(row.values())) for row in poll.records.to_pylist()
            ]
            seen += [one.reason for one in poll.bad]
    return seen


def lines(count: int) -> Callable[[list[Any]], bool]:
    return lambda seen: len(seen) >= count


def connect(server: Server, reader: SocketReader) -> None:
    reader.poll(1, now_us())
    server.accept()


def test_lines_are_logged_and_survive_a_crash(server: Server, tmp_path: Path) -> None:
    reader = open_one(server.port, tmp_path)
    connect(server, reader)
    server.send("eins\nzwei\ndrei\ngrüß".encode())
    assert poll_until(reader, lines(2), max_rows=2) == ["eins", "zwei"]
    offset = reader.offset()
    assert poll_until(reader, lines(1)) == ["drei"]
    reader._connection.close()
    reader._log.close()  # as if the process had died: nothing is drained or ended

    again = open_one(server.port, tmp_path, offset)
    assert poll_until(again, lines(2)) == ["drei", "grüß"], "a torn line ends where it was cut"
    server.accept()
    server.send(b"vier\n")
    assert poll_until(again, lines(1)) == ["vier"]
    again.close()


def test_a_dropped_connection_is_made_again(server: Server, tmp_path: Path) -> None:
    reader = open_one(server.port, tmp_path, format="jsonl", schema={"n": "int64", "s": "string"})
    connect(server, reader)
    server.send(b'{"n": 1, "s": "a"}\n{"n": 2')
    assert poll_until(reader, lines(1)) == [(1, "a")]
    server.hang_up()
    seen = poll_until(reader, lines(1))
    assert len(seen) == 1 and "not JSON" in seen[0], "the torn record is bad, not glued to the next"
    reader.poll(1, now_us() + 200_000)
    server.accept()
    server.send(b'{"n": 3, "s": null}\n')
    assert poll_until(reader, lines(1)) == [(3, None)]
    reader.close()


def test_closing_keeps_what_has_arrived(server: Server, tmp_path: Path) -> None:
    reader = open_one(server.port, tmp_path)
    connect(server, reader)
    server.send(b"a\n")
    assert poll_until(reader, lines(1)) == ["a"]
    server.send(b"b\nc\n")
    time.sleep(0.05)
    offset = reader.offset()
    reader.close()
    again = open_one(server.port, tmp_path, offset)
    assert poll_until(again, lines(2)) == ["b", "c"]
    again.close()


def test_no_server_is_waited_for_without_blocking(tmp_path: Path) -> None:
    server = Server()
    server.close()
    reader = open_one(server.port, tmp_path)
    began_s = time.monotonic()
    for _ in range(50):
        assert reader.poll(10, now_us()) is None
    assert time.monotonic() - began_s < 25, "half a second each is more than any machine needs to say no"
    server = Server(server.port)
    for _ in range(100):
        reader.poll(10, now_us() + 10_000_000)
        time.sleep(0.001)
    server.accept()
    server.send(b"late\n")
    assert poll_until(reader, lines(1)) == ["late"]
    reader.close()
    server.close()


def test_a_name_that_takes_long_to_resolve_blocks_no_poll(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, known = tcp.getaddrinfo, threading.Event()
    asked: list[str] = []

    def slow(host: str, port: int, *, type: int, flags: int) -> Any:
        if flags:
            raise tcp.gaierror("not a number")
        asked.append(host)
        if len(asked) == 1:
            raise tcp.gaierror("no such name, for now")
        assert known.wait(20)
        return resolve("127.0.0.1", port, type=type)

    monkeypatch.setattr("headrace.connect.sockets.tcp.getaddrinfo", slow)
    source = socket("some.where", server.port)
    reader = source.open(0, 1, None, source.schema(), tmp_path)
    while len(asked) < 2:  # what failed is tried again after a while
        assert reader.poll(10, now_us()) is None
    for _ in range(100):
        assert reader.poll(10, now_us()) is None
    assert len(asked) == 2, "one question at a time"
    known.set()
    while not reader._connection.connected:
        reader.poll(10, now_us())
    reader.close()


def test_descriptions_are_checked() -> None:
    for options in ({"port": 0}, {"port": "9999"}, {"port": 1, "format": "csv"}):
        with pytest.raises(ConfigError):
            socket("localhost", **options)
    with pytest.raises(SchemaError, match="declare"):
        socket("localhost", 9999, format="jsonl").schema()
    source = socket("localhost", 9999)
    assert source.live and not source.bounded and source.partitions(4) == 1 and source.sample(5).num_rows == 0


@settings(max_examples=50, deadline=None)
@given(
    pieces=st.lists(st.binary(max_size=40), max_size=20),
    file_bytes=st.integers(1, 50),
    reads=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 100)), max_size=10),
    keep_from=st.integers(0, 500),
)
def test_the_log_is_a_string_of_bytes(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], file_bytes: int, reads: Any, keep_from: int
) -> None:
    directory = tmp_path_factory.mktemp("log")
    whole = b"".join(pieces)
    log = ByteLog(directory, keep_from=0, file_bytes=file_bytes)
    for piece in pieces:
        log.append(piece)
    keep_from = min(keep_from, len(whole))
    for reopened in (False, True):
        minimum = keep_from if reopened else 0
        assert log.end == len(whole)
        for pos, size in reads:
            pos = max(pos, minimum)
            assert log.read(pos, size) == whole[pos : pos + size]
        log.close()
        log = ByteLog(directory, keep_from=keep_from, file_bytes=file_bytes)
    log.close()


def test_the_log_drops_old_segments_and_notices_missing_ones(tmp_path: Path) -> None:
    log = ByteLog(tmp_path, keep_from=0, file_bytes=10)
    for _ in range(5):
        log.append(b"0123456789")
    log.close()
    ByteLog(tmp_path, keep_from=25).close()
    assert sorted(int(path.stem) for path in tmp_path.glob("*.log")) == [20, 30, 40]
    with pytest.raises(CorruptionError, match="continues at 5"):
        ByteLog(tmp_path, keep_from=5)
    with pytest.raises(CorruptionError, match="continues at 70"):
        ByteLog(tmp_path, keep_from=70)


def test_two_readers_cannot_share_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.connect.reading.bytelog._LOCK_WAIT_S", 0.05)
    log = ByteLog(tmp_path, keep_from=0)
    with pytest.raises(StateError, match="another reader"):
        ByteLog(tmp_path, keep_from=0)
    log.close()
    ByteLog(tmp_path, keep_from=0).close()
