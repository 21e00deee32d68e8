"""Made-up records that come until the experiment says how many there are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.connect.generate import Generate, GenerateReader
from headrace.connect.source import Offset, Poll, Reader


@dataclass(frozen=True, slots=True)
class OpenEnded:
    """``records`` without a total; ``end`` is the file that tells it once it is known. It must not be below what was due."""

    records: Generate
    end: Path

    def end_at(self, total: int) -> None:
        made = self.end.with_suffix(".new")
        made.write_text(str(total))
        made.replace(self.end)

    @property
    def bounded(self) -> bool:
        return False

    @property
    def live(self) -> bool:
        return self.records.live

    def partitions(self, parallelism: int) -> int:
        return self.records.partitions(parallelism)

    def schema(self) -> pa.Schema:
        return self.records.schema()

    def sample(self, rows: int) -> pa.RecordBatch:
        return self.records.sample(rows)

    def open(self, partition: int, of: int, offset: Offset | None, schema: pa.Schema, log_dir: Path) -> Reader:
        return _Reader(self.records.open(partition, of, offset, schema, log_dir), of, self.end)

    def describe(self) -> str:
        return f"{self.records.describe()}, until told"


class _Reader:
    """One partition."""

    def __init__(self, reader: GenerateReader, of: int, end: Path) -> None:
        self._reader, self._of, self._end = reader, of, end
        self._total: int | None = None

    def poll(self, max_rows: int, now_us: int) -> Poll | None:
        left = self._left()
        rows = max_rows if left is None else min(max_rows, left)
        return self._reader.poll(rows, now_us) if rows > 0 else None

    def _left(self) -> int | None:
        if self._total is None and self._end.exists():
            self._total = int(self._end.read_text())
        return None if self._total is None else -((self._reader.offset()["next"] - self._total) // self._of)

    def offset(self) -> Offset:
        return self._reader.offset()

    @property
    def exhausted(self) -> bool:
        left = self._left()
        return left is not None and left <= 0

    def next_due_us(self) -> int | None:
        return None if self.exhausted else self._reader.next_due_us()

    def close(self) -> None:
        self._reader.close()
