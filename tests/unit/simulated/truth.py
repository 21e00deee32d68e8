"""What must be: the invariants of the protocol, checked when something happens that they are about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.driver.protocol.events import Finish
from headrace.errors import FencedError, HeadraceError
from headrace.runtime.ownership import Table
from headrace.runtime.plan import Description, Ticket
from headrace.state.durable.manifest import Manifest, SliceKey
from headrace.state.durable.versionlog import CutEntry, Opened
from headrace.tokens import Attempt, Token
from simulated.job import NEVER, Contents, Result, results_between, state_at, watermark_at
from simulated.lanes import Violation
from simulated.nodes import Anywhere
from simulated.stores import read_contents

if TYPE_CHECKING:
    from simulated.subtask import Subtask
    from simulated.world import World

_TOLD_AGAIN_S = 1.5
"""By then, where nothing is lost any more, everybody has been told again what it was told in vain."""


@dataclass(frozen=True)
class Happened:
    """A cut that is in the log for good."""

    number: int
    manifest: Manifest
    offsets: tuple[int, ...]
    watermark: int
    results: list[Result]


class Truth:
    """``line`` are all cuts that ever were the newest entry of the log, forgotten ones too."""

    def __init__(self, world: World) -> None:
        self.world, self.shape = world, world.shape
        self.line: list[Happened] = []
        self.contents: dict[SliceKey, Contents] = {}
        self.generation = self.newest = 0
        self.strays: set[int] = set()
        self.visible: list[str] = []
        self.at: dict[Token, int] = {}
        self.owners: dict[tuple[Token, int], dict[int, int]] = {}
        self.tables: dict[tuple[Token, int], Table] = {}
        self.seen: dict[Attempt, dict[tuple[int, int, int], int]] = {}
        self.moves = 0
        self.as_produced: list[tuple[Token, Result]] = []

    # The log.

    def created(self, name: str, data: Any) -> None:
        if not name.startswith("log/"):
            return
        number = int(name[4:])
        entry = data[1] if isinstance(data, tuple) else self.world.log.read(number)
        if number < self.newest:
            self.strays.add(number)  # one that was forgotten: whoever took it must find out
            return
        self.newest = number
        if isinstance(entry, Opened):
            if entry.generation != number:
                raise Violation(f"entry {number} was opened by generation {entry.generation}")
            self.generation = number
        else:
            self._logged(number, entry)

    def _logged(self, number: int, entry: CutEntry) -> None:
        manifest = entry.manifest
        before = self.line[-1] if self.line else None
        if manifest.base != (before.manifest.token if before else None):
            raise Violation(f"I1: {manifest.token} stands on {manifest.base}, but the cut before is not that")
        if manifest.token.generation != self.generation:
            raise Violation(f"I1: {manifest.token} was logged after generation {self.generation} had opened")
        self._read(manifest, before.manifest if before else None)
        offsets = tuple(self.contents.get(("s", p), {0: (0,)})[0][0] for p in range(self.shape.partitions))  # type: ignore[index]
        expected = state_at(self.shape, offsets)
        found = {key: contents for key, contents in self.contents.items() if contents}
        if found != expected:
            wrong = sorted(key for key in found.keys() | expected if found.get(key) != expected.get(key))
            raise Violation(
                f"I2: at {manifest.token}, offsets {offsets}, these slices are wrong: {[(key, found.get(key), expected.get(key)) for key in wrong]}"
            )
        watermark = watermark_at(self.shape, offsets)
        results = results_between(self.shape, before.watermark if before else NEVER, watermark)
        self._check_staged(manifest, results)
        self.at[manifest.token] = len(self.line)
        self.line.append(Happened(number, manifest, offsets, watermark, results))

    def _read(self, manifest: Manifest, before: Manifest | None) -> None:
        """What changed since the cut before, as a restart would load it."""
        old = before.slices if before is not None else {}
        if not old.keys() <= manifest.slices.keys():
            raise Violation(f"I2: {manifest.token} has lost slices")
        for key, version in manifest.slices.items():
            if old.get(key) != version:
                self.contents[key] = self._load(manifest.token, key, version)

    def _load(self, token: Token, key: SliceKey, version: Any) -> Contents:
        try:
            return read_contents(Anywhere(self.world, version.blocks), *key, version)
        except HeadraceError as error:
            raise Violation(f"I2: {token} cannot be loaded: {error}") from error

    def _check_staged(self, manifest: Manifest, results: list[Result]) -> None:
        staged: list[Result] = []
        for piece in manifest.staged:
            if piece.step == "moved":
                if piece.path not in self.world.sinks.staged:
                    raise Violation(f"I3: {manifest.token} was logged, but {piece.path} is not staged")
                staged += self.world.sinks.staged[piece.path][1]
        if sorted(staged) != sorted(results):
            raise Violation(f"I3: {manifest.token} staged {sorted(staged)}, not {sorted(results)}")

    def deleted(self, name: str) -> None:
        """Files that the last two cuts need stay, and so do their entries and those of cuts that are not published."""
        last = self.line[-2:]
        if name.startswith("segments/"):
            if any(name in cut.manifest.files for cut in last):
                raise Violation(f"garbage: {name} was removed, but is needed")
            return
        number = int(name[4:])
        if len(last) < 2 or number >= last[0].number:
            raise Violation(f"garbage: entry {number} was forgotten, but the last two cuts are {last}")
        for cut in self.line:
            if cut.number == number and not self.is_visible(cut):
                raise Violation(f"garbage: entry {number} was forgotten before it was published")
        left = {int(entry[4:]) for entry in self.world.disk.folders["log"]} - self.strays
        if number not in self.strays and min(left) < number:
            raise Violation(f"garbage: entry {number} was forgotten before older ones")

    # Results.

    def publishing(self, token: Token) -> None:
        if token not in self.at:
            raise Violation(f"I3: {token} is published, but not logged")

    def shown(self, token: Token, path: str) -> None:
        """Rows became visible: all of the cuts before have to be."""
        for cut in self.line[: self.at[token]]:
            if not self.is_visible(cut):
                raise Violation(f"I3: {token} became visible before {cut.manifest.token}")

    def is_visible(self, cut: Happened) -> bool:
        files = self.world.sinks.files
        return all(piece.path in files for piece in cut.manifest.staged if piece.step == "moved")

    def produced(self, token: Token, row: Result) -> None:
        self.as_produced.append((token, row))

    # Attempts.

    def planned(self, subtask: Subtask, ticket: Ticket) -> None:
        """Who owns what in the first interval."""
        self.owns(ticket.first, subtask.stage, subtask.index, ticket.mine)
        if ticket.table:
            self.routes(ticket.first, subtask.stage + 1, ticket.table)

    def owns(self, token: Token, stage: int, index: int, slices: tuple[int, ...]) -> None:
        """Until that cut. One owner per slice, and all senders know the same one."""
        owners, table = self.owners.setdefault((token, stage), {}), self.tables.get((token, stage))
        for slice in slices:
            if owners.setdefault(slice, index) != index:
                raise Violation(f"I4: slice {slice} of stage {stage} has two owners until {token}")
            if table is not None and table[slice] != index:
                raise Violation(f"I4: rows of slice {slice} go to {table[slice]} until {token}, but {index} owns it")

    def routes(self, token: Token, stage: int, table: Table) -> None:
        """A sender's idea of who owns what until a cut."""
        if self.tables.setdefault((token, stage), table) != table:
            raise Violation(f"I4: senders do not agree who owns what until {token}")

    def describes(self, described: Description) -> None:
        """Only what was one's own until the cut."""
        owners = self.owners.get((described.token, described.stage), {})
        for change in described.changes:
            if owners.get(change.slice) != described.index:
                raise Violation(
                    f"I4: {described.index} describes slice {change.slice}, not its own until {described.token}"
                )

    def seen_in(self, attempt: Attempt) -> dict[tuple[int, int, int], int]:
        """The last row of each stage, sender and slice that somebody has worked on in an attempt: whoever it was."""
        return self.seen.setdefault(attempt, {})

    def not_loaded(self, subtask: Subtask, error: Exception) -> None:
        """Only who was replaced may find nothing, or who cannot reach the only copy that is right."""
        now = subtask.query.driver.machine.attempt
        if self.world.damage.excuses(subtask.ticket.nodes):
            return
        if subtask.ticket.attempt == now and now.generation == self.generation:
            raise Violation(f"garbage: {subtask.place} cannot load its base: {error}")

    def cancelled(self, late: list[Subtask]) -> None:
        """A move is given up where somebody who is to load hangs or is slow, not because a message was lost."""
        since_s = self.world.calm_s
        calm = self.world.calm and self.world.now - since_s > _TOLD_AGAIN_S
        if calm and not any(subtask.is_excused(since_s) for subtask in late):
            raise Violation(f"a move was cancelled although {[one.place for one in late]} have nothing to do")

    def over(self, finish: Finish, generation: int, *, asked: bool) -> None:
        """A run may end for these reasons only."""
        if isinstance(finish.error, FencedError) and "taken over" in str(finish.error):
            if generation and self.generation <= generation:
                raise Violation("a driver believes that it was replaced, but nobody came")
        elif finish.error is not None and not asked and generation in (0, self.generation):
            raise Violation(f"the run was given up: {finish.error}")
        elif finish.state == "stopped" and not asked:
            raise Violation("the run was stopped, but nobody asked for it")
        elif finish.state == "finished" and not any(cut.manifest.exhausted for cut in self.line):
            raise Violation("the run has finished, but the input has not")

    # The end.

    def check_end(self) -> None:
        """All is published, and each row once; rows that were shown as produced are the same."""
        expected = [row for cut in self.line for row in cut.results]
        for cut in self.line:
            if not self.is_visible(cut):
                raise Violation(f"I3: {cut.manifest.token} never became visible")
        sinks = self.world.sinks
        mine = {piece.path for cut in self.line for piece in cut.manifest.staged}
        if strangers := sinks.files.keys() - mine:
            raise Violation(f"I3: {sorted(strangers)} are visible, but of no cut")
        if sorted(row for rows in sinks.files.values() for row in rows) != sorted(expected):
            raise Violation("I3: what is visible is not what must be")
        newest: dict[int, Any] = {}
        for key, window, n in expected:
            newest[key] = max(newest.get(key, (-1, 0)), (window, n))
        if {key: value for key, (_, value) in sinks.table.items()} != newest:
            raise Violation("I3: the table that is overwritten does not have the newest values")
        if sorted(row for token, row in self.as_produced if token in self.at) != sorted(expected):
            raise Violation("I10: what was shown as produced, of logged cuts, is not what must be")
        for cut in self.line[-2:]:
            for key, version in cut.manifest.slices.items():
                self._load(cut.manifest.token, key, version)
