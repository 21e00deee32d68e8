"""Results as Parquet files in a directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.connect.sink import SinkContext, Staged, When
from headrace.connect.writing.staging import (
    STAGING,
    check_when,
    discard_staging,
    publish_parts,
    refuse_older_results,
    staged_path,
    sync_file,
)
from headrace.errors import ConfigError
from headrace.tokens import Token

SUFFIX = ".parquet"
# Results come in small batches; a row group of its own for each would make the file slow to read.
_GROUP_ROWS = 65_536
_GROUP_BYTES = 16_000_000


def parquet(directory: str | Path, *, when: When = "on_commit") -> Parquet:
    """A sink of Parquet files: ``part-<epoch>-<subtask>.parquet`` in ``directory``, which is the sink's alone.

    Files appear complete, exactly once, when their epoch is committed. A Parquet file can be read
    only when it is complete, so ``as_produced`` is refused.

    >>> parquet("out/").when
    'on_commit'
    """
    if check_when(when, "parquet") == "as_produced":
        raise ConfigError("parquet: a Parquet file cannot be read before it is complete; use when='on_commit' or jsonl")
    return Parquet(Path(directory).resolve())


@dataclass(frozen=True, slots=True)
class Parquet:
    """Description of a Parquet sink; made by `parquet`."""

    directory: Path
    when: When = "on_commit"

    def open(self, context: SinkContext) -> ParquetWriter:
        refuse_older_results(self.directory, context, SUFFIX)
        return ParquetWriter(context.step, staged_path(context, SUFFIX))

    def staging_root(self, checkpoint: Path) -> Path:
        return self.directory / STAGING

    def publish(self, token: Token, staged: Sequence[Staged]) -> None:
        publish_parts(self.directory, token, staged, SUFFIX)

    def discard(self, keep: Callable[[Token], bool]) -> None:
        discard_staging(self.directory / STAGING, keep)

    def describe(self) -> str:
        return f"Parquet files in {self.directory}, {self.when}"


class ParquetWriter:
    """Writes one file in row groups of at least 64 thousand rows or 16 MB, the last one excepted."""

    def __init__(self, step: str, path: Path) -> None:
        self._step, self._path = step, path
        self._file: pq.ParquetWriter | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = self._rows = 0

    def write(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.get_total_buffer_size()
        if self._waiting_rows >= _GROUP_ROWS or self._waiting_bytes >= _GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        table = pa.Table.from_batches(self._waiting)
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = pq.ParquetWriter(self._path, table.schema)
        self._file.write_table(table)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def close(self) -> Sequence[Staged]:
        if self._waiting:
            self._write_group()
        if self._file is None:
            return ()
        self._file.close()
        self._file = None
        sync_file(self._path)
        return (Staged(self._step, str(self._path), self._rows),)
