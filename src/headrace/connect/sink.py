"""What a sink is: a frozen description that opens one writer per subtask and epoch.

``as_produced`` writes at once: lowest latency, and every row carries a deterministic identity, so
an idempotent target sees each result once. ``on_commit`` stages rows in the worker and publishes
them from the driver after Spark has committed the epoch: visible exactly once.
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


@dataclass(frozen=True, slots=True)
class SinkContext:
    """Where a writer runs. ``staging`` is a directory of this sink and attempt; it exists."""

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
    """One sink in one subtask for one epoch."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows over; for ``as_produced`` they are handed to the target before this returns."""
        ...

    def close(self) -> Sequence[Staged]:
        """Make everything durable and say what is to be published at commit."""
        ...


class Sink(Protocol):
    """A frozen, picklable description of where results go."""

    @property
    def when(self) -> When: ...

    def open(self, context: SinkContext) -> Writer: ...

    def staging_root(self, checkpoint: Path) -> Path:
        """Where attempts stage files: on the target's file system, so that a rename publishes."""
        ...

    def publish(self, token: Token, staged: Sequence[Staged]) -> None:
        """Make the staged rows of a committed attempt visible; repeating it changes nothing."""
        ...

    def discard(self, keep: Callable[[Token], bool]) -> None:
        """Remove what attempts left behind for which ``keep(token)`` is false."""
        ...

    def describe(self) -> str: ...
