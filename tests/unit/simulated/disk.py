"""A checkpoint in memory: what is durable, who reaches it, and what goes wrong on the way.

Objects are kept as they are, not as bytes. Encoding and sums have their own tests (``test_state_log``), and cost more
than all the rest of a world.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.state.durable.versionlog import Entry, VersionLog

if TYPE_CHECKING:
    from simulated.driver import Driver
    from simulated.world import World

Answer = TypeVar("Answer")


class Dead(BaseException):
    """Who did this is no more. Not an ``Exception``: nothing in the product may catch it."""


class Disk:
    """What all see, by folder and name. ``world.truth`` hears of what happens to the log and to segments."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.folders: dict[str, dict[str, Any]] = {"log": {}, "segments": {}, "": {}}

    def put(self, name: str, data: Any) -> None:
        self.folders[name.rpartition("/")[0]][name] = data

    def put_if_absent(self, name: str, data: Any) -> bool:
        folder = self.folders[name.rpartition("/")[0]]
        if name in folder:
            return False
        folder[name] = data
        self.world.truth.created(name, data)
        return True

    def get(self, name: str) -> Any:
        try:
            return self.folders[name.rpartition("/")[0]][name]
        except KeyError:
            raise FileNotFoundError(name) from None

    def get_range(self, name: str, offset: int, length: int) -> Any:
        return self.get(name)[offset : offset + length]

    def names(self, prefix: str) -> list[str]:
        return sorted(self.folders.get(prefix, ()))

    def delete(self, name: str) -> None:
        if self.folders[name.rpartition("/")[0]].pop(name, None) is not None:
            self.world.truth.deleted(name)


class Reach:
    """A driver's way to the disk (``Storage``): slow, broken, or taken in the middle of something."""

    def __init__(self, world: World, driver: Driver) -> None:
        self._world, self._disk, self._driver = world, world.disk, driver

    def put(self, name: str, data: Any) -> None:
        self._do(lambda: self._disk.put(name, data))

    def put_if_absent(self, name: str, data: Any) -> bool:
        return self._do(lambda: self._disk.put_if_absent(name, data), self._world.faults.append, late=True)

    def get(self, name: str) -> Any:
        return self._do(lambda: self._disk.get(name))

    def get_range(self, name: str, offset: int, length: int) -> Any:
        return self._do(lambda: self._disk.get_range(name, offset, length))

    def names(self, prefix: str) -> list[str]:
        return self._do(lambda: self._disk.names(prefix))

    def delete(self, name: str) -> None:
        self._do(lambda: self._disk.delete(name))

    def _do(self, effect: Callable[[], Answer], more: float = 0.0, *, late: bool = False) -> Answer:
        world, driver = self._world, self._driver
        if world.calm or world.random() >= world.faults.disk + more:
            return effect()
        kind = world.random()
        if kind < 0.25:
            raise OSError("the disk does not answer")
        if kind < 0.5:
            if late and world.random() < 0.5:
                world.after(3 * world.random(), effect)
            else:
                effect()
            raise OSError("the answer was lost")
        if kind < 0.56:
            if world.random() < 0.5:
                effect()
            driver.die()
            raise Dead
        first = world.random() < 0.5
        answer = effect() if first else None
        if kind < 0.56 + world.faults.stall:
            world.stall(driver)
        else:
            world.nested(int(world.random() * 40))
        if driver.dead:
            raise Dead
        return answer if first else effect()  # type: ignore[return-value]


class PlainLog(VersionLog):
    """The version log, but for the encoding of its entries."""

    def read(self, number: int) -> Entry:
        written, entry = self._storage.get(f"log/{number:010d}")
        assert written == number
        return entry  # type: ignore[return-value]

    def append(self, number: int, entry: Entry) -> bool:
        return self._storage.put_if_absent(f"log/{number:010d}", (number, entry))  # type: ignore[arg-type]
