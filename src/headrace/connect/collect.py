"""Results kept as Arrow files, for a caller that wants them back as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.connect.sink import SinkContext, Staged, When
from headrace.connect.writing.staging import (
    STAGING,
    discard_staging,
    publish_parts,
    refuse_older_results,
    staged_path,
    sync_file,
)
from headrace.tokens import Token

SUFFIX = ".arrow"


def rows() -> CollectHere:
    """A sink whose committed rows ``handle.rows(name)`` returns (Spark: the memory sink, but it survives restarts).

    They are kept in files under the checkpoint.

    >>> rows().describe()
    'kept for handle.rows()'
    """
    return CollectHere()


def collect_sink(directory: str | Path) -> Collect:
    """A sink that keeps results for `read_collected`; rows are there when their epoch is committed.

    >>> collect_sink("collected").when
    'on_commit'
    """
    return Collect(Path(directory).resolve())


def read_collected(directory: str | Path) -> pa.Table:
    """All collected rows in order of epoch and subtask; a table without columns if there are none.

    >>> read_collected("nothing-here").num_rows
    0
    """
    parts = sorted(Path(directory).glob(f"part-*{SUFFIX}"))
    tables = [read_arrow(part) for part in parts]
    return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})


def read_arrow(path: Path) -> pa.Table:
    """The rows of one Arrow IPC file."""
    with pa.OSFile(str(path), "rb") as file, pa.ipc.open_file(file) as reader:
        return reader.read_all()


@dataclass(frozen=True, slots=True)
class Collect:
    """Description of a collecting sink; made by `collect_sink`."""

    directory: Path
    when: When = "on_commit"

    def open(self, context: SinkContext) -> ArrowWriter:
        refuse_older_results(self.directory, context, SUFFIX)
        return ArrowWriter(context.step, staged_path(context, SUFFIX))

    def staging_root(self, checkpoint: Path) -> Path:
        return self.directory / STAGING

    def publish(self, token: Token, staged: Sequence[Staged]) -> None:
        publish_parts(self.directory, token, staged, SUFFIX)

    def discard(self, keep: Callable[[Token], bool]) -> None:
        discard_staging(self.directory / STAGING, keep)

    def describe(self) -> str:
        return f"collected in {self.directory}, {self.when}"


@dataclass(frozen=True, slots=True)
class CollectHere:
    """A collecting sink whose place the run decides: under its checkpoint; made by `rows`."""

    when: When = "on_commit"

    def open(self, context: SinkContext) -> ArrowWriter:
        raise NotImplementedError("the plan replaces this sink by one with a directory")

    def staging_root(self, checkpoint: Path) -> Path:
        return checkpoint / STAGING

    def publish(self, token: Token, staged: Sequence[Staged]) -> None:
        raise NotImplementedError("the plan replaces this sink by one with a directory")

    def discard(self, keep: Callable[[Token], bool]) -> None:
        """Nothing was ever staged."""

    def describe(self) -> str:
        return "kept for handle.rows()"


class ArrowWriter:
    """Writes one Arrow IPC file, made with the first row."""

    def __init__(self, step: str, path: Path) -> None:
        self._step, self._path = step, path
        self._file: pa.OSFile = None
        self._writer: pa.ipc.RecordBatchFileWriter = None
        self._rows = 0

    def write(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = pa.OSFile(str(self._path), "wb")
            self._writer = pa.ipc.new_file(self._file, rows.schema)
        self._writer.write_batch(rows)
        self._rows += rows.num_rows

    def close(self) -> Sequence[Staged]:
        if self._writer is None:
            return ()
        self._writer.close()
        self._file.close()
        self._writer = self._file = None
        sync_file(self._path)
        return (Staged(self._step, str(self._path), self._rows),)
