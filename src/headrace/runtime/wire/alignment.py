"""Alignment: a subtask makes a cut when every sender has marked it (``docs/how-it-works.md``; Chandy and Lamport, 1985).

What comes from a sender after its mark belongs behind the cut, so it waits here while others have not marked. Reading
never stops meanwhile: one reader serves all senders, and the mark that is missing may be behind what must wait.

Pure: items are opaque, and nothing is known of pipes. The protocol's simulator runs this very class.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from headrace.errors import ProtocolError

HELD_BYTES = 64_000_000
"""What is held beyond this goes to the shelf: about as much as may wait in a subtask's queues."""

Item = TypeVar("Item")
Mark = TypeVar("Mark")


class HeldShelf(Protocol[Item]):
    """Where items are put that are too many for memory."""

    def put(self, item: Item) -> int:
        """Put an item away; returns its place."""
        ...

    def take(self, place: int) -> Item:
        """Get an item back, once. Those of one sender are taken in the order in which they were put."""
        ...

    def clear(self) -> None:
        """Forget all items."""
        ...


class Alignment(Generic[Item, Mark]):
    """Who of a subtask's senders has marked the next cut, and what has come since from those who have.

    ``held`` names the senders whose items have to wait: ask ``sender in alignment.held`` for each item, and give it to
    ``hold`` if so. It is empty but for the time around a cut.
    """

    def __init__(self, shelf: HeldShelf[Item], limit_bytes: int = HELD_BYTES) -> None:
        self._shelf, self._limit_bytes = shelf, limit_bytes
        self.begin(())

    def begin(self, senders: Iterable[int]) -> None:
        """A new attempt with these senders; nothing has come of them."""
        self._senders = frozenset(senders)
        self._marks: dict[int, Mark] = {}
        self.held: dict[int, deque[tuple[Item | None, int]]] = {}
        self.held_bytes = self.shelved_bytes = 0
        self._shelf.clear()

    @property
    def aligned(self) -> bool:
        """Every sender has marked: once what came before is processed, the cut can be made."""
        return len(self._marks) == len(self._senders) > 0

    @property
    def agreed(self) -> Mark | None:
        """A mark of the cut that can be made; None while there is none. All senders' marks name the same."""
        return next(iter(self._marks.values())) if self.aligned else None

    @property
    def under_way(self) -> bool:
        """Some sender has marked a cut that has not been made."""
        return bool(self._marks)

    @property
    def missing(self) -> list[int]:
        """Senders that have not marked."""
        return sorted(self._senders - self._marks.keys())

    def mark(self, sender: int, mark: Mark) -> None:
        """A sender has marked; what follows from it is to be held."""
        if sender not in self._senders:
            raise ProtocolError(f"sender {sender} marked a cut, but is none of {sorted(self._senders)}")
        if sender in self._marks:
            raise ProtocolError(f"sender {sender} marked a cut twice")
        self._marks[sender] = mark
        self.held.setdefault(sender, deque())

    def hold(self, sender: int, item: Item, nbytes: int) -> None:
        """Keep an item of a held sender, behind those that are kept already."""
        if self.held_bytes + nbytes > self._limit_bytes:
            self.held[sender].append((None, self._shelf.put(item)))
            self.shelved_bytes += nbytes
            return
        self.held[sender].append((item, nbytes))
        self.held_bytes += nbytes

    def made(self) -> dict[int, Mark]:
        """The cut has been made: what is held may be taken. Returns the senders' marks."""
        if not self.aligned:
            raise ProtocolError(f"a cut was made before senders {self.missing} had marked it")
        marks, self._marks = self._marks, {}
        self.held = {sender: waiting for sender, waiting in self.held.items() if waiting}
        return marks

    def take(self) -> Item | None:
        """The next item that need not wait any more, senders in turn, each one's in order until it marks again."""
        sender = next((sender for sender in self.held if sender not in self._marks), None)
        if sender is None:
            return None
        waiting = self.held.pop(sender)
        item, number = waiting.popleft()
        if waiting:
            self.held[sender] = waiting
        if item is not None:
            self.held_bytes -= number
            return item
        return self._shelf.take(number)
