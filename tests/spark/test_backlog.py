"""How far sources run ahead of those who cannot keep up, on real Spark."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr

TOTAL, RECORD_BYTES = 12_000_000, 32
BOUND_BYTES = 150_000_000
"""Far more than all queues on the way have room for, and less than half of what there is to read."""
SLOW_BUFFERS, SLOW_S = 8, 1.0
KEYS = 1_000_003
"""So many that no two records of a buffer have the same: nothing is combined on the way."""


@dataclass(frozen=True, slots=True)
class Counter:
    """Rows that workers have had, in a file of each."""

    directory: Path
    name: str

    def add(self, rows: int) -> None:
        with (self.directory / f"{self.name}-{os.getpid()}").open("ab") as file:
            file.write(np.int64(rows).tobytes())

    @property
    def added(self) -> list[int]:
        """The rows of each call so far."""
        return [int(n) for path in self.directory.glob(f"{self.name}-*") for n in np.fromfile(path, np.int64)]


# A burst without cuts took the JVM's memory: Spark counts a row of any size as one network buffer.
def test_sources_do_not_run_away_from_slow_receivers(spark: Any, tmp_path: Path) -> None:
    made, taken, gate = Counter(tmp_path, "made"), Counter(tmp_path, "taken"), tmp_path / "open"

    def make(numbers: Any) -> dict[str, Any]:
        made.add(len(numbers))
        return {"key": np.asarray(numbers) % KEYS, **dict.fromkeys("abc", numbers)}

    def slowly(rows: pa.RecordBatch) -> None:
        taken.add(rows.num_rows)
        time.sleep(0.0 if gate.exists() else SLOW_S)

    job = hr.Job("backlog")
    rows = job.source("rows", hr.generate(make, total=TOTAL, schema=dict.fromkeys(["key", *"abc"], "int64")))
    latest = rows.key_by("key").reduce(name="latest", n=hr.count(), **{name: hr.last(name) for name in "abc"})
    latest.sink("out", hr.callback(slowly))
    run = hr.start(job, spark=spark, commit="1 h", checkpoint=tmp_path / "checkpoint")
    try:
        furthest = 0
        while len(passed := taken.added) < SLOW_BUFFERS:
            furthest = max(furthest, (sum(made.added) - sum(passed)) * RECORD_BYTES)
            assert not run.wait(0.05), "the job ended before"
        assert 0 < furthest <= BOUND_BYTES
        gate.touch()
        run.wait()
        assert sum(taken.added) == TOTAL
    finally:
        gate.touch()
        run.stop()
