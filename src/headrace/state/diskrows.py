"""Rows that do not fit in memory: files by pane and bucket, appended in order, read back whole.

The files are node-local and never the truth: what they hold is part of the step's changes like rows
in memory, so a checkpoint has it too and a restart writes the files anew. Each write is one block
with its length and checksum; writes are sequential and go through one buffer of bounded size.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa

from headrace.errors import CorruptionError, StateError
from headrace.state.changes import (
    ID_BYTES,
    ID_COLUMNS,
    PANE,
    ZERO_DIGEST,
    Change,
    Digest,
    Pending,
    no_ids,
    pane_batch,
    plus,
    split_by_slice,
    total,
)
from headrace.state.hashing import U64, row_stamps

SLICE = "__slice"
_HOME = "headrace-spill-"
_HEADER = struct.Struct("<II")
_READS_PER_BUFFER = 4
Buckets = npt.NDArray[np.int64]
Slices = npt.NDArray[np.uint16]
File = tuple[int, int]
"""Pane and bucket."""


def spill_home() -> Path:
    """This process's directory for what does not fit in memory; those of processes that died are removed."""
    root = Path(tempfile.gettempdir()) / f"{_HOME}{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    for path in root.iterdir():
        if path.name.isdigit() and not psutil.pid_exists(int(path.name)):
            shutil.rmtree(path, ignore_errors=True)
    return root / str(os.getpid())


def _closed(rows: pa.RecordBatch) -> npt.NDArray[Any]:
    raise StateError(f"{rows.num_rows} rows came for files that were removed")


@dataclass(frozen=True, slots=True)
class _Block:
    file: File
    offset: int
    length: int


class DiskRows:
    """Rows of ``schema`` (which has a pane column) by pane and bucket; a step's store like any other.

    ``bucket_of`` and ``slice_of`` tell the bucket and the slice of each row. A row's identity is its slice and
    a counter. Slices are asked for when changes are: most rows of a window are gone by then.
    """

    def __init__(
        self,
        schema: pa.Schema,
        bucket_of: Callable[[pa.RecordBatch], Buckets],
        slice_of: Callable[[pa.RecordBatch], Slices],
        directory: Path,
        buffer_bytes: int,
    ) -> None:
        self._schema, self._bucket_of, self._slice_of, self._buffer_bytes = schema, bucket_of, slice_of, buffer_bytes
        self._file_schema = pa.schema([*schema, (ID_COLUMNS[1], pa.uint64())])
        self._stored_schema = pa.schema([*schema, (SLICE, pa.uint16()), *((name, pa.uint64()) for name in ID_COLUMNS)])
        self._parent = directory
        self._directory: Path | None = None  # until there is something to write
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._pending_panes: set[int] = set()
        self._sizes: dict[File, int] = {}
        self._new: list[_Block] = []
        self._ended: list[int] = []
        self._digests: dict[int, Digest] = {}
        self._pane_digests: dict[tuple[int, int], Digest] = {}
        self._next = 1
        self.written_bytes = self.read_bytes = self.rows_added = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Keep rows; they may stay in the buffer for a while."""
        n = rows.num_rows
        if not n:
            return
        counter = np.arange(self._next, self._next + n, dtype=np.uint64)
        self._next += n
        self.rows_added += n
        kept = pa.RecordBatch.from_arrays([*rows.columns, pa.array(counter)], schema=self._file_schema)
        self._pending.append(kept)
        self._pending_bytes += kept.nbytes
        self._pending_panes.update(np.unique(rows.column(PANE).to_numpy()).tolist())
        if self._pending_bytes >= self._buffer_bytes:
            self._flush()

    def panes(self) -> list[int]:
        """Panes that have rows here, ascending."""
        return sorted({pane for pane, _ in self._sizes} | self._pending_panes)

    def size_of(self, pane: int, bucket: int) -> int:
        """Bytes of a bucket on disk."""
        self._flush()
        return self._sizes.get((pane, bucket), 0)

    def read(self, pane: int, bucket: int) -> Iterator[pa.RecordBatch]:
        """A bucket's rows in the order in which they came, some blocks at a time: much less than the buffer holds."""
        self._flush()
        size = self._sizes.get((pane, bucket), 0)
        if not size:
            return
        blocks: list[pa.RecordBatch] = []
        with self._path((pane, bucket)).open("rb") as file:
            start = 0
            while start < size:
                blocks.append(self._read_block(file).select(self._schema.names))
                if file.tell() == size or file.tell() - start >= self._buffer_bytes // _READS_PER_BUFFER:
                    yield pa.concat_batches(blocks)
                    blocks, start = [], file.tell()

    def drop(self, pane: int) -> None:
        """Forget a pane."""
        self._flush()
        gone = {file for file in self._sizes if file[0] == pane}
        if not gone:
            return
        for file in gone:
            self._path(file).unlink()
            del self._sizes[file]
        self._new = [block for block in self._new if block.file not in gone]
        if any(of == pane for _, of in self._pane_digests):
            self._ended.append(pane)

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self._pending_bytes

    def swap(self) -> Pending:
        changes = self.changes()
        return lambda: changes

    def dirty_bytes(self) -> int:
        return self._pending_bytes + sum(block.length for block in self._new) + ID_BYTES * len(self._ended)

    def changes(self) -> list[Change]:
        self._flush()
        deletes = self._bury()
        fresh = [self._reread(block) for block in self._new]
        self._new.clear()
        rows = self._with_slices(pa.concat_batches(fresh)) if fresh else self._empty()
        by_slice = dict(split_by_slice(rows.column(SLICE).to_numpy()))
        self._stamp(rows, by_slice)
        return [
            Change(
                slice,
                rows.take(pa.array(by_slice[slice])) if slice in by_slice else self._empty(),
                pane_batch(deletes[slice]) if slice in deletes else no_ids(),
                self._digests[slice],
            )
            for slice in sorted(by_slice.keys() | deletes.keys())
        ]

    def load(self, slice: int, image: pa.RecordBatch, digest: Digest) -> None:
        self._digests[slice] = digest
        if not image.num_rows:
            return
        self._flush()
        known = len(self._new)
        self._pending.append(image.select(self._file_schema.names))
        self._flush()
        del self._new[known:]
        self._next = max(self._next, int(image.column(ID_COLUMNS[1]).to_numpy().max()) + 1)
        self._add_pane_digests(slice, image.column(PANE).to_numpy(), row_stamps(image))

    def close(self) -> None:
        """Remove the files, and the process's own directory with the last of them."""
        # These lead back to the table that owns this, whose memory is needed at once and not when circles are found.
        self._bucket_of = self._slice_of = _closed
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            if self._parent.parent.name.startswith(_HOME):
                with suppress(OSError):  # others may still be in use
                    self._parent.rmdir()
                    self._parent.parent.rmdir()

    def _flush(self) -> None:
        if not self._pending:
            return
        rows = pa.concat_batches(self._pending)
        self._pending, self._pending_bytes, self._pending_panes = [], 0, set()
        buckets, panes = self._bucket_of(rows), rows.column(PANE).to_numpy()
        order = np.lexsort((buckets, panes))
        ordered = rows.take(pa.array(order))
        buckets, panes = buckets[order], panes[order]
        heads = np.flatnonzero(np.concatenate(([True], (buckets[1:] != buckets[:-1]) | (panes[1:] != panes[:-1]))))
        tails = [*heads[1:].tolist(), len(order)]
        for head, tail in zip(heads.tolist(), tails):
            self._append((int(panes[head]), int(buckets[head])), ordered.slice(head, tail - head))

    def _append(self, file: File, rows: pa.RecordBatch) -> None:
        body = rows.serialize()
        block = b"".join((_HEADER.pack(body.size, zlib.crc32(body)), body))
        with self._path(file).open("ab") as out:
            out.write(block)
        at = self._sizes.get(file, 0)
        self._sizes[file] = at + len(block)
        self._new.append(_Block(file, at, len(block)))
        self.written_bytes += len(block)

    def _read_block(self, file: object) -> pa.RecordBatch:
        header = file.read(_HEADER.size)  # type: ignore[attr-defined]
        size, crc = _HEADER.unpack(header) if len(header) == _HEADER.size else (0, -1)
        body = file.read(size)  # type: ignore[attr-defined]
        if len(body) != size or zlib.crc32(body) != crc:
            name = file.name  # type: ignore[attr-defined]
            raise CorruptionError(f"{name} has changed since it was written: a block's checksum differs")
        self.read_bytes += len(header) + size
        return pa.ipc.read_record_batch(pa.py_buffer(body), self._file_schema)

    def _reread(self, block: _Block) -> pa.RecordBatch:
        with self._path(block.file).open("rb") as file:
            file.seek(block.offset)
            return self._read_block(file)

    def _path(self, file: File) -> Path:
        if self._directory is None:
            self._parent.mkdir(parents=True, exist_ok=True)
            self._directory = Path(tempfile.mkdtemp(prefix="rows-", dir=self._parent))
        return self._directory / f"{file[0]}-{file[1]:04d}.rows"

    def _with_slices(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        slices, counter = self._slice_of(rows), rows.columns[-1]
        columns = [*rows.columns[:-1], pa.array(slices), pa.array(slices.astype(np.uint64)), counter]
        return pa.RecordBatch.from_arrays(columns, schema=self._stored_schema)

    def _empty(self) -> pa.RecordBatch:
        arrays = [pa.array([], field.type) for field in self._stored_schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._stored_schema)

    def _stamp(self, rows: pa.RecordBatch, by_slice: dict[int, npt.NDArray[np.int64]]) -> None:
        """Add the rows to the digests."""
        if not rows.num_rows:
            return
        stamps, panes = row_stamps(rows), rows.column(PANE).to_numpy()
        for slice, at in by_slice.items():
            mine = stamps[0][at], stamps[1][at]
            self._digests[slice] = plus(self._digests.get(slice, ZERO_DIGEST), total(mine))
            self._add_pane_digests(slice, panes[at], mine)

    def _add_pane_digests(self, slice: int, panes: npt.NDArray[np.int64], stamps: tuple[U64, U64]) -> None:
        for pane in np.unique(panes).tolist():
            of_pane = panes == pane
            key = (slice, pane)
            before = self._pane_digests.get(key, ZERO_DIGEST)
            self._pane_digests[key] = plus(before, total((stamps[0][of_pane], stamps[1][of_pane])))

    def _bury(self) -> dict[int, list[int]]:
        """Take ended panes out of the digests; per slice, the panes to delete."""
        deletes: dict[int, list[int]] = {}
        ended = set(self._ended)
        for slice, pane in [key for key in self._pane_digests if key[1] in ended]:
            gone = self._pane_digests.pop((slice, pane))
            self._digests[slice] = plus(self._digests.get(slice, ZERO_DIGEST), gone, -1)
            deletes.setdefault(slice, []).append(pane)
        self._ended.clear()
        return deletes
