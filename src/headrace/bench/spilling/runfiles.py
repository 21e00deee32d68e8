"""Sorted runs on disk, with every byte and request counted.

A run is a file of blocks, each one Arrow record batch of partials: key, count, sum. Where its blocks
lie is kept in memory; a read of neighbouring blocks is one request, as is one write.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyarrow as pa


@dataclass(slots=True)
class IoCount:
    """Bytes and requests so far, both ways."""

    written_bytes: int = 0
    read_bytes: int = 0
    writes: int = 0
    reads: int = 0

    @property
    def moved_bytes(self) -> int:
        return self.written_bytes + self.read_bytes

    @property
    def requests(self) -> int:
        return self.writes + self.reads


@dataclass(frozen=True, slots=True)
class SortedRun:
    """A finished run; block ``i`` ends at byte ``ends[i]`` of its file."""

    path: Path
    schema: pa.Schema
    ends: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return self.ends[-1] if self.ends else 0


class RunWriter:
    """Writes one run; blocks are held back until ``buffer_bytes`` of them make one request."""

    def __init__(self, path: Path, schema: pa.Schema, buffer_bytes: float, io: IoCount) -> None:
        self._path, self._schema, self._buffer_bytes, self._io = path, schema, buffer_bytes, io
        self._file: IO[bytes] = path.open("wb", buffering=0)
        self._held: list[pa.Buffer] = []
        self._held_bytes = 0
        self._ends: list[int] = []

    def write(self, block: pa.RecordBatch) -> None:
        encoded = block.serialize()
        self._held.append(encoded)
        self._held_bytes += encoded.size
        self._ends.append((self._ends[-1] if self._ends else 0) + encoded.size)
        if self._held_bytes >= self._buffer_bytes:
            self._flush()

    def close(self) -> SortedRun:
        self._flush()
        self._file.close()
        return SortedRun(self._path, self._schema, tuple(self._ends))

    def _flush(self) -> None:
        if self._held:
            self._file.write(b"".join(self._held))
            self._io.written_bytes += self._held_bytes
            self._io.writes += 1
            self._held, self._held_bytes = [], 0


def read_run(run: SortedRun, buffer_bytes: int, io: IoCount) -> Iterator[pa.RecordBatch]:
    """The run in batches of as many whole blocks as ``buffer_bytes`` hold, but at least one."""
    with run.path.open("rb", buffering=0) as file:
        first, start = 0, 0
        while first < len(run.ends):
            last = first
            while last + 1 < len(run.ends) and run.ends[last + 1] - start <= buffer_bytes:
                last += 1
            data = pa.py_buffer(file.read(run.ends[last] - start))
            io.read_bytes += data.size
            io.reads += 1
            yield _decoded(data, run, range(first, last + 1), start)
            first, start = last + 1, run.ends[last]


def _decoded(data: pa.Buffer, run: SortedRun, blocks: range, start: int) -> pa.RecordBatch:
    batches = []
    for i in blocks:
        begin = (run.ends[i - 1] if i else 0) - start
        batches.append(pa.ipc.read_record_batch(data.slice(begin, run.ends[i] - start - begin), run.schema))
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
