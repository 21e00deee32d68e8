"""Results kept as Arrow files, for a caller that wants them back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.connect.sink import Keep, SinkContext, Staged, When
from headrace.connect.writing.arrows import ARROW, ArrowWriter, read_arrow
from headrace.connect.writing.notes import claim_directory, read_note
from headrace.connect.writing.rolling import Rolled, append_staged
from headrace.connect.writing.staging import STAGING, discard_staging, is_newer, origin_of, staged_path
from headrace.tokens import Token

# Nobody waits for these files to be complete; they roll by size.
_ROLL_S = 86_400.0


def rows() -> CollectHere:
    """A sink whose committed rows ``handle.rows(name)`` returns (Spark: the memory sink, but it survives restarts).

    They are kept in files under the checkpoint.

    >>> rows().describe()
    'kept for handle.rows()'
    """
    return CollectHere()


def collect_sink(directory: str | Path) -> Collect:
    """A sink that keeps results for `read_collected`; rows are there when their cut is logged.

    >>> collect_sink("collected").when
    'on_commit'
    """
    return Collect(Path(directory).resolve())


def read_collected(directory: str | Path) -> list[dict[str, Any]]:
    """All collected rows in order of cut and subtask, each with all columns that any has.

    A job that was changed on its checkpoint may have put out other columns, or other types, before.

    >>> read_collected("nothing-here")
    []
    """
    batches = list(_batches(Path(directory)))
    columns = dict.fromkeys(name for batch in batches for name in batch.schema.names)
    return [columns | row for batch in batches for row in batch.to_pylist()]


def _batches(directory: Path) -> Iterator[pa.RecordBatch]:
    """What the note says is published: a publication under way may have written more."""
    note = read_note(directory, Rolled)
    for path in sorted(directory.glob(f"part-*{ARROW}")):
        origin = origin_of(path.name)
        if origin is not None and note.token is not None and not is_newer(origin[0], note.token):
            yield from read_arrow(path, note.length if path.name == note.file else None)


@dataclass(frozen=True, slots=True)
class Collect:
    """Description of a collecting sink; made by `collect_sink`."""

    directory: Path
    when: When = "on_commit"

    def claim(self, owner: str) -> None:
        claim_directory(self.directory, owner)

    def open(self, context: SinkContext) -> ArrowWriter:
        return ArrowWriter(context.step, staged_path(context, ARROW))

    def staging_root(self, checkpoint: Path) -> Path:
        return self.directory / STAGING

    def publish(self, token: Token, staged: Sequence[Staged]) -> None:
        append_staged(self.directory, token, staged, suffix=ARROW, roll_s=_ROLL_S)

    def settle(self) -> None:
        """Nothing waits."""

    def discard(self, keep: Keep) -> None:
        discard_staging(self.directory / STAGING, keep)

    def describe(self) -> str:
        return f"collected in {self.directory}, {self.when}"


@dataclass(frozen=True, slots=True)
class CollectHere:
    """A collecting sink whose place the run decides: under its checkpoint; made by `rows`."""

    when: When = "on_commit"

    def claim(self, owner: str) -> None:
        raise NotImplementedError("the plan replaces this sink by one with a directory")

    def open(self, context: SinkContext) -> ArrowWriter:
        raise NotImplementedError("the plan replaces this sink by one with a directory")

    def staging_root(self, checkpoint: Path) -> Path:
        return checkpoint / STAGING

    def publish(self, token: Token, staged: Sequence[Staged]) -> None:
        raise NotImplementedError("the plan replaces this sink by one with a directory")

    def settle(self) -> None:
        """Nothing was ever published."""

    def discard(self, keep: Keep) -> None:
        """Nothing was ever staged."""

    def describe(self) -> str:
        return "kept for handle.rows()"
