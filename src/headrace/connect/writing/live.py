"""Rows that are visible as they are produced: files that grow with each row, and a note of how much of them is logged.

An attempt's subtask appends the rows of all its cuts to ``live-<first cut>-<subtask>.jsonl``. Each cut stages a mark
that says how far the file went; publishing the cut notes that length. A file that is full, or whose attempt is over,
loses what is not logged and takes the name ``part-…``: it stays the same file, and a reader that follows it keeps its
place.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa

from headrace.connect.sink import Keep, SinkContext, Staged
from headrace.connect.writing.jsonrows import json_lines
from headrace.connect.writing.notes import lock, publishing, put_note, read_note, write_all
from headrace.connect.writing.rolling import ROLL_BYTES
from headrace.connect.writing.staging import (
    STAGING,
    is_newer,
    origin_of,
    pieces_of,
    remove_pieces,
    staged_path,
    sync_directory,
    sync_file,
)
from headrace.errors import CorruptionError, FencedError
from headrace.tokens import Attempt, Token

MARK = ".mark"
# Later than any cut that is made: an attempt is over if not even this one would be kept.
_FAR_CUT = 10**9


@dataclass(frozen=True, slots=True)
class Mark:
    """Up to a cut, ``file`` has ``length`` bytes."""

    file: str
    length: int


@dataclass(frozen=True, slots=True)
class Live:
    """Up to ``token`` all is published: of each live file so many bytes."""

    token: Token | None = None
    lengths: dict[str, int] = field(default_factory=dict)


class LiveWriter:
    """Appends each batch to the attempt's live file, unless that was taken from it meanwhile."""

    def __init__(self, directory: Path, context: SinkContext) -> None:
        self._step, self._mark = context.step, staged_path(context, MARK)
        # Names are never used twice: a file that goes on must be there, a new one must not.
        going_on = _newest_live(directory, context)
        self._path = going_on or directory / f"live-{context.token}-{context.subtask:05d}.jsonl"
        self._flags = os.O_WRONLY | os.O_CLOEXEC | (0 if going_on else os.O_CREAT | os.O_EXCL)
        self._file: int | None = None
        self._rows = self._length = 0

    def write(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        if self._file is None:
            self._file = self._opened()
        data = json_lines(rows)
        with _held(self._file, self._path):
            end = os.fstat(self._file).st_size
            write_all(self._file, data, end)
        self._length = end + len(data)
        self._rows += rows.num_rows

    def _opened(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return os.open(self._path, self._flags, 0o666)
        except FileNotFoundError:
            raise FencedError(f"{self._path} is closed: the attempt that wrote it is over") from None

    def close(self) -> Sequence[Staged]:
        if self._file is None:
            return ()
        os.fsync(self._file)
        os.close(self._file)
        self._file = None
        sync_directory(self._path.parent)
        self._mark.parent.mkdir(parents=True, exist_ok=True)
        self._mark.write_bytes(msgspec.json.encode(Mark(self._path.name, self._length)))
        sync_file(self._mark)
        return (Staged(self._step, str(self._mark), self._rows),)


@contextmanager
def _held(descriptor: int, path: Path) -> Iterator[None]:
    """Keep a live file under its name; FencedError if it lost it, since its attempt is over."""
    lock(descriptor, f"{path} is held by another process")
    try:
        if not path.exists() or not os.path.samestat(path.stat(), os.fstat(descriptor)):
            raise FencedError(f"{path} is closed: the attempt that wrote it is over")
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _newest_live(directory: Path, context: SinkContext) -> Path | None:
    """The live file of this attempt and subtask, unless there is none or it is full."""
    writer = (context.token.by, context.subtask)
    newest = max((path for path in directory.glob("live-*") if _writer_of(path.name) == writer), default=None)
    return newest if newest is not None and newest.stat().st_size < ROLL_BYTES else None


def _writer_of(name: str) -> tuple[Attempt, int | None] | None:
    origin = origin_of(name)
    return None if origin is None else (origin[0].by, origin[1])


def log_live(directory: Path, token: Token, staged: Sequence[Staged]) -> None:
    """Note how much of the live files a cut has logged; those that are full get their final name."""
    if not staged:
        return
    with publishing(directory):
        note = read_note(directory, Live)
        pieces = pieces_of(directory / STAGING, token, staged, [MARK])
        if is_newer(token, note.token):
            marks = [_read_mark(piece.path) for piece in pieces]
            lengths = note.lengths | {mark.file: mark.length for mark in marks}
            note = Live(token, {name: length for name, length in lengths.items() if (directory / name).exists()})
            put_note(directory, note)
        _finish(directory, note, _full(note))
        remove_pieces(pieces)


def _read_mark(path: Path) -> Mark:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Mark)
    except (FileNotFoundError, msgspec.MsgspecError) as error:
        raise CorruptionError(f"staged file {path} cannot be read: {error}") from error


def _full(note: Live) -> list[str]:
    """Files whose subtask has gone on to another one, all of whose rows are therefore published."""
    newest: dict[tuple[Attempt, int | None] | None, str] = {}
    for name in sorted(note.lengths):
        newest[_writer_of(name)] = name
    return [name for name in note.lengths if newest[_writer_of(name)] != name]


def settle_live(directory: Path) -> None:
    """Give live files of which everything is logged their final name; no attempt runs."""
    if not directory.is_dir():
        return
    with publishing(directory):
        note = read_note(directory, Live)
        sizes = {name: (directory / name).stat().st_size for name in note.lengths if (directory / name).exists()}
        _finish(directory, note, [name for name, size in sizes.items() if size == note.lengths[name]])


def discard_live(directory: Path, keep: Keep) -> None:
    """Close the live files of attempts that are over, and remove from them what was never logged.

    Marks of logged cuts count as much as the note does: they may be published later.
    """
    if not directory.is_dir():
        return
    with publishing(directory):
        lengths = dict(read_note(directory, Live).lengths)
        for path in (directory / STAGING).glob(f"*/*/part-*{MARK}"):
            token = Token.parse(path.parent.name)
            if keep(token) and _is_over(token.by, keep):
                mark = _read_mark(path)
                lengths[mark.file] = max(mark.length, lengths.get(mark.file, 0))
        for path in directory.glob("live-*"):
            writer = _writer_of(path.name)
            if writer is not None and _is_over(writer[0], keep):
                _close(path, lengths.get(path.name, 0))


def _is_over(attempt: Attempt, keep: Keep) -> bool:
    return not keep(attempt.cut(_FAR_CUT))


def _finish(directory: Path, note: Live, names: Sequence[str]) -> None:
    for name in names:
        if (directory / name).exists():
            _close(directory / name, note.lengths[name])


def _close(path: Path, length: int) -> None:
    """Leave ``length`` bytes of a live file under its final name, or nothing; whoever still writes to it fails."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        with _held(descriptor, path):
            if os.fstat(descriptor).st_size < length:
                raise CorruptionError(f"{path} has less than {length} bytes, which were published")
            if length:
                os.ftruncate(descriptor, length)
                os.fsync(descriptor)
                path.rename(path.with_name(path.name.replace("live-", "part-", 1)))
            else:
                path.unlink()
        sync_directory(path.parent)
    finally:
        os.close(descriptor)
