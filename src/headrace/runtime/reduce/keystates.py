"""What a record does to its key's state where no pane holds it: running results, count windows, sessions.

One interface for all three, over one table, so that a memory bound (``runtime.reduce.deferring``) can do to a part of the
keys, later, what is done to the others at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import pyarrow as pa

from headrace.runtime.batch import Batch, Times
from headrace.state.grouping import Rows
from headrace.state.table.rowtable import GroupTable


class KeyStep(Protocol):
    """The reduce step that states belong to."""

    newest_us: int
    """The latest time of any of its records so far."""
    born_us: int
    """When the last of its input was born."""

    def key_columns(self, records: pa.RecordBatch) -> list[pa.Array]: ...

    def results(self, rows: Rows, middle: list[pa.Array], table: GroupTable | None = None) -> pa.RecordBatch: ...


class KeyStates(Protocol):
    """The states of some keys. Methods that give batches give results; they must be iterated over."""

    @property
    def patience_us(self) -> int | None:
        """How long after its time a result may wait for a state to be read from disk; None: until a cut."""
        ...

    @property
    def table(self) -> GroupTable: ...

    @property
    def nbytes(self) -> int:
        """Memory held besides the table."""
        ...

    @property
    def row_bytes(self) -> int:
        """The same for one more row, at most."""
        ...

    def take(self, batch: Batch) -> Iterable[Batch]: ...

    def take_partial(self, partial: pa.RecordBatch) -> Iterable[Batch]: ...

    def close(self, watermark_us: int) -> Iterable[Batch]:
        """All input up to the watermark has been seen."""
        ...

    def end(self) -> Iterable[Batch]:
        """All input before a cut has come."""
        ...

    def rows_of(self, keys: list[pa.Array]) -> Rows:
        """All rows of some keys."""
        ...

    def loaded(self, rows: Rows) -> None:
        """Rows that someone else has put into the table."""
        ...

    def leaving(self, rows: Rows) -> None:
        """Rows that someone else is about to take out of the table."""
        ...

    def parting(self, rows: Rows) -> Iterable[Batch]:
        """Results of rows that leave the table for disk, if they were to follow at the next cut."""
        ...

    def drop(self, rows: Rows) -> None:
        """Forget rows."""
        ...

    def due_us(self, rows: Rows) -> int:
        """The earliest time of a result that rows give although no record comes any more."""
        ...

    def waits_us(self, times: Times) -> int:
        """The earliest time of a result that records of these times can have part in."""
        ...
