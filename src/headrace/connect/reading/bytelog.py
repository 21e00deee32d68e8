"""An append-only log of bytes in files, addressed by position."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from headrace.errors import CorruptionError, StateError

FILE_BYTES = 64 * 2**20
_LOCK_WAIT_S = 2.0


class ByteLog:
    """Bytes in files named by the position of their first byte.

    Opening it removes the files that end at or before ``keep_from``. Raises CorruptionError when
    bytes from ``keep_from`` on are missing.
    """

    def __init__(self, directory: Path, *, keep_from: int, file_bytes: int = FILE_BYTES) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._file_bytes = file_bytes
        self._files: dict[int, int] = {}
        self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.end = keep_from
        try:
            self._take_lock()
            self._open_files(keep_from)
        except BaseException:
            self.close()
            raise

    def _take_lock(self) -> None:
        # A reader of an attempt that was given up may need a moment to notice; two would mix their bytes.
        deadline_s = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                return fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise StateError(f"socket log {self._directory} is in use by another reader") from None
                time.sleep(0.02)

    def _open_files(self, keep_from: int) -> None:
        found = sorted((int(path.stem), path) for path in self._directory.glob("*.log") if path.stem.isdigit())
        sizes = {start: path.stat().st_size for start, path in found}
        kept = [(start, path) for start, path in found if start + sizes[start] > keep_from or start == found[-1][0]]
        for _, path in found[: len(found) - len(kept)]:
            path.unlink()
        at = kept[0][0] if kept else keep_from
        for start, path in kept:
            if start != at:
                raise CorruptionError(f"socket log {self._directory}: bytes {at} to {start} are missing")
            self._open(path, start)
            at += sizes[start]
        if at < keep_from or (kept and kept[0][0] > keep_from):
            raise CorruptionError(
                f"socket log {self._directory} holds bytes {kept[0][0] if kept else at} to {at}, "
                f"but the checkpoint continues at {keep_from}"
            )
        self.end = at

    def _open(self, path: Path, start: int) -> None:
        self._files[start] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def append(self, data: bytes) -> None:
        """Write bytes at the end; they survive the process when this returns."""
        last = next(reversed(self._files), None)
        if last is None or self.end - last >= self._file_bytes:
            last = self.end
            self._open(self._directory / f"{last:020d}.log", last)
        view = memoryview(data)
        try:
            while view:
                written = os.write(self._files[last], view)
                self.end += written
                view = view[written:]
        except OSError as error:
            raise StateError(f"socket log {self._directory} cannot be written: {error}") from error

    def read(self, pos: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``pos``, fewer only at the end."""
        pieces = []
        starts = list(self._files)
        for start, stop in zip(starts, [*starts[1:], self.end]):
            if start <= pos < stop and size > 0:
                piece = os.pread(self._files[start], min(size, stop - pos), pos - start)
                pieces.append(piece)
                pos += len(piece)
                size -= len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
