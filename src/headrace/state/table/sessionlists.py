"""The open sessions of each key: rows of a table, in linked lists of whole numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.grouping import Rows
from headrace.state.index.keyindex import KeyIndex
from headrace.state.table.rowtable import GroupTable

NO_ROW = -1
_PANE_BYTES = 170
"""What a pane of its own takes in the table's index: an entry of a dictionary, and its two numbers."""
_KEY_BYTES = 40
"""As in ``state.spill.bounds``: room for a key of varying size, which is held here once more."""


class SessionLists:
    """``users`` numbers the keys that have open sessions; a Python list per key would take as much as its state."""

    def __init__(self, table: GroupTable) -> None:
        self._table, self._index = table, KeyIndex(table.key_fields)
        self._first = self._next = np.zeros(0, np.int64)

    @property
    def nbytes(self) -> int:
        return self._index.nbytes + self._first.nbytes + self._next.nbytes

    @property
    def row_bytes(self) -> int:
        """For one more key with one session, at most; the arrays grow by doubling."""
        return 2 * self._index.row_bytes + 32 + _PANE_BYTES + (_KEY_BYTES if self._index.varies else 0)

    def users(self, keys: list[pa.Array]) -> Rows:
        """The number of each key, given if missing; a session of each must follow."""
        admission = self._index.admit(keys, 0)
        self._first = _reaching(self._first, self._index.capacity)
        self._first[admission.fresh] = NO_ROW
        return admission.rows

    def each(self, users: Rows) -> Iterator[Rows]:
        """The first row of each user, then the second, and so on until nobody has more; ``NO_ROW`` for those."""
        rows = self._first[users]
        while (there := rows != NO_ROW).any():
            yield rows
            rows = np.where(there, self._next[rows], NO_ROW)

    def of(self, user: int) -> list[int]:
        """A user's rows."""
        rows, row = [], int(self._first[user])
        while row != NO_ROW:
            rows.append(row)
            row = int(self._next[row])
        return rows

    def rows_of(self, keys: list[pa.Array]) -> Rows:
        """The rows of some keys."""
        users = np.unique(self._index.find(keys, 0))
        return np.array([row for user in users[users >= 0].tolist() for row in self.of(user)], np.int64)

    def put_on(self, users: Rows, rows: Rows) -> None:
        """A row more for each of different users."""
        self._next = _reaching(self._next, self._table.index.capacity)
        self._next[rows], self._first[users] = self._first[users], rows

    def take_off(self, user: int, row: int) -> None:
        """A row less."""
        rows = self.of(user)
        at = rows.index(row)
        if at == 0:
            self._first[user] = self._next[row]
        else:
            self._next[rows[at - 1]] = self._next[row]

    def add(self, rows: Rows) -> None:
        """Rows that someone else has put into the table."""
        users = self.users(self._table.key_columns(rows))
        once = _appears_once(users)
        self.put_on(users[once], rows[once])
        for at in np.flatnonzero(~once).tolist():
            self.put_on(users[at : at + 1], rows[at : at + 1])

    def remove(self, rows: Rows) -> None:
        """Rows that are about to be dropped; users without any are forgotten."""
        users = self._index.find(self._table.key_columns(rows), 0)
        rows, users = rows[users >= 0], users[users >= 0]
        leads = _appears_once(users) & (self._first[users] == rows)
        self._first[users[leads]] = self._next[rows[leads]]
        for user, row in zip(users[~leads].tolist(), rows[~leads].tolist()):
            if row in self.of(user):
                self.take_off(user, row)
        users = np.unique(users)
        self._index.drop(users[self._first[users] == NO_ROW])


def _appears_once(numbers: Rows) -> npt.NDArray[np.bool_]:
    """Which of the numbers are there only once."""
    _, of, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    once: npt.NDArray[np.bool_] = counts[of] == 1
    return once


def _reaching(numbers: Rows, size: int) -> Rows:
    """The numbers with room for at least so many."""
    if size <= len(numbers):
        return numbers
    return np.concatenate((numbers, np.full(max(size - len(numbers), len(numbers)), NO_ROW)))
