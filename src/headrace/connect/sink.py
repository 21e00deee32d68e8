"""What a sink is: a frozen description that opens one writer per subtask and cut.

``as_produced`` hands rows over at once: lowest latency, and the rows of a cut that is made again are
the same rows, so an idempotent target ends up right. ``on_commit`` stages rows in the worker and
publishes them from the driver once their cut is in the version log: visible exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import pyarrow as pa

from headrace.tokens import Token

When = Literal["as_produced", "on_commit"]
TellDriver = Callable[[str, list[dict[str, Any]]], None]
"""Send rows of a step to the driver's process."""
Keep = Callable[[Token], bool]
"""Whether a cut counts: true of every logged one, and of all that the running attempt may still make."""


@dataclass(frozen=True, slots=True)
class SinkContext:
    """Where a writer runs: ``token`` is the cut its rows belong to, ``staging`` a directory of this sink and cut."""

    step: str
    token: Token
    subtask: int
    staging: Path
    tell_driver: TellDriver


class Staged(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that a writer left for publication; ``path`` is absolute."""

    step: str
    path: str
    rows: int


class Writer(Protocol):
    """One sink in one subtask for one cut. ``close`` may run in another thread, while the next cut's writer writes."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows over; for ``as_produced`` they are handed to the target before this returns."""
        ...

    def close(self) -> Sequence[Staged]:
        """Make everything durable and say what is to be published when the cut is logged."""
        ...


class Sink(Protocol):
    """A frozen, picklable description of where results go.

    Workers call ``open``, the driver all else, in one thread. A driver that starts claims the sink,
    publishes what is logged, then discards and settles; it does the last two between attempts as well, and
    when it ends. Whatever it dies in is done again by the next one.
    """

    @property
    def when(self) -> When: ...

    def claim(self, owner: str) -> None:
        """Take the target for this checkpoint and step; ConfigError if it has results of another."""
        ...

    def open(self, context: SinkContext) -> Writer: ...

    def staging_root(self, checkpoint: Path) -> Path:
        """Where attempts stage files: on the target's file system, so that a rename publishes."""
        ...

    def publish(self, token: Token, staged: Sequence[Staged]) -> None:
        """Make the rows of a logged cut visible, soon if not now; repeating it changes nothing.

        Called for every logged cut in the order of the log, with nothing staged too.
        """
        ...

    def settle(self) -> None:
        """No attempt runs: make visible at once what was published but is collected into larger files."""
        ...

    def discard(self, keep: Keep) -> None:
        """Remove what cuts left for which ``keep(token)`` is false; rows of logged cuts stay, published or not."""
        ...

    def describe(self) -> str: ...
