"""Published rows in files that roll: what a cut staged is appended to the newest file, and visible at once.

The note says which cut was appended last, and where the next one goes. An append that was cut short is made
again at the same place with the same bytes, since logged cuts are a line and staged files do not change: nothing
that a reader has seen is ever taken back or altered. For the same reason a file is closed by the note that
follows an append, not by a clock that may say something else the second time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.connect.sink import Staged
from headrace.connect.writing.notes import publishing, put_note, read_note, write_all
from headrace.connect.writing.staging import (
    STAGING,
    Piece,
    is_newer,
    move_pieces,
    pieces_of,
    remove_pieces,
    sync_directory,
)
from headrace.errors import CorruptionError
from headrace.tokens import Token

# Large enough to be read well, small enough to be copied in one go.
ROLL_BYTES = 64_000_000


@dataclass(frozen=True, slots=True)
class Rolled:
    """Up to ``token`` all is published; the next rows go to ``file`` from ``length`` on, to a new one if it is empty."""

    token: Token | None = None
    file: str = ""
    length: int = 0
    begun_us: int = 0


def append_staged(directory: Path, token: Token, staged: Sequence[Staged], *, suffix: str, roll_s: float) -> None:
    """Publish a cut's rows in ``directory``; repeating it changes nothing."""
    if not staged:
        return
    with publishing(directory):
        note = read_note(directory, Rolled)
        pieces = pieces_of(directory / STAGING, token, staged, [suffix])
        if is_newer(token, note.token):
            put_note(directory, _publish(directory, note, token, pieces, roll_s))
        remove_pieces(pieces)


def _publish(directory: Path, note: Rolled, token: Token, pieces: Sequence[Piece], roll_s: float) -> Rolled:
    if not _is_large(pieces):
        return _append(directory, note, token, pieces, roll_s)
    # The open file is closed first, so that files in order of their names have rows in order of cuts.
    move_pieces(pieces, directory)
    return Rolled(token)


def _is_large(pieces: Sequence[Piece]) -> bool:
    """Whether a cut's files are worth being results of their own; some may have been moved when we were cut short."""
    sizes = [piece.path.stat().st_size for piece in pieces if piece.path.exists()]
    return len(sizes) < len(pieces) or sum(sizes) >= ROLL_BYTES


def _append(directory: Path, note: Rolled, token: Token, pieces: Sequence[Piece], roll_s: float) -> Rolled:
    data = b"".join(piece.path.read_bytes() for piece in pieces)
    if not note.file or not (directory / note.file).exists():  # gone: a reader has taken it away
        note = Rolled(file=f"part-{token}{pieces[0].path.suffix}", begun_us=now_us())
    _write(directory / note.file, note.length, data)
    length = note.length + len(data)
    if length >= ROLL_BYTES or now_us() - note.begun_us >= roll_s * 1e6:
        return Rolled(token)
    return Rolled(token, note.file, length, note.begun_us)


def _write(path: Path, offset: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size < offset:
            raise CorruptionError(
                f"{path} has {size} of {offset} bytes that were published; move it away, and results go to a new file"
            )
        write_all(descriptor, data, offset)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if offset == 0:
        sync_directory(path.parent)


def now_us() -> int:
    """The time of day, by which files roll."""
    return time.time_ns() // 1000
