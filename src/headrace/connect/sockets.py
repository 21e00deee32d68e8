"""Lines from a TCP server, logged before they are handed over because nobody sends them twice."""

from __future__ import annotations

import errno
import socket as tcp
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.connect.reading.bytelog import ByteLog
from headrace.connect.reading.cursors import TextCursor, parser_of
from headrace.connect.reading.formats import Format
from headrace.connect.reading.inference import as_schema
from headrace.connect.reading.parse import LINES_SCHEMA
from headrace.connect.source import Offset, Poll
from headrace.errors import ConfigError, SchemaError
from headrace.schemas import SchemaLike, empty_batch

_RECEIVE_BYTES = 256 * 2**10
# One poll takes at most this much from the network, so that a flood cannot keep it from returning.
_POLL_BYTES = 2**20
# What the kernel can have taken from the network; closing the connection would throw it away.
_CLOSE_BYTES = 8 * 2**20
_FIRST_BACKOFF_US = 100_000
_LAST_BACKOFF_US = 5_000_000
_UNDER_WAY = (0, errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK, errno.EISCONN)


def socket(host: str, port: int, *, format: str = "lines", schema: SchemaLike | None = None) -> Socket:
    """A source of newline-delimited text from a TCP server: ``"lines"`` (a column ``line``) or ``"jsonl"``.

    What was received is kept in a log beside the checkpoint, so a restart repeats or loses none of
    it; what the server sends while nobody is connected is the server's to keep. A dropped connection
    is tried again, 0.1 s later at first and every 5 s at last; a line it cut in two ends there.

    >>> socket("localhost", 9999).schema().names
    ['line']
    """
    if format not in ("lines", "jsonl"):
        raise ConfigError(f"socket: format {format!r} is not one of lines, jsonl")
    if not isinstance(port, int) or not 0 < port < 65_536:
        raise ConfigError(f"socket: port must be a number from 1 to 65535, not {port!r}")
    return Socket(host, port, "lines" if format == "lines" else "jsonl", as_schema(schema))


@dataclass(frozen=True, slots=True)
class Socket:
    """Description of a TCP source; made by `socket`."""

    host: str
    port: int
    format: Format = "lines"
    declared: pa.Schema | None = None

    @property
    def bounded(self) -> bool:
        return False

    @property
    def live(self) -> bool:
        return True

    def partitions(self, parallelism: int) -> int:
        return 1

    def schema(self) -> pa.Schema:
        if self.declared is not None:
            return self.declared
        if self.format == "lines":
            return LINES_SCHEMA
        raise SchemaError(f"socket {self.host}:{self.port}: declare the columns: schema={{'ts': 'int64', …}}")

    def sample(self, rows: int) -> pa.RecordBatch:
        return empty_batch(self.schema())

    def open(self, partition: int, of: int, offset: Offset | None, schema: pa.Schema, log_dir: Path) -> SocketReader:
        return SocketReader(self, offset or {"pos": 0, "rows": 0}, schema, log_dir)

    def describe(self) -> str:
        return f"{self.format} from tcp://{self.host}:{self.port}"


class SocketReader:
    """The connection, and a log of all that came through it. The offset is a position in the log."""

    def __init__(self, source: Socket, offset: Offset, schema: pa.Schema, log_dir: Path) -> None:
        self._connection = Connection(source.host, source.port)
        parse = parser_of(source.format, schema)
        self._log = ByteLog(log_dir, keep_from=offset["pos"])
        self._end_line()
        self._cursor = TextCursor(self._log.read, parse, schema, offset, complete=False)
        self._searched = -1

    def poll(self, max_rows: int, now_us: int) -> Poll | None:
        self._connection.connect(now_us)
        batch = self._cursor.pending() if self._searched != self._log.end else None
        if batch is None:
            # Older lines first: the network is read only when the log has no whole line left.
            self._receive(now_us, _POLL_BYTES)
            batch = self._cursor.pending() if self._searched != self._log.end else None
        if batch is None:
            self._searched = self._log.end
            return None
        piece = self._cursor.take(min(max_rows, batch.num_rows))
        return Poll(piece.rows, bad=piece.bad)

    def _receive(self, now_us: int, limit: int) -> None:
        received = 0
        while received < limit:
            data = self._connection.receive(now_us)
            if data is None:
                return
            if data == b"":
                self._end_line()
                return
            self._log.append(data)
            received += len(data)

    def _end_line(self) -> None:
        """The rest of a line never comes through another connection: end it where it was cut."""
        if self._log.end and self._log.read(self._log.end - 1, 1) not in (b"\n", b""):
            self._log.append(b"\n")

    def offset(self) -> Offset:
        return self._cursor.position()

    @property
    def exhausted(self) -> bool:
        return False

    def next_due_us(self) -> int | None:
        return None

    def close(self) -> None:
        """Log what has already arrived, and disconnect."""
        if self._connection.connected:
            self._receive(0, _CLOSE_BYTES)
        self._connection.close()
        self._log.close()


class Lookup:
    """A server's addresses, found by another thread: a name may take seconds to be resolved."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._asked: Future[list[Any]] | None = None

    def answer(self) -> list[Any] | None:
        """The addresses, or ``None`` while they are looked for; OSError if there are none. The next call asks anew."""
        if self._asked is None:
            try:
                return self._resolve(tcp.AI_NUMERICHOST)  # nobody needs to be asked
            except OSError:
                self._asked = Future()
            threading.Thread(target=self._ask, args=(self._asked,), name="headrace-lookup", daemon=True).start()
        if not self._asked.done():
            return None
        asked, self._asked = self._asked, None
        return asked.result()

    def _ask(self, asked: Future[list[Any]]) -> None:
        try:
            asked.set_result(self._resolve())
        except Exception as error:
            asked.set_exception(error)

    def _resolve(self, flags: int = 0) -> list[Any]:
        return tcp.getaddrinfo(self._host, self._port, type=tcp.SOCK_STREAM, flags=flags)


class Connection:
    """A TCP connection that never blocks and is made again when it drops."""

    def __init__(self, host: str, port: int) -> None:
        self._lookup = Lookup(host, port)
        self._socket: tcp.socket | None = None
        self._address: Any = None
        self._attempts = 0
        self.connected = False
        self._retry_us = 0
        self._backoff_us = _FIRST_BACKOFF_US

    def receive(self, now_us: int) -> bytes | None:
        """Bytes that arrived, ``None`` if there are none now, empty when the connection just ended."""
        if not self.connect(now_us):
            return None
        assert self._socket is not None
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            data = b""
        if data:
            self._backoff_us = _FIRST_BACKOFF_US
        else:
            self._back_off(now_us)
        return data

    def connect(self, now_us: int) -> bool:
        """Whether there is a connection; if not, and it is time to, one is tried for."""
        if self.connected or (self._socket is None and now_us < self._retry_us):
            return self.connected
        try:
            if self._socket is None and not self._start():
                return False
            assert self._socket is not None
            state = self._socket.connect_ex(self._address)
            self.connected = state in (0, errno.EISCONN)
            # With no server there, a local port can happen to be connected to itself.
            if self.connected and self._socket.getsockname() == self._socket.getpeername():
                state = errno.ECONNREFUSED
        except OSError:
            state = errno.ECONNREFUSED
        if state not in _UNDER_WAY:
            self._back_off(now_us)
        return self.connected

    def _start(self) -> bool:
        """Make a socket, once an address is known."""
        addresses = self._lookup.answer()
        if addresses is None:
            return False
        family, kind, protocol, _, self._address = addresses[self._attempts % len(addresses)]
        self._attempts += 1
        self._socket = tcp.socket(family, kind, protocol)
        self._socket.setblocking(False)
        return True

    def _back_off(self, now_us: int) -> None:
        self.close()
        self._retry_us = now_us + self._backoff_us
        self._backoff_us = min(2 * self._backoff_us, _LAST_BACKOFF_US)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self.connected = None, False
