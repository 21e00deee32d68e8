"""The reference for what a cut costs: stop and wait for the snapshot.

A source that hands over nothing from each cut on until that cut is in the version log. So nothing follows the mark:
all that was read is processed, written and logged while the job stands still, which is how a snapshot is taken without
cuts that overtake nothing. It writes what changed, as cuts do; only the waiting differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.connect.source import Offset, Poll, Reader, Source


@dataclass(frozen=True, slots=True)
class StandingStill:
    """Wraps a source of a job whose checkpoint is the given one."""

    source: Source
    checkpoint: Path

    @property
    def bounded(self) -> bool:
        return self.source.bounded

    @property
    def live(self) -> bool:
        return self.source.live

    def partitions(self, parallelism: int) -> int:
        return self.source.partitions(parallelism)

    def schema(self) -> pa.Schema:
        return self.source.schema()

    def sample(self, rows: int) -> pa.RecordBatch:
        return self.source.sample(rows)

    def open(self, partition: int, of: int, offset: Offset | None, schema: pa.Schema, log_dir: Path) -> Reader:
        return StandingReader(self.source.open(partition, of, offset, schema, log_dir), self.checkpoint)

    def describe(self) -> str:
        return f"{self.source.describe()}, standing still at cuts"


class StandingReader:
    """Asked for its offset, which happens at a cut and only then, it waits for the entry that the cut becomes."""

    def __init__(self, reader: Reader, checkpoint: Path) -> None:
        self._reader, self._log = reader, checkpoint / "headrace" / "log"
        self._before: int | None = None

    def poll(self, max_rows: int, now_us: int) -> Poll | None:
        if self._before is not None and newest_entry(self._log) == self._before:
            return None
        self._before = None
        return self._reader.poll(max_rows, now_us)

    def offset(self) -> Offset:
        self._before = newest_entry(self._log)
        return self._reader.offset()

    @property
    def exhausted(self) -> bool:
        return self._reader.exhausted

    def next_due_us(self) -> int | None:
        return self._reader.next_due_us() if self._before is None else None

    def close(self) -> None:
        self._reader.close()


def newest_entry(log: Path) -> int:
    """The number of the newest entry of a version log, 0 if there is none."""
    return max((int(path.name) for path in log.iterdir() if path.name.isdecimal()), default=0)
