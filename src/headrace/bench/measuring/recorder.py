"""A sink for measuring: notes, for every result, when it was handed over."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Table = dict[str, npt.NDArray[np.int64]]
_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Recorder:
    """A callback that appends whole-number columns and the time to a file of its process."""

    directory: Path
    columns: tuple[str, ...]

    def __call__(self, rows: pa.RecordBatch) -> None:
        now_us = time.time_ns() // 1000
        block = np.empty((rows.num_rows, len(self.columns) + 1), np.int64)
        block[:, 0] = now_us
        for i, name in enumerate(self.columns, 1):
            block[:, i] = rows.column(name).to_numpy(zero_copy_only=False)
        with (self.directory / f"{os.getpid()}.bin").open("ab") as file:
            file.write(block.tobytes())

    def read(self) -> Table:
        """Everything recorded, as columns; ``now_us`` is the time of handing over."""
        width = len(self.columns) + 1
        parts = [np.fromfile(path, np.int64) for path in sorted(self.directory.glob("*.bin"))]
        data = np.concatenate(parts).reshape(-1, width) if parts else np.zeros((0, width), np.int64)
        return {name: data[:, i] for i, name in enumerate(("now_us", *self.columns))}


@contextmanager
def recording(columns: tuple[str, ...]) -> Iterator[Recorder]:
    """A recorder whose files are in memory where there is such a place.

    On the disk that checkpoints are synced to, its own writes would wait for that disk now and then, and
    what is measured would be the recorder.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=_MEMORY if _MEMORY.is_dir() else None) as work:
        yield Recorder(Path(work), columns)
