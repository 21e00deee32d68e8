"""Lanes: what happens in order within itself, and in any order with what is in other lanes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from simulated.world import World


class Violation(BaseException):
    """An invariant does not hold. Not an ``Exception``: nothing in the product may catch it."""


class Owner(Protocol):
    """Whose lane it is: nothing happens in it while the owner is frozen, and never again once it is dead."""

    frozen: bool

    @property
    def dead(self) -> bool: ...


class Lane:
    """A queue of calls. ``busy``: one of them has not returned yet."""

    __slots__ = ("busy", "items", "listed", "owner", "world")

    def __init__(self, world: World, owner: Owner) -> None:
        self.world, self.owner = world, owner
        self.items: deque[tuple[Any, ...]] = deque()
        self.listed = self.busy = False

    def push(self, call: Callable[..., object], *arguments: Any) -> None:
        self.items.append((call, *arguments))
        if not self.listed:
            self.listed = True
            self.world.ready.append(self)

    def again(self) -> None:
        """What kept it from going on is over."""
        if self.items and not self.listed:
            self.listed = True
            self.world.ready.append(self)
