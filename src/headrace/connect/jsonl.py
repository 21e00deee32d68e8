"""Results as JSON lines in a directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from headrace.connect.sink import Keep, SinkContext, Staged, When
from headrace.connect.writing.jsonrows import json_lines
from headrace.connect.writing.live import MARK, LiveWriter, discard_live, log_live, settle_live
from headrace.connect.writing.notes import claim_directory
from headrace.connect.writing.rolling import append_staged
from headrace.connect.writing.staging import STAGING, check_when, discard_staging, staged_path, sync_file
from headrace.tokens import Token
from headrace.units import Duration, duration_s, in_words

SUFFIX = ".jsonl"


def jsonl(directory: str | Path, *, when: When = "on_commit", roll: Duration = "1 h") -> JsonLines:
    """A sink of JSON lines: ``part-<first cut>.jsonl`` in ``directory``, which is the sink's alone.

    ``on_commit``: as soon as a cut is logged its rows are appended to the newest file, each exactly once.
    A new file is begun after ``roll`` or 64 MB, and all but the newest are final. A line counts when its
    newline is there.

    ``as_produced``: each row is at once in ``live-<first cut>-<subtask>.jsonl``, one file per subtask and
    attempt, or 64 MB. When the attempt ends or the file is full it is called ``part-…``, and rows that
    no cut has logged by then disappear.

    Times are written as ISO-8601 in UTC, bytes as base64, NaN as null.

    >>> jsonl("out/").when
    'on_commit'
    """
    return JsonLines(Path(directory).resolve(), check_when(when, "jsonl"), duration_s(roll, "jsonl: roll"))


@dataclass(frozen=True, slots=True)
class JsonLines:
    """Description of a JSON lines sink; made by `jsonl`."""

    directory: Path
    when: When = "on_commit"
    roll_s: float = 3600.0

    def claim(self, owner: str) -> None:
        claim_directory(self.directory, owner)

    def open(self, context: SinkContext) -> JsonWriter | LiveWriter:
        if self.when == "on_commit":
            return JsonWriter(context.step, staged_path(context, SUFFIX))
        return LiveWriter(self.directory, context)

    def staging_root(self, checkpoint: Path) -> Path:
        return self.directory / STAGING

    def publish(self, token: Token, staged: Sequence[Staged]) -> None:
        # By what was staged, not by ``when``: that may have been changed since the cut was made.
        marks = [piece for piece in staged if piece.path.endswith(MARK)]
        rows = [piece for piece in staged if not piece.path.endswith(MARK)]
        log_live(self.directory, token, marks)
        append_staged(self.directory, token, rows, suffix=SUFFIX, roll_s=self.roll_s)

    def settle(self) -> None:
        settle_live(self.directory)

    def discard(self, keep: Keep) -> None:
        discard_staging(self.directory / STAGING, keep)
        discard_live(self.directory, keep)

    def describe(self) -> str:
        rolls = f", a file every {in_words(self.roll_s)}" if self.when == "on_commit" else ""
        return f"JSON lines in {self.directory}, {self.when}{rolls}"


class JsonWriter:
    """Writes one file, made with the first row."""

    def __init__(self, step: str, path: Path) -> None:
        self._step, self._path = step, path
        self._file: BinaryIO | None = None
        self._rows = 0

    def write(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("wb")
        self._file.write(json_lines(rows))
        self._rows += rows.num_rows

    def close(self) -> Sequence[Staged]:
        if self._file is None:
            return ()
        self._file.close()
        self._file = None
        sync_file(self._path)
        return (Staged(self._step, str(self._path), self._rows),)
