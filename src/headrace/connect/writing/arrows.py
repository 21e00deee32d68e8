"""Arrow files of results: one IPC stream after the other, so that files are joined by appending their bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from headrace.connect.sink import Staged
from headrace.connect.writing.staging import sync_file

ARROW = ".arrow"


def read_arrow(path: Path, length: int | None = None) -> Iterator[pa.RecordBatch]:
    """The batches in the first ``length`` bytes of a file, all of it unless given."""
    with pa.OSFile(str(path), "rb") as file:
        end = file.size() if length is None else length
        while file.tell() < end:
            with pa.ipc.open_stream(file) as stream:
                yield from stream


def arrow_schema(path: Path) -> pa.Schema:
    """The schema of a file's first stream."""
    with pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as stream:
        return stream.schema


class ArrowWriter:
    """Writes one Arrow stream, made with the first row; ``size`` is how many bytes it has."""

    def __init__(self, step: str, path: Path) -> None:
        self._step, self._path = step, path
        self._file: pa.OSFile = None
        self._writer: pa.ipc.RecordBatchStreamWriter = None
        self._rows = 0

    @property
    def size(self) -> int:
        return self._file.tell() if self._file is not None else 0

    def write(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = pa.OSFile(str(self._path), "wb")
            self._writer = pa.ipc.new_stream(self._file, rows.schema)
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
