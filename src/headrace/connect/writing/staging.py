"""Staged files: made durable by a writer, taken over when their cut is logged, removed when it never was.

A writer leaves ``part-<subtask>.<suffix>`` in the staging directory of its cut, which is named by the cut's token.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from headrace.connect.sink import Keep, SinkContext, Staged, When
from headrace.errors import ConfigError, CorruptionError, StateError
from headrace.tokens import Token

STAGING, KEPT = "_staging", "_published"
_TOKEN = r"c\d+-g\d+-a\d+"
_STAGED_NAME = re.compile(r"part-(?P<subtask>\d+)(?P<suffix>\.\w+)")
_RESULT_NAME = re.compile(rf"(?:part|live)-(?P<token>{_TOKEN})(?:-(?P<subtask>\d+))?\.\w+")


def check_when(when: str, sink: str) -> When:
    """Raises ConfigError unless ``when`` is ``"as_produced"`` or ``"on_commit"``."""
    if when not in get_args(When):
        raise ConfigError(f"{sink}: when={when!r} is not one of {', '.join(get_args(When))}")
    return when  # type: ignore[return-value]


def staged_path(context: SinkContext, suffix: str) -> Path:
    """Where a writer stages its rows."""
    return context.staging.absolute() / f"part-{context.subtask:05d}{suffix}"


def is_unsettled(directory: Path) -> bool:
    """Whether a sink's directory has rows that the next driver is to publish or to remove there."""
    staged = (path for path in (directory / STAGING).glob("**/*") if path.is_file())
    return any(staged) or any(directory.glob("live-*")) or any((directory / KEPT).glob("part-*"))


@dataclass(frozen=True, slots=True)
class Piece:
    """The staged rows of one subtask; the file is gone once they were taken over."""

    token: Token
    subtask: int
    path: Path

    @property
    def name(self) -> str:
        """What the rows are called from here on: no other rows ever are."""
        return f"part-{self.token}-{self.subtask:05d}{self.path.suffix}"


def pieces_of(root: Path, token: Token, staged: Sequence[Staged], suffixes: Iterable[str]) -> tuple[Piece, ...]:
    """What a cut staged under ``root``, by subtask; StateError for a file that it cannot have written."""
    known, pieces = {*suffixes}, []
    for path in (check_inside(Path(piece.path), root) for piece in staged):
        name = _STAGED_NAME.fullmatch(path.name)
        if name is None or name["suffix"] not in known or path.parent.name != str(token):
            raise StateError(f"staged file {path} was not written by this sink for cut {token}; it is not published")
        pieces.append(Piece(token, int(name["subtask"]), path))
    return tuple(sorted(pieces, key=lambda piece: piece.subtask))


def check_inside(path: Path, root: Path | None) -> Path:
    """Raise StateError if a staged file is reached by a symlink or ``..``, or lies outside ``root``."""
    if not path.is_absolute() or ".." in path.parts or path.is_symlink() or path.parent.is_symlink():
        raise StateError(f"staged file {path} is not a plain absolute path; it is not published")
    if root is not None and not path.resolve().is_relative_to(root.resolve()):
        raise StateError(f"staged file {path} is outside {root}; it is not published")
    return path


def move_pieces(pieces: Sequence[Piece], directory: Path) -> None:
    """Move pieces to their final names, durably; those that were moved before are left alone."""
    if not pieces:
        return
    for piece in pieces:
        if not piece.path.exists() and not (directory / piece.name).exists():
            raise CorruptionError(f"staged file {piece.path} is gone, and {directory / piece.name} was never published")
    for piece in pieces:
        if piece.path.exists():
            piece.path.rename(directory / piece.name)
    sync_directory(directory)


def remove_pieces(pieces: Sequence[Piece]) -> None:
    """Remove pieces that are durable elsewhere, and the directory of their cut with the last one."""
    for piece in pieces:
        piece.path.unlink(missing_ok=True)
    for parent in {piece.path.parent for piece in pieces}:
        try:
            parent.rmdir()
        except OSError:
            continue


def sync_file(path: Path) -> None:
    """Force a file and its name to disk."""
    _sync(path, os.O_RDONLY)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Force the names in a directory to disk."""
    _sync(directory, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_newer(token: Token, known: Token | None) -> bool:
    """Whether a logged cut comes after another in the log: its tokens are in order."""
    return known is None or token > known


def origin_of(name: str) -> tuple[Token, int | None] | None:
    """Cut and subtask that a file of results is named after; None for a file of another kind.

    >>> origin_of("part-c0000000017-g000002-a0001-00003.jsonl")
    (Token(generation=2, attempt=1, cut=17), 3)
    >>> origin_of("part-17.csv")
    """
    found = _RESULT_NAME.fullmatch(name)
    if found is None:
        return None
    return Token.parse(found["token"]), None if found["subtask"] is None else int(found["subtask"])


def discard_staging(root: Path, keep: Keep) -> None:
    """Remove staging directories, named by token at most two levels down, whose token is not kept."""
    if not root.is_dir():
        return
    for path in [*root.iterdir(), *root.glob("*/*")]:
        if not re.fullmatch(_TOKEN, path.name) or keep(Token.parse(path.name)):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
