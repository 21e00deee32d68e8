"""What a source is: a frozen description that opens one reader per partition.

A reader runs inside a worker, is polled by the subtask loop, and its offset (plain JSON data) is
kept as a slice of state, so input and state never disagree. A poll hands over a whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

Offset = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BadRecord:
    """Input that could not be read as a record; ``where`` names the file and the line, if it has come from one."""

    text: str
    reason: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class Poll:
    """One poll's yield.

    ``due_us`` is when the oldest of the records should have been handed over (microseconds since
    1970, an open-loop clock), or ``None`` for a source without a schedule; ``last_due_us`` is the same of
    the newest, if it is known.
    """

    records: pa.RecordBatch
    due_us: int | None = None
    bad: Sequence[BadRecord] = field(default=())
    last_due_us: int | None = None


class Reader(Protocol):
    """One partition, opened at an offset."""

    def poll(self, max_rows: int, now_us: int) -> Poll | None:
        """Hand over up to ``max_rows`` records that are due at ``now_us``; never blocks.

        ``None`` when nothing is due or available now.
        """
        ...

    def offset(self) -> Offset:
        """Where the next poll continues, as JSON data. A set in it is stored item by item, so it may be long."""
        ...

    @property
    def exhausted(self) -> bool:
        """True once no record will ever follow."""
        ...

    def next_due_us(self) -> int | None:
        """When the next record is due, if the reader knows; lets the loop sleep."""
        ...

    def close(self) -> None: ...


class Source(Protocol):
    """A frozen, picklable description of where records come from."""

    @property
    def bounded(self) -> bool:
        """True if the input ends; needed for batch mode."""
        ...

    @property
    def live(self) -> bool:
        """True if silence means that nothing happened (sockets, growing directories).

        Only a live source can be idle: one that is silent for long no longer holds others back.
        """
        ...

    def partitions(self, parallelism: int) -> int:
        """How many readers there are, given the number of source subtasks. Fixed per checkpoint."""
        ...

    def schema(self) -> pa.Schema:
        """The columns; declared, or inferred once from the first records.

        Raises SchemaError, saying how to declare it, when there is nothing to infer from yet.
        """
        ...

    def sample(self, rows: int) -> pa.RecordBatch:
        """Up to ``rows`` first records (possibly none) for inferring schemas of later steps."""
        ...

    def open(self, partition: int, of: int, offset: Offset | None, schema: pa.Schema, log_dir: Path) -> Reader:
        """Open one partition at ``offset`` (``None``: at its start).

        ``log_dir`` is a directory of this partition's own, for sources that cannot be read twice.
        """
        ...

    def describe(self) -> str:
        """One line for explain."""
        ...


@runtime_checkable
class Countable(Protocol):
    """A source that may know about how many records it has, for those who wait for its end."""

    def expected_rows(self) -> int | None: ...
