"""Rows that wait for a cut and are too many for memory: in a file of this node, until they are taken again."""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

from headrace.errors import StateError
from headrace.runtime.wire.inbox import Row

_HEAD = struct.Struct("<qQ")
"""When the row reached this worker, and how long it is."""


class RowShelf:
    """A file without a name, made with the first row; empty again when all that was put has been taken.

    ``home`` says where. Nothing is checked on the way back: frames have checksums of their own.
    """

    def __init__(self, home: Callable[[], Path]) -> None:
        self._home = home
        self._file: int | None = None
        self._end = self._rows = 0

    def put(self, row: Row) -> int:
        if self._file is None:
            home = self._home()
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file, path = tempfile.mkstemp(dir=home)
            Path(path).unlink()
        place, data = self._end, b"".join([_HEAD.pack(row.queued_us, len(row.payload)), row.payload])
        view = memoryview(data)
        while view:
            view = view[os.pwrite(self._file, view, place + len(data) - len(view)) :]
        self._end += len(data)
        self._rows += 1
        return place

    def take(self, place: int) -> Row:
        queued_us, size = _HEAD.unpack(self._read(place, _HEAD.size))
        row = Row(memoryview(self._read(place + _HEAD.size, size)), queued_us)
        self._rows -= 1
        if not self._rows:
            self._empty()
        return row

    def clear(self) -> None:
        if self._rows:
            self._empty()

    def close(self) -> None:
        """Leave nothing on disk."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._end, self._rows = None, 0, 0

    def _empty(self) -> None:
        assert self._file is not None
        os.ftruncate(self._file, 0)
        self._end = self._rows = 0

    def _read(self, place: int, size: int) -> bytes:
        assert self._file is not None
        parts, at = [], place
        while at < place + size:
            part = os.pread(self._file, place + size - at, at)
            if not part:
                raise StateError(f"a row that waits for a cut is gone from disk: {size} bytes at {place}")
            parts.append(part)
            at += len(part)
        return b"".join(parts)
