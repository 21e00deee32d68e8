"""Calling users' functions: an exception becomes an error that names step, record and line."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import DataError, UserCodeError
from headrace.graph.nodes import OnError

_PACKAGE = str(Path(__file__).resolve().parents[2])
_RECORD_CHARS = 300
DeadLetter = Callable[[str, str, str], None]
"""Told the step, the record and the reason."""


@dataclass(slots=True)
class Guard:
    """What a step does when a record fails: stop the job, or count it and tell the dead letters."""

    step: str
    on_error: OnError
    dead_letter: DeadLetter | None = None
    skipped: int = field(default=0)

    def __call__(self, record: Any, error: Exception) -> None:
        """Raise UserCodeError, or note the skipped record and return."""
        if self.on_error == "fail":
            if isinstance(error, UserCodeError):
                raise error
            raise UserCodeError(
                self.step, shorten(record), line_of(error), f"{type(error).__name__}: {error}"
            ) from error
        self.skipped += 1
        if self.dead_letter is not None:
            self.dead_letter(self.step, shorten(record), f"{type(error).__name__}: {error}")

    def bad_input(self, text: str, reason: str, where: str = "") -> None:
        """The same for input that is not a record; ``where`` names file and line, if they are known."""
        if self.on_error == "fail":
            raise DataError(
                f"source {self.step!r} read something that is not a record{f', in {where}' if where else ''}: {reason}\n"
                f"  input: {text[:_RECORD_CHARS]}\n"
                f"  repair the input, or let the job go on without it: hr.Job(…, on_error='skip') counts such records, "
                f"dead_letter=hr.jsonl('bad/') keeps them"
            )
        self.skipped += 1
        if self.dead_letter is not None:
            self.dead_letter(self.step, text[:_RECORD_CHARS], f"{reason} ({where})" if where else reason)


def shorten(record: Any) -> str:
    text = repr(record)
    return text if len(text) <= _RECORD_CHARS else f"{text[:_RECORD_CHARS]}… ({len(text)} characters)"


def line_of(error: BaseException) -> str:
    """The innermost line outside Headrace, where the user's own code was."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_PACKAGE)]
    if not own:
        return "its call"
    frame = own[-1]
    theirs = [f for f in own if "site-packages" not in f.filename and not f.filename.startswith("<frozen")]
    if theirs:
        frame = theirs[-1]
    return f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" + (f": {frame.line}" if frame.line else "")
