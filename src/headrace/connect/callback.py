"""Results given to a user's function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.connect.sink import Keep, SinkContext, Staged, When
from headrace.connect.writing.arrows import ARROW, ArrowWriter, read_arrow
from headrace.connect.writing.staging import check_inside, check_when, staged_path
from headrace.errors import ConfigError
from headrace.tokens import Token

OnRows = Callable[[pa.RecordBatch], object]


def callback(fn: OnRows, *, when: When = "as_produced") -> Callback:
    """A sink that calls ``fn(rows)`` with a ``pyarrow.RecordBatch``; what it returns is ignored.

    ``as_produced`` calls it in the worker, at once, and again for rows since the last logged cut when
    an attempt failed. ``on_commit`` calls it in the driver, once for each subtask's rows of a logged cut.
    If the driver dies after the call and before it noted that, or ``fn`` raises, that call is made again:
    at least once, and exactly once as long as the driver lives and ``fn`` does not raise.

    >>> callback(print).when
    'as_produced'
    """
    if not callable(fn):
        raise ConfigError(f"callback: {fn!r} is not a function")
    return Callback(fn, check_when(when, "callback"))


@dataclass(frozen=True, slots=True)
class Callback:
    """Description of a callback sink; made by `callback`."""

    fn: OnRows
    when: When = "as_produced"

    def claim(self, owner: str) -> None:
        """A function is nobody's."""

    def open(self, context: SinkContext) -> CallingWriter | ArrowWriter:
        if self.when == "on_commit":
            return ArrowWriter(context.step, staged_path(context, ARROW))
        return CallingWriter(self.fn)

    def staging_root(self, checkpoint: Path) -> Path:
        return checkpoint / "staging"

    def publish(self, token: Token, staged: Sequence[Staged]) -> None:
        """Call the function with the rows of a logged cut, and remove them, as the note that it was called."""
        for piece in staged:
            path = check_inside(Path(piece.path), None)
            if path.exists():
                for batch in pa.Table.from_batches(read_arrow(path)).combine_chunks().to_batches():
                    self.fn(batch)
                path.unlink()

    def settle(self) -> None:
        """Nothing waits."""

    def discard(self, keep: Keep) -> None:
        """Nothing to do: staged rows are in the checkpoint, whose owner removes them."""

    def describe(self) -> str:
        return f"callback {getattr(self.fn, '__qualname__', repr(self.fn))}, {self.when}"


class CallingWriter:
    """Calls the function with each batch before returning."""

    def __init__(self, fn: OnRows) -> None:
        self._fn = fn

    def write(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self._fn(rows)

    def close(self) -> Sequence[Staged]:
        return ()
