"""Who owns what: a table has, for each slice of a stage, the subtask that owns it. Partitions are a source's slices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.tokens import Token

Table = tuple[int, ...]


def dealt(slices: int, subtasks: Sequence[int]) -> Table:
    """Slices given to subtasks in turn.

    >>> dealt(5, (0, 2))
    (0, 2, 0, 2, 0)
    """
    return tuple(subtasks[slice % len(subtasks)] for slice in range(slices))


def owned(table: Table, subtask: int) -> tuple[int, ...]:
    """The slices of a subtask, ascending."""
    return tuple(slice for slice, owner in enumerate(table) if owner == subtask)


def owners(table: Table) -> tuple[int, ...]:
    """The subtasks that own anything, ascending."""
    return tuple(sorted(set(table)))


def levelled(table: Sequence[int | None], subtasks: Sequence[int]) -> Table:
    """Just these subtasks, each with as many slices as others but for one; as few as possible change hands.

    >>> levelled((0, 0, 0, 0), (0, 1)), levelled((0, 1, 2, None), (0, 1))
    ((0, 0, 1, 1), (0, 1, 0, 1))
    """
    held = {subtask: [slice for slice, owner in enumerate(table) if owner == subtask] for subtask in subtasks}
    least, more = divmod(len(table), len(subtasks))
    larger = set(sorted(subtasks, key=lambda subtask: (-len(held[subtask]), subtask))[:more])
    room = {subtask: least + (subtask in larger) for subtask in subtasks}
    after = list(table)
    for subtask, slices in held.items():
        for slice in slices[room[subtask] :]:
            after[slice] = None
    free = (subtask for subtask in subtasks for _ in range(room[subtask] - len(held[subtask])))
    return tuple(next(free) if owner not in held else owner for owner in after)


def changed(before: Table, after: Table) -> Iterable[tuple[int, int, int]]:
    """Slice, owner before and owner after, of the slices that change hands."""
    return [(slice, x, y) for slice, (x, y) in enumerate(zip(before, after, strict=True)) if x != y]


class Holdings:
    """The slices of one subtask in one attempt. ``awaited`` are those among them whose state is still on its way, since
    the cut ``given``: until they are here, no other cut is made.

    Pure: the protocol's simulator runs this very class.
    """

    def __init__(self, mine: tuple[int, ...]) -> None:
        self.mine = mine
        self.awaited: frozenset[int] = frozenset()
        self.given: Token | None = None

    def change(self, token: Token, mine: tuple[int, ...]) -> frozenset[int]:
        """A cut says what is ours from it on; returns what is another's now."""
        before, self.mine = frozenset(self.mine), mine
        self.awaited = frozenset(mine) - before
        self.given = token if self.awaited else None
        return before.difference(mine)

    def adopt(self) -> frozenset[int]:
        """All that was on its way is here; returns what that was."""
        adopted, self.awaited, self.given = self.awaited, frozenset(), None
        return adopted
