"""A lock on a checkpoint, as a courtesy: whoever starts the same job twice is told so at once.

It is no fence. It does not reach hosts that see the directory over a file system without locks, and it says nothing
about a driver that stalls and comes back: what may be written, and by whom, is decided by the version log alone.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from headrace.errors import FencedError

_HOLDER_BYTES = 320


class CheckpointLock:
    """Held from ``take`` until ``close``, or until the process is gone."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @staticmethod
    def take(checkpoint: Path) -> CheckpointLock:
        """Lock the checkpoint; FencedError, naming the process, if another driver holds it."""
        root = checkpoint / "headrace"
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, _HOLDER_BYTES, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise FencedError(
                f"checkpoint {checkpoint} is in use by another driver (process {holder}); "
                f"stop that one first, start this one as its standby, or choose another checkpoint"
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}".encode(), 0)
        return CheckpointLock(descriptor)

    def beat(self) -> None:
        """A sign of life, for a standby that cannot see the process."""
        if self._descriptor is not None:
            os.utime(self._descriptor)

    def close(self) -> None:
        """Let the next one in; closing twice is no error."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> CheckpointLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def wait_for_turn(checkpoint: Path, lease_s: float, poll: Callable[[], bool]) -> CheckpointLock | None:
    """As a standby: take the lock as soon as nobody has it, or go on without it once its holder's beats have stopped.

    ``poll`` is called after each try in vain; it passes the time until the next one, and says whether there is to be
    one. None if not. Who is overtaken finds out from the version log.
    """
    beat_ns, beaten_s = None, time.monotonic()
    while True:
        try:
            return CheckpointLock.take(checkpoint)
        except FencedError:
            path, now_s = checkpoint / "headrace" / "lock", time.monotonic()
            seen_ns = path.stat().st_mtime_ns
            if seen_ns != beat_ns:
                beat_ns, beaten_s = seen_ns, now_s
            elif now_s - beaten_s > lease_s:
                return CheckpointLock(os.open(path, os.O_RDWR | os.O_CLOEXEC))
            if not poll():
                return None
