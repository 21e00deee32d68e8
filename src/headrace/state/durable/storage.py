"""Where a checkpoint is kept: whole objects by name, and one operation that only one of many can win.

All that is durable goes through ``Storage``: segments, the version log, the job's identity. What it promises is what the
version log needs of it (``docs/how-it-works.md``): an object appears whole or not at all, is there for good when the call
returns, and ``put_if_absent`` lets exactly one writer in.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Protocol
from urllib.parse import unquote, urlsplit

import psutil
import pyarrow as pa

from headrace.errors import ConfigError, StateError

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/")
_UNFINISHED = re.compile(r"\.(?P<host>[^.]+)\.(?P<pid>\d+)\.[0-9a-f]{16}\.tmp")
Data = bytes | Iterator[bytes | pa.Buffer]
"""The bytes of an object, or its parts in order: what is large need not be in memory at once."""
_BUFFER_BYTES = 1_000_000
_PIECE_BYTES = 8_000_000
"""What is written gently before it is synced: a disk that gets hundreds of megabytes at once keeps cores busy that others
want."""
_STRANGERS_LINGER_S = 86_400
"""Whether another host's writer still lives cannot be seen from here; none takes a day for a file."""


class Storage(Protocol):
    """Named objects. Names are relative paths with ``/``; an ``OSError`` may leave an operation done or not done."""

    def put(self, name: str, data: Data) -> None:
        """Create or replace an object: whole or not at all, and durable."""
        ...

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Like ``put``, but False, and no change, if the object exists: the first writer wins."""
        ...

    def get(self, name: str) -> bytes:
        """An object's bytes; FileNotFoundError if there is none."""
        ...

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        """Some of an object's bytes, fewer where it ends; FileNotFoundError if there is none."""
        ...

    def names(self, prefix: str) -> list[str]:
        """The objects right below a folder, sorted; none if there is no such folder."""
        ...

    def delete(self, name: str) -> None:
        """Remove an object; one that is not there is no error."""
        ...


class LocalStorage:
    """A directory on a local or shared file system, closed to other users. Nothing is made before the first ``put``.

    With ``gently`` a writer of much rests as long as it works.
    """

    def __init__(self, root: Path, *, gently: bool = False) -> None:
        self.root, self._gently = root, gently
        self._synced: set[Path] = set()

    def put(self, name: str, data: Data) -> None:
        path = self._path(name)
        temporary = self._written(path, data)
        try:
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        _sync(path.parent)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        path = self._path(name)
        temporary = self._written(path, data)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        _sync(path.parent)
        return True

    def get(self, name: str) -> bytes:
        return self._path(name).read_bytes()

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        with self._path(name).open("rb") as file:
            file.seek(offset)
            return file.read(length)

    def names(self, prefix: str) -> list[str]:
        try:
            with os.scandir(self._path(prefix)) as entries:
                found = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_file()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(f"{prefix}/{name}" for name in found)

    def delete(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def clear_unfinished(self) -> list[Path]:
        """Remove what writers that have died never gave a name, and say what it was."""
        cleared = []
        for path in self.root.rglob(".*.tmp"):
            if _abandoned(path):
                path.unlink(missing_ok=True)
                cleared.append(path)
        return cleared

    def _path(self, name: str) -> Path:
        """Names come out of files too: they must not lead out of the root, nor to what is not finished."""
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or any(part.startswith(".") for part in parts):
            raise StateError(f"{name!r} names nothing in {self.root}")
        return self.root.joinpath(*parts)

    def _written(self, path: Path, data: Data) -> Path:
        """The bytes, durable, under a name that no reader looks at."""
        self._make(path.parent)
        temporary = path.with_name(f".{_host()}.{os.getpid()}.{os.urandom(8).hex()}.tmp")
        try:
            with temporary.open("xb", buffering=_BUFFER_BYTES) as file:
                parts = [data] if isinstance(data, bytes) else data
                for piece in _pieces(parts) if self._gently else (parts,):
                    began_s = time.monotonic()
                    file.writelines(piece)
                    file.flush()
                    os.fsync(file.fileno())
                    if self._gently:
                        time.sleep(time.monotonic() - began_s)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return temporary

    def _make(self, folder: Path) -> None:
        """A folder whose own name is durable: else what is in it could be lost together with it."""
        for needed in (self.root, folder):  # parents of a folder do not get its mode
            needed.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder in self._synced:
            return
        within = folder.relative_to(self.root).parts
        for depth in range(len(within) + 1):
            _sync(self.root.joinpath(*within[:depth]).parent)
        self._synced.add(folder)


def check_checkpoint(location: str | Path) -> Path:
    """The directory that a checkpoint's location means; ConfigError for storage that is not supported, and for files.

    >>> check_checkpoint("file:///data/job")
    PosixPath('/data/job')
    """
    text = str(location)
    found = _SCHEME.match(text)
    parts = urlsplit(text)
    if found is None:
        directory = Path(text)
    elif parts.scheme == "file" and parts.netloc in ("", "localhost"):
        directory = Path(unquote(parts.path))
    else:
        raise ConfigError(
            f"checkpoint {text!r}: {found['scheme']} is not supported; give a directory, without a scheme or with file://, "
            f"that the driver and all executors see, such as one on NFS"
        )
    if directory.expanduser().is_file():
        raise ConfigError(f"checkpoint {text!r} is a file; give a directory, which need not be there yet")
    return directory


def _pieces(parts: Iterable[bytes | pa.Buffer]) -> Iterator[Iterator[bytes | pa.Buffer]]:
    """Parts, some at a time; at least one piece."""
    left = iter(parts)

    def piece(first: bytes | pa.Buffer | None) -> Iterator[bytes | pa.Buffer]:
        size, part = 0, first
        while part is not None:
            yield part
            size += len(part)
            part = next(left, None) if size < _PIECE_BYTES else None

    first = next(left, None)
    yield piece(first)
    while (first := next(left, None)) is not None:
        yield piece(first)


def _abandoned(path: Path) -> bool:
    found = _UNFINISHED.fullmatch(path.name)
    if found is None:
        return False
    if found["host"] == _host():
        return not psutil.pid_exists(int(found["pid"]))
    try:
        return time.time() - path.stat().st_mtime > _STRANGERS_LINGER_S
    except FileNotFoundError:
        return False


def _host() -> str:
    return socket.gethostname().replace(".", "_").replace("/", "_")


def _sync(folder: Path) -> None:
    """Make names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
