"""Parsed input that is handed over in pieces: what a cursor is, and what it keeps between two of them."""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa

from headrace.connect.reading.parse import Parsed

Position = dict[str, Any]


class Cursor(Protocol):
    """Rows of one input, in order."""

    def pending(self) -> pa.RecordBatch | None:
        """Rows that are next, reading on if there are none; ``None`` at the end.

        An empty batch means that there are malformed lines to take.
        """
        ...

    def take(self, rows: int) -> Parsed:
        """The first ``rows`` pending rows, with the malformed lines found among them."""
        ...

    def position(self) -> Position: ...

    def close(self) -> None: ...


class KeptRows:
    """A parsed piece of input of which some rows were taken."""

    def __init__(self, parsed: Parsed, skip: int) -> None:
        self._rows = parsed.rows
        self._bad = () if skip else parsed.bad
        self.taken = min(skip, parsed.rows.num_rows)

    @property
    def used_up(self) -> bool:
        return self.taken == self._rows.num_rows and not self._bad

    def rest(self) -> pa.RecordBatch:
        return self._rows.slice(self.taken)

    def take(self, rows: int) -> Parsed:
        piece = Parsed(self._rows.slice(self.taken, rows), self._bad)
        self.taken += piece.rows.num_rows
        # Malformed lines go with the first rows of their piece, so a position tells whether they went.
        self._bad = ()
        return piece
