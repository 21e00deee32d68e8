"""Two toy sinks, as the product has them: one takes staged files over under names of their own, one overwrites."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.connect.sink import Keep, Staged
from headrace.connect.writing.staging import is_newer
from headrace.errors import CorruptionError
from headrace.tokens import Token
from simulated.disk import Dead
from simulated.job import Result
from simulated.lanes import Violation

if TYPE_CHECKING:
    from simulated.world import World

_NOWHERE = Path("/nowhere/at/all")


class Sinks:
    """What is staged, by path, and what is visible: files in the order in which they came, and a table."""

    steps = ("moved", "kept")

    def __init__(self, world: World) -> None:
        self.world = world
        self.staged: dict[str, tuple[Token, list[Result]]] = {}
        self.files: dict[str, list[Result]] = {}
        self.table: dict[Any, tuple[Token, int]] = {}
        self.version: Token | None = None
        self.by_step = {"moved": Moved(self), "kept": Upserted(self)}

    def path(self, step: str, token: Token, index: int) -> str:
        return f"{step}/{token}/{index}"

    def stage(self, token: Token, index: int, rows: list[Result]) -> None:
        for step in self.steps:
            self.staged[self.path(step, token, index)] = (token, rows)

    def overwrite(self, key: int, token: Token, value: Any) -> None:
        at = self.table.get(key)
        if at is not None and at[0] > token:
            raise Violation(f"I3: {token} overwrites {at[0]} in the table")
        self.table[key] = (token, value)

    def trouble(self) -> None:
        """A sink is somewhere else, too: it may not answer, or late, and who asked may stall meanwhile."""
        world, driver = self.world, self.world.acting
        if driver is None or not world.fails(world.faults.sink):
            return
        kind = world.random()
        if kind < 0.5:
            raise OSError("the sink does not answer")
        if kind < 0.5 + world.faults.stall:
            world.stall(driver)
        else:
            world.nested(int(20 * world.random()))
        if driver.dead:
            raise Dead


class _Sink:
    when = "on_commit"

    def __init__(self, sinks: Sinks) -> None:
        self.sinks = sinks

    def staging_root(self, checkpoint: Path) -> Path:
        return _NOWHERE

    def discard(self, keep: Keep) -> None:
        prefix = f"{self.step}/"
        gone = [path for path, (token, _) in self.sinks.staged.items() if path.startswith(prefix) and not keep(token)]
        for path in gone:
            self.sinks.trouble()
            self.sinks.staged.pop(path, None)

    def settle(self) -> None:
        """Nothing is collected into larger files."""

    step = ""


class Moved(_Sink):
    """As files are renamed: those that are not there have been."""

    step = "moved"

    def publish(self, token: Token, staged: Sequence[Staged]) -> None:
        sinks = self.sinks
        sinks.world.truth.publishing(token)
        for piece in staged:
            sinks.trouble()
            found = sinks.staged.pop(piece.path, None)
            if found is not None:
                assert found[0] == token
                sinks.files[piece.path] = found[1]
                sinks.world.truth.shown(token, piece.path)
            elif piece.path not in sinks.files:
                raise CorruptionError(f"staged file {piece.path} is gone")
        sinks.trouble()


class Upserted(_Sink):
    """As a table is written to: each row has the version that it is of, and an older one is refused."""

    step = "kept"

    def publish(self, token: Token, staged: Sequence[Staged]) -> None:
        sinks = self.sinks
        found = [sinks.staged.get(piece.path) for piece in staged]
        sinks.trouble()
        for rows in found:
            for key, window, n in rows[1] if rows is not None else ():
                self.write(token, key, (window, n))
        sinks.trouble()
        for piece in staged:
            sinks.staged.pop(piece.path, None)

    def write(self, token: Token, key: int, value: Any) -> None:
        at = self.sinks.table.get(key)
        if at is None or is_newer(token, at[0]) or (at[0] == token and at[1] < value):
            self.sinks.overwrite(key, token, value)
