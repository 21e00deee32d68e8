"""What a file sink durably knows about itself: whose it is, and what it has published.

Notes lie in ``_published`` beside the results. They are written after the results they speak of, and read
before anything is published, which is how a publication that was cut short by a crash is completed.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from headrace.connect.writing.staging import KEPT, sync_directory
from headrace.errors import ConfigError, CorruptionError, StateError

_OWNER = "owner"
# A publication takes milliseconds; who holds a file for longer hangs, and waiting in place would hang us too.
_LOCK_WAIT_S = 1.0

Note = TypeVar("Note")


def claim_directory(directory: Path, owner: str) -> None:
    """Make a directory of results ``owner``'s; ConfigError if it has results of another."""
    if not check_directory(directory, owner):
        _put(directory / KEPT / _OWNER, owner.encode())


def check_directory(directory: Path, owner: str | None) -> bool:
    """Whether a directory of results is ``owner``'s already; ConfigError if it has results of another, or is a file."""
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{directory} is a file; a sink needs a directory for its results: name another")
    path = directory / KEPT / _OWNER
    found = path.read_text() if path.exists() else None
    if found is not None and found == owner:
        return True
    if found is not None or any(directory.glob("part-*")) or any(directory.glob("live-*")):
        raise ConfigError(
            f"{directory} has results of another checkpoint or another sink; go on with that checkpoint, remove the "
            "results, or give each sink and each new checkpoint a directory of its own"
        )
    return False


@contextmanager
def publishing(directory: Path) -> Iterator[None]:
    """Publish alone: a driver that was thought dead may wake up in the middle of its last publication.

    StateError if it holds the sink for longer than a second; the caller tries again.
    """
    (directory / KEPT).mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory / KEPT / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        lock(descriptor, f"{directory} is being published by another driver")
        yield
    finally:
        os.close(descriptor)


def lock(descriptor: int, otherwise: str) -> None:
    """Lock an open file until it is closed or unlocked; StateError with ``otherwise`` after a second."""
    last_s = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= last_s:
                raise StateError(otherwise) from None
            time.sleep(0.01)


def read_note(directory: Path, kind: type[Note]) -> Note:
    """The last note of a kind; an empty one if there is none."""
    path = _path(directory, kind)
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return kind()
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"{path} cannot be read: {error}; without it nothing can be published there") from error


def put_note(directory: Path, note: object) -> None:
    """Replace the note of a kind, durably."""
    _put(_path(directory, type(note)), msgspec.json.encode(note))


def _path(directory: Path, kind: type[object]) -> Path:
    return directory / KEPT / f"{kind.__name__.lower()}.json"


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".tmp")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, data, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    new.replace(path)
    sync_directory(path.parent)


def write_all(descriptor: int, data: bytes, offset: int) -> None:
    """Write all of ``data`` at an offset: the system may take it in parts."""
    left = memoryview(data)
    while left:
        done = os.pwrite(descriptor, left, offset)
        left, offset = left[done:], offset + done
