"""Results as JSON lines in a directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from headrace.connect.sink import SinkContext, Staged, When
from headrace.connect.writing.jsonrows import json_lines
from headrace.connect.writing.staging import (
    STAGING,
    check_when,
    discard_live,
    discard_staging,
    live_path,
    publish_parts,
    refuse_older_results,
    staged_path,
    sync_file,
)
from headrace.tokens import Token

SUFFIX = ".jsonl"


def jsonl(directory: str | Path, *, when: When = "on_commit") -> JsonLines:
    """A sink of JSON lines: ``part-<epoch>-<subtask>.jsonl`` in ``directory``, which is the sink's alone.

    ``on_commit``: files appear complete, exactly once, when their epoch is committed. ``as_produced``:
    each row is at once in ``live-<attempt>-<subtask>.jsonl``, which takes its final name at commit and
    disappears if the attempt failed.

    Times are written as ISO-8601 in UTC, bytes as base64, NaN as null.

    >>> jsonl("out/").when
    'on_commit'
    """
    return JsonLines(Path(directory).resolve(), check_when(when, "jsonl"))


@dataclass(frozen=True, slots=True)
class JsonLines:
    """Description of a JSON lines sink; made by `jsonl`."""

    directory: Path
    when: When = "on_commit"

    def open(self, context: SinkContext) -> JsonWriter:
        refuse_older_results(self.directory, context, SUFFIX)
        if self.when == "on_commit":
            return JsonWriter(context.step, staged_path(context, SUFFIX))
        return JsonWriter(context.step, live_path(self.directory, context, SUFFIX), at_once=True)

    def staging_root(self, checkpoint: Path) -> Path:
        return self.directory / STAGING

    def publish(self, token: Token, staged: Sequence[Staged]) -> None:
        publish_parts(self.directory, token, staged, SUFFIX)

    def discard(self, keep: Callable[[Token], bool]) -> None:
        discard_staging(self.directory / STAGING, keep)
        discard_live(self.directory, keep)

    def describe(self) -> str:
        return f"JSON lines in {self.directory}, {self.when}"


class JsonWriter:
    """Writes one file, made with the first row; ``at_once`` hands each batch to the system before returning."""

    def __init__(self, step: str, path: Path, *, at_once: bool = False) -> None:
        self._step, self._path, self._at_once = step, path, at_once
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
        if self._at_once:
            self._file.flush()

    def close(self) -> Sequence[Staged]:
        if self._file is None:
            return ()
        self._file.close()
        self._file = None
        sync_file(self._path)
        return (Staged(self._step, str(self._path), self._rows),)
