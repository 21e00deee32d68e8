"""Rows that do not fit in memory: files by pane and bucket, appended in order, read back whole.

The files are node-local and never authoritative: what they hold is part of the step's changes like rows
in memory, so a checkpoint has it too and a restart writes the files anew. Writes go through one buffer of
bounded size; each appends one block per bucket, with its checksum.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa

from headrace.errors import CorruptionError, StateError
from headrace.state.durable.changes import (
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
    stamps_of,
    total,
)
from headrace.state.hashing import U64
from headrace.state.spill.blocks import whole_words
from headrace.state.spill.rowwords import row_format
from headrace.state.table.rowtable import nowhere

SLICE = "__slice"
_HOME = "headrace-spill-"
_READS_PER_BUFFER = 8
"""Rows take two to three times as much while they are unpacked, beside tables that fill their share of the memory."""
_MIN_READ_BYTES = 16_384
"""Read at once however small the buffer is: less costs more in calls than in work."""
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
        # A file is of one pane, so its rows need not say which.
        self._format = row_format(self._file_schema.remove(self._file_schema.get_field_index(PANE)))
        self._stored_schema = pa.schema([*schema, (SLICE, pa.uint16()), *((name, pa.uint64()) for name in ID_COLUMNS)])
        self._parent = directory
        self._directory: Path | None = None  # until there is something to write
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._pending_panes: set[int] = set()
        self._sizes: dict[File, int] = {}
        self._new: dict[File, list[tuple[int, int]]] = {}  # what changes have not told yet: from byte, to byte
        self._ended: list[int] = []
        self._digests: dict[int, Digest] = {}
        self._pane_digests: dict[tuple[int, int], Digest] = {}
        self._next = 1
        self.arriving: Callable[[pa.RecordBatch], None] = nowhere
        """Told of rows that are loaded."""
        self.written_bytes = self.read_bytes = self.rows_added = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Keep rows; they may stay in the buffer for a while."""
        if not rows.num_rows:
            return
        self.rows_added += rows.num_rows
        self._pending.append(rows)
        self._pending_bytes += rows.nbytes + 8 * rows.num_rows  # a counter
        panes = rows.column(PANE).to_numpy()
        few = panes[:1] if panes.min() == panes.max() else np.unique(panes)
        self._pending_panes.update(few.tolist())
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
        """A bucket's rows in the order in which they came, some at a time: much less than the buffer holds."""
        self._flush()
        for rows in self._read((pane, bucket), 0, self._sizes.get((pane, bucket), 0)):
            yield rows.select(self._schema.names)

    def drop(self, pane: int) -> None:
        """Forget a pane."""
        self._flush()
        gone = {file for file in self._sizes if file[0] == pane}
        if not gone:
            return
        for file in gone:
            Path(self._path(file)).unlink()
            del self._sizes[file]
            self._new.pop(file, None)
        if any(of == pane for _, of in self._pane_digests):
            self._ended.append(pane)

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self._pending_bytes

    def copy_ahead(self) -> None:
        """A swap is quick."""

    def swap(self) -> Pending:
        changes = self.changes()
        return lambda: changes

    def dirty_bytes(self) -> int:
        new_bytes = sum(end - start for spans in self._new.values() for start, end in spans)
        return self._pending_bytes + new_bytes + ID_BYTES * len(self._ended)

    def changes(self) -> list[Change]:
        self._flush()
        parents = dict(self._digests)
        deletes = self._bury()
        new = [(file, *span) for file, spans in self._new.items() for span in spans]
        fresh = [rows for span in new for rows in self._read(*span)]
        self._new.clear()
        rows = self._with_slices(pa.concat_batches(fresh)) if fresh else self._empty()
        by_slice = dict(split_by_slice(rows.column(SLICE).to_numpy()))
        self._stamp(rows, by_slice)
        return [
            Change(
                slice,
                rows.take(pa.array(by_slice[slice])) if slice in by_slice else self._empty(),
                pane_batch(deletes[slice]) if slice in deletes else no_ids(),
                parents.get(slice, ZERO_DIGEST),
                self._digests[slice],
            )
            for slice in sorted(by_slice.keys() | deletes.keys())
        ]

    def expect(self, rows: int) -> None:
        """Room is made as rows come."""

    def load(self, slice: int, image: pa.RecordBatch, digest: Digest) -> None:
        self._digests[slice] = digest
        if not image.num_rows:
            return
        self.arriving(image)
        self._flush()
        self._write(image.select(self._file_schema.names), new=False)
        self._next = max(self._next, int(image.column(ID_COLUMNS[1]).to_numpy().max()) + 1)
        self._add_pane_digests(slice, image.column(PANE).to_numpy(), stamps_of(image))

    def give_away(self, slices: frozenset[int]) -> None:
        raise StateError("rows on disk are not kept by slice: steps with a memory bound change hands at a restart only")

    def close(self) -> None:
        """Remove the files, and the process's own directory with the last of them."""
        # These lead back to the table that owns this, whose memory is needed at once, not when cycles are collected.
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
        rows = pa.concat_batches(self._pending) if len(self._pending) > 1 else self._pending[0]
        self._pending, self._pending_bytes, self._pending_panes = [], 0, set()
        counter = np.arange(self._next, self._next + rows.num_rows, dtype=np.uint64)
        self._next += rows.num_rows
        self._write(pa.RecordBatch.from_arrays([*rows.columns, pa.array(counter)], schema=self._file_schema), new=True)

    def _write(self, rows: pa.RecordBatch, *, new: bool) -> None:
        """Append rows to their files; ``new`` if changes are to tell them."""
        buckets, panes = self._bucket_of(rows), rows.column(PANE).to_numpy()
        many = int(buckets.max()) + 1
        distinct, groups = panes[:1], buckets
        if panes.min() != panes.max():
            distinct, of_row = np.unique(panes, return_inverse=True)
            groups = of_row * many + buckets
        made = self._format.pack(rows.drop_columns([PANE]), groups, many * len(distinct))
        data, ends = made.words.view(np.uint8).data, (8 * made.starts).tolist()
        files = ((pane, bucket) for pane in distinct.tolist() for bucket in range(many))
        for file, start, end in zip(files, ends, ends[1:]):
            if end > start:
                self._append(file, data[start:end], new)

    def _append(self, file: File, block: memoryview, new: bool) -> None:
        out = os.open(self._path(file), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            written = os.write(out, block)
            while written < len(block):
                written += os.write(out, block[written:])
        finally:
            os.close(out)
        at = self._sizes.get(file, 0)
        self._sizes[file] = at + len(block)
        self.written_bytes += len(block)
        if new:
            spans = self._new.setdefault(file, [])
            start = spans.pop()[0] if spans and spans[-1][1] == at else at
            spans.append((start, at + len(block)))

    def _read(self, file: File, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Rows of the blocks between two places of a file."""
        maximum = max(self._buffer_bytes // _READS_PER_BUFFER, _MIN_READ_BYTES) // 8 * 8
        while start < end:
            words = self._words(file, start, min(end - start, maximum))
            whole = int(whole_words(words))
            if whole == 0 and len(words) and 8 * int(words[0]) <= end - start:  # a block longer than that
                words = self._words(file, start, 8 * int(words[0]))
                whole = int(whole_words(words))
            if whole <= 0:
                raise CorruptionError(
                    f"{self._path(file)} has changed since it was written: a block's checksum differs"
                )
            start += 8 * whole
            self.read_bytes += 8 * whole
            rows = self._format.unpack(words[:whole])
            pane = pa.array(np.full(rows.num_rows, file[0]))
            yield rows.add_column(self._file_schema.get_field_index(PANE), self._file_schema.field(PANE), pane)

    def _words(self, file: File, start: int, size_bytes: int) -> U64:
        with Path(self._path(file)).open("rb", buffering=0) as source:
            source.seek(start)
            data = source.read(size_bytes)
        return np.frombuffer(data[: len(data) // 8 * 8], np.uint64)

    def _path(self, file: File) -> str:
        if self._directory is None:
            self._parent.mkdir(parents=True, exist_ok=True)
            self._directory = Path(tempfile.mkdtemp(prefix="rows-", dir=self._parent))
        return f"{self._directory}/{file[0]}-{file[1]:04d}.rows"

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
        stamps, panes = stamps_of(rows), rows.column(PANE).to_numpy()
        for slice, at in by_slice.items():
            self._digests[slice] = plus(self._digests.get(slice, ZERO_DIGEST), total(stamps[at]))
            self._add_pane_digests(slice, panes[at], stamps[at])

    def _add_pane_digests(self, slice: int, panes: npt.NDArray[np.int64], stamps: U64) -> None:
        for pane in np.unique(panes).tolist():
            of_pane = panes == pane
            key = (slice, pane)
            before = self._pane_digests.get(key, ZERO_DIGEST)
            self._pane_digests[key] = plus(before, total(stamps[of_pane]))

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
