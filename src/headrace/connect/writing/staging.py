"""Staged files: made durable by a writer, moved into place at commit, removed when not picked.

A writer leaves ``part-<subtask>.<suffix>`` in its attempt's staging directory (or appends to
``live-<token>-<subtask>.<suffix>`` beside the results); the published name carries the epoch instead.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from headrace.connect.sink import SinkContext, Staged, When
from headrace.errors import ConfigError, CorruptionError, StateError
from headrace.tokens import Token

STAGING = "_staging"
_TOKEN = r"e\d+-g\d+-a\d+"
_STAGED_NAME = re.compile(rf"(?:part|live-(?P<token>{_TOKEN}))-(?P<subtask>\d+)(?P<suffix>\.\w+)")


def check_when(when: str, sink: str) -> When:
    """Raises ConfigError unless ``when`` is ``"as_produced"`` or ``"on_commit"``."""
    if when not in get_args(When):
        raise ConfigError(f"{sink}: when={when!r} is not one of {', '.join(get_args(When))}")
    return when  # type: ignore[return-value]


def staged_path(context: SinkContext, suffix: str) -> Path:
    """Where a writer stages its rows."""
    return context.staging.absolute() / f"part-{context.subtask:05d}{suffix}"


def live_path(directory: Path, context: SinkContext, suffix: str) -> Path:
    """Where a writer appends rows that are visible at once."""
    return directory / f"live-{context.token}-{context.subtask:05d}{suffix}"


def part_path(directory: Path, epoch: int, subtask: int, suffix: str) -> Path:
    """The name of published rows."""
    return directory / f"part-{epoch:08d}-{subtask:05d}{suffix}"


def refuse_older_results(directory: Path, context: SinkContext, suffix: str) -> None:
    """Raise ConfigError, before any work is done, if these results would replace another run's."""
    target = part_path(directory, context.token.epoch, context.subtask, suffix)
    if target.exists():
        raise ConfigError(
            f"sink {context.step!r}: {target} exists already, from another run or another sink; "
            "remove the directory or give each sink and each new checkpoint one of its own"
        )


def sync_file(path: Path) -> None:
    """Force a file and its name to disk."""
    for target in (path, path.parent):
        descriptor = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_inside(path: Path, root: Path | None) -> Path:
    """Raise StateError if a staged file is reached by a symlink or ``..``, or lies outside ``root``."""
    if not path.is_absolute() or ".." in path.parts or path.is_symlink() or path.parent.is_symlink():
        raise StateError(f"staged file {path} is not a plain absolute path; it is not published")
    if root is not None and not path.resolve().is_relative_to(root.resolve()):
        raise StateError(f"staged file {path} is outside {root}; it is not published")
    return path


def publish_parts(directory: Path, token: Token, staged: Sequence[Staged], suffix: str) -> None:
    """Move staged files of a committed attempt into place; files that were moved before are left alone."""
    for piece in staged:
        path = check_inside(Path(piece.path), directory)
        name = _STAGED_NAME.fullmatch(path.name)
        if name is None or name["suffix"] != suffix or name["token"] not in (None, str(token)):
            raise StateError(f"staged file {path} was not written by attempt {token} of this sink; it is not published")
        _move(path, part_path(directory, token.epoch, int(name["subtask"]), suffix))
    if staged:
        _sync_directory(directory)
    for parent in {Path(piece.path).parent for piece in staged} - {directory}:
        _remove_if_empty(parent)


def _move(path: Path, target: Path) -> None:
    if not path.exists():
        if not target.exists():
            raise CorruptionError(f"staged file {path} is gone, and {target} was never published")
        return
    if target.exists():
        raise StateError(f"{target} exists already, from another run or another sink; {path} is not published")
    path.rename(target)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_if_empty(directory: Path) -> None:
    try:
        directory.rmdir()
    except OSError:
        return


def _token_of(name: str) -> Token | None:
    return Token.parse(name) if re.fullmatch(_TOKEN, name) else None


def discard_staging(root: Path, keep: Callable[[Token], bool]) -> None:
    """Remove staging directories, named by token at most two levels down, whose token is not kept."""
    if not root.is_dir():
        return
    for path in [*root.iterdir(), *root.glob("*/*")]:
        token = _token_of(path.name)
        if token is not None and not keep(token) and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


def discard_live(directory: Path, keep: Callable[[Token], bool]) -> None:
    """Remove live files whose token is not kept."""
    for path in directory.glob("live-*"):
        name = _STAGED_NAME.fullmatch(path.name)
        if name is not None and name["token"] is not None and not keep(Token.parse(name["token"])):
            path.unlink(missing_ok=True)
