"""Published rows collected into larger files, for formats that can be read only when they are complete.

The staged rows of logged cuts wait beside the results until enough of them are there, or the oldest has waited long
enough. Then they are written into one file, the note says so, and a rename makes it visible: a crash before the note
makes the file again, a crash after it repeats the rename, and a rename that finds nothing was done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from headrace.connect.sink import Staged
from headrace.connect.writing.arrows import ARROW, arrow_schema
from headrace.connect.writing.notes import publishing, put_note, read_note
from headrace.connect.writing.rolling import ROLL_BYTES, now_us
from headrace.connect.writing.staging import (
    KEPT,
    STAGING,
    Piece,
    is_newer,
    move_pieces,
    origin_of,
    pieces_of,
    remove_pieces,
    sync_directory,
)
from headrace.tokens import Token

Merge = Callable[[Sequence[Path], Path], None]
"""Write the rows of Arrow files of one schema into a new file, durably."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Up to ``token`` all is published or ``waiting``, in order; ``merged`` is the last file that was made of such."""

    token: Token | None = None
    waiting: tuple[str, ...] = ()
    waiting_bytes: int = 0
    since_us: int = 0
    merged: str = ""


@dataclass(frozen=True, slots=True)
class Gathering:
    """Files of one sink: rows wait for ``roll_s`` at most, as long as cuts are published."""

    directory: Path
    suffix: str
    roll_s: float
    merge: Merge

    def publish(self, token: Token, staged: Sequence[Staged]) -> None:
        """Let a cut's rows wait, and publish what has waited long enough; complete files are published at once."""
        if not staged and self._is_idle(read_note(self.directory, Pending)):
            return
        with publishing(self.directory):
            note = self._shown(read_note(self.directory, Pending))
            pieces = pieces_of(self.directory / STAGING, token, staged, [self.suffix, ARROW])
            if pieces and is_newer(token, note.token):
                note = self._take(note, token, pieces)
            remove_pieces(pieces)
            if note.waiting_bytes >= ROLL_BYTES or now_us() - note.since_us >= self.roll_s * 1e6:
                self._publish_waiting(note)

    def settle(self) -> None:
        """Publish all that waits."""
        if self.directory.is_dir():
            with publishing(self.directory):
                self._publish_waiting(self._shown(read_note(self.directory, Pending)))

    def _is_idle(self, note: Pending) -> bool:
        return not note.waiting and not (note.merged and (self.directory / KEPT / note.merged).exists())

    def _take(self, note: Pending, token: Token, pieces: Sequence[Piece]) -> Pending:
        kept, complete = self.directory / KEPT, [piece for piece in pieces if piece.path.suffix == self.suffix]
        if complete:  # what waits goes first, so that files in order of their names have rows in order of cuts
            note = self._publish_waiting(note)
            move_pieces(complete, self.directory)
        arrows = [piece for piece in pieces if piece.path.suffix == ARROW]
        move_pieces(arrows, kept)
        note = Pending(
            token,
            (*note.waiting, *(piece.name for piece in arrows)),
            note.waiting_bytes + sum((kept / piece.name).stat().st_size for piece in arrows),
            note.since_us if note.waiting else now_us(),
            note.merged,
        )
        put_note(self.directory, note)
        return note

    def _publish_waiting(self, note: Pending) -> Pending:
        """One file, or one for each schema: a job that was changed may produce other columns."""
        kept = self.directory / KEPT
        while note.waiting:
            alike = _alike([kept / name for name in note.waiting])
            first = origin_of(note.waiting[0])
            assert first is not None, note
            merged = f"part-{first[0]}{self.suffix}"
            self.merge(alike, kept / merged)
            rest = note.waiting[len(alike) :]
            note = replace(note, waiting=rest, waiting_bytes=note.waiting_bytes if rest else 0, merged=merged)
            put_note(self.directory, note)
            self._shown(note)
        return note

    def _shown(self, note: Pending) -> Pending:
        """See that the file of which the note speaks is visible, and that what it was made of is gone."""
        kept = self.directory / KEPT
        if note.merged and (kept / note.merged).exists():
            (kept / note.merged).rename(self.directory / note.merged)
            sync_directory(self.directory)
        for path in kept.glob(f"part-*{ARROW}"):
            origin = origin_of(path.name)
            # Later ones were moved here by a publication that did not come to its note.
            if origin is not None and path.name not in note.waiting and not is_newer(origin[0], note.token):
                path.unlink()
        return note


def _alike(paths: Sequence[Path]) -> list[Path]:
    """The first files, as many as have the columns of the very first."""
    schema = arrow_schema(paths[0])
    return [*takewhile(lambda path: arrow_schema(path).equals(schema), paths)]
