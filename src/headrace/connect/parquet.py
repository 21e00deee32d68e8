"""Results as Parquet files in a directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.connect.sink import Keep, SinkContext, Staged, When
from headrace.connect.writing.arrows import ARROW, ArrowWriter, read_arrow
from headrace.connect.writing.gathering import Gathering
from headrace.connect.writing.notes import claim_directory
from headrace.connect.writing.rolling import ROLL_BYTES
from headrace.connect.writing.staging import STAGING, check_when, discard_staging, staged_path, sync_file
from headrace.errors import ConfigError
from headrace.tokens import Token
from headrace.units import Duration, duration_s, in_words

SUFFIX = ".parquet"
# Results come in small batches; a row group of its own for each would make the file slow to read.
_GROUP_ROWS = 65_536
_GROUP_BYTES = 16_000_000


def parquet(directory: str | Path, *, when: When = "on_commit", roll: Duration = "1 min") -> Parquet:
    """A sink of Parquet files: ``part-<first cut>.parquet`` in ``directory``, which is the sink's alone.

    Files appear complete, and each row exactly once. To make few files, rows of logged cuts are collected for
    ``roll``: they are visible that much later, or when 64 MB are there, or when the job ends. What one subtask produces
    between two cuts is a file of its own from 64 MB on. A Parquet file can be read only when it is complete, so
    ``as_produced`` is refused.

    >>> parquet("out/", roll="10 s").roll_s
    10.0
    """
    if check_when(when, "parquet") == "as_produced":
        raise ConfigError("parquet: a Parquet file cannot be read before it is complete; use when='on_commit' or jsonl")
    return Parquet(Path(directory).resolve(), roll_s=duration_s(roll, "parquet: roll"))


@dataclass(frozen=True, slots=True)
class Parquet:
    """Description of a Parquet sink; made by `parquet`."""

    directory: Path
    when: When = "on_commit"
    roll_s: float = 60.0

    def claim(self, owner: str) -> None:
        claim_directory(self.directory, owner)

    def open(self, context: SinkContext) -> ParquetStager:
        return ParquetStager(context)

    def staging_root(self, checkpoint: Path) -> Path:
        return self.directory / STAGING

    def publish(self, token: Token, staged: Sequence[Staged]) -> None:
        self._files.publish(token, staged)

    def settle(self) -> None:
        self._files.settle()

    def discard(self, keep: Keep) -> None:
        discard_staging(self.directory / STAGING, keep)

    def describe(self) -> str:
        return f"Parquet files in {self.directory}, {self.when}, a file every {in_words(self.roll_s)}"

    @property
    def _files(self) -> Gathering:
        return Gathering(self.directory, SUFFIX, self.roll_s, write_parquet)


def write_parquet(arrows: Sequence[Path], path: Path) -> None:
    """Write the rows of Arrow files of one schema into a Parquet file, durably."""
    writer = ParquetWriter("", path)
    for arrow in arrows:
        for batch in read_arrow(arrow):
            writer.write(batch)
    writer.close()


class ParquetStager:
    """Stages rows as an Arrow file, to be collected, or as a Parquet file if they are many: it is worth being one."""

    def __init__(self, context: SinkContext) -> None:
        self._arrow = staged_path(context, ARROW)
        self._few: ArrowWriter | None = ArrowWriter(context.step, self._arrow)
        self._many = ParquetWriter(context.step, staged_path(context, SUFFIX))

    def write(self, rows: pa.RecordBatch) -> None:
        if self._few is None:
            self._many.write(rows)
            return
        self._few.write(rows)
        if self._few.size >= ROLL_BYTES:
            self._few.close()
            self._few = None
            for batch in read_arrow(self._arrow):
                self._many.write(batch)
            self._arrow.unlink()

    def close(self) -> Sequence[Staged]:
        return self._many.close() if self._few is None else self._few.close()


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
