"""Results given to a user's function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

import pyarrow as pa

from headrace.connect.sink import Keep, SinkContext, Staged, When
from headrace.connect.writing.arrows import ARROW, ArrowWriter, read_arrow
from headrace.connect.writing.staging import check_inside, check_when, staged_path, sync_directory
from headrace.errors import ConfigError, CorruptionError
from headrace.tokens import Token

OnRows = Callable[[pa.RecordBatch], object]
OnVersion = Callable[[pa.Table], object] | Callable[[pa.Table, int], object]
_CALLED = "called"
"""A file beside the staged rows of a cut, as the note that the function was called with all of them."""


@overload
def callback(fn: OnRows, *, when: Literal["as_produced"] = "as_produced") -> Callback: ...
@overload
def callback(fn: OnVersion, *, when: Literal["on_commit"]) -> Callback: ...
def callback(fn: OnRows | OnVersion, *, when: When = "as_produced") -> Callback:
    """A sink that calls a function with rows; what it returns is ignored.

    ``as_produced`` calls ``fn(rows)`` with a ``pyarrow.RecordBatch`` in the worker, at once, and again for rows since the
    last logged cut when an attempt failed.

    ``on_commit`` calls ``fn(rows, version)`` in the driver, once for each logged cut that has rows, in order, with all of
    them as a ``pyarrow.Table`` (or ``fn(rows)``, if it takes one argument). If ``fn`` raises, or the driver dies before it
    has noted that it was called, it is called again with the same rows and the same number before any later version,
    until it succeeds. Versions only grow, also across restarts, so a writer that remembers the last number with what it
    wrote, and skips numbers that are not larger, writes each row exactly once.

    >>> callback(print).when
    'as_produced'
    """
    if not callable(fn):
        raise ConfigError(f"callback: {fn!r} is not a function")
    if check_when(when, "callback") == "as_produced" and _takes_version(fn):
        raise ConfigError(
            f"callback: {_name(fn)} takes rows and their version, which they have once it is logged: say when='on_commit'"
        )
    _check_call(fn, when)
    return Callback(fn, when)


@dataclass(frozen=True, slots=True)
class Callback:
    """Description of a callback sink; made by `callback`. With ``on_commit`` its function stays in the driver."""

    fn: Callable[..., object] | None
    when: When = "as_produced"

    def __reduce__(self) -> tuple[Any, ...]:
        return Callback, (self.fn if self.when == "as_produced" else None, self.when)

    def claim(self, owner: str) -> None:
        """A function is nobody's."""

    def open(self, context: SinkContext) -> CallingWriter | ArrowWriter:
        if self.when == "on_commit":
            return ArrowWriter(context.step, staged_path(context, ARROW))
        assert self.fn is not None
        return CallingWriter(self.fn)

    def staging_root(self, checkpoint: Path) -> Path:
        return checkpoint / "staging"

    def publish(self, token: Token, staged: Sequence[Staged]) -> None:
        """Call the function with all rows of a logged cut, note that, and remove them."""
        paths = [check_inside(Path(piece.path), None) for piece in staged]
        left = [path for path in paths if path.exists()]
        if not left:
            return
        called = left[0].parent / _CALLED
        if not called.exists():
            if len(left) < len(paths):
                raise CorruptionError(f"staged rows of cut {token} are gone: {(set(paths) - set(left)).pop()}")
            self._call(pa.Table.from_batches(batch for path in paths for batch in read_arrow(path)), token.cut)
            called.touch()
            sync_directory(called.parent)
        for path in (*left, called):
            path.unlink(missing_ok=True)

    def _call(self, rows: pa.Table, version: int) -> None:
        assert self.fn is not None, "results are published where the job was written"
        if _takes_version(self.fn):
            self.fn(rows, version)
        else:
            self.fn(rows)

    def settle(self) -> None:
        """Nothing waits."""

    def discard(self, keep: Keep) -> None:
        """Nothing to do: staged rows are in the checkpoint, whose owner removes them."""

    def describe(self) -> str:
        return f"callback {_name(self.fn)}, {self.when}"


class CallingWriter:
    """Calls the function with each batch before returning."""

    def __init__(self, fn: Callable[..., object]) -> None:
        self._fn = fn

    def write(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self._fn(rows)

    def close(self) -> Sequence[Staged]:
        return ()


def _takes_version(fn: Callable[..., object]) -> bool:
    """Whether a function wants the version: it needs a second argument, or has one of that name."""
    try:
        known = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # of some builtin functions nothing is known
        return False
    plain = [each for each in known if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return len(plain) > 1 and (plain[1].default is inspect.Parameter.empty or plain[1].name == "version")


def _check_call(fn: Callable[..., object], when: When) -> None:
    given = ("rows", "version") if when == "on_commit" and _takes_version(fn) else ("rows",)
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*given)
    except TypeError as error:
        may = "fn(rows, version) or fn(rows)" if when == "on_commit" else "fn(rows)"
        raise ConfigError(
            f"callback: with when={when!r} it is called as {may}, and {_name(fn)} cannot be: {error}"
        ) from None


def _name(fn: object) -> str:
    return getattr(fn, "__qualname__", repr(fn))
