"""External sort-merge group-by: the exact baseline that hash engines are compared with.

Li 2015, section 3.3.1.1: full buffers are sorted and written as runs; each time 2F−1 runs lie on disk
the F smallest are merged into one; at the end the rest is merged once, streamed out in key order. Without a
combiner, which is what the thesis's model assumes, runs hold the records themselves and are compared with MR-hash;
with one they hold a partial per key, as the hash engines that aggregate on arrival do.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bench.spilling.runfiles import IoCount, RunWriter, SortedRun, read_run
from headrace.errors import ConfigError, SchemaError

_PutTogether = Callable[[list[pa.RecordBatch]], pa.RecordBatch]
_WORKING_COPIES = 5
"""Memory per byte of buffer: the buffer, its sort order, and the sorted columns beside the unsorted ones."""
_RECORDS_SHARE = 0.6
"""Of the buffer, what the last merge reads of records: their groups may be larger than they are."""
_BLOCKS_PER_READ = 4
"""Blocks are this much smaller than a merge's read buffer, so that a wider last merge can read less at once."""


class SortMerge:
    """Counts and sums per key within a memory budget; ``groups()`` gives them once, sorted by key.

    ``combine``: whether runs hold one row per key, or the records as they came until the last merge.
    Keys are int64 or string without nulls, values int64 or float64. Whole-number sums are exact;
    sums of floats depend on the order of addition.
    """

    def __init__(self, directory: Path, *, memory_bytes: int, merge_factor: int, combine: bool = True) -> None:
        if merge_factor < 2:
            raise ConfigError(f"a merge factor is 2 or more, not {merge_factor}")
        self._directory, self._factor = directory, merge_factor
        self._run = _combined if combine else _sorted
        self.buffer_bytes = memory_bytes // _WORKING_COPIES
        self._read_bytes = int(self.buffer_bytes / (merge_factor + math.sqrt(merge_factor)))
        self._block_bytes = max(1, self._read_bytes // _BLOCKS_PER_READ)
        self.io = IoCount()
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._runs: list[SortedRun] = []
        self._made = 0

    def add(self, keys: npt.NDArray[np.int64] | pa.Array, values: npt.NDArray[np.int64 | np.float64]) -> None:
        """Take one batch; may write a run, and merge runs."""
        batch = _records(keys, values)
        if self._run is _combined:
            batch = batch.append_column("count", pa.array(_counts(batch)))
        while batch.num_rows:
            room = self.buffer_bytes - self._waiting_bytes
            rows = max(1, int(batch.num_rows * min(1.0, room / batch.nbytes)))
            self._waiting.append(batch.slice(0, rows))
            self._waiting_bytes += self._waiting[-1].nbytes
            batch = batch.slice(rows)
            if self._waiting_bytes + _row_bytes(self._waiting[-1]) > self.buffer_bytes:
                self._spill()

    def groups(self) -> Iterator[pa.RecordBatch]:
        """Sorted (key, count, sum); ends the input. Nothing is written if nothing had to be before."""
        if not self._runs:
            if self._waiting:
                yield _combined(self._take_waiting())
            return
        if self._waiting:
            self._spill()
        try:
            if self._run is _combined:
                yield from self._merged(self._runs, self.buffer_bytes // len(self._runs), _combined)
            else:
                read_bytes = int(self.buffer_bytes * _RECORDS_SHARE) // len(self._runs)
                yield from _joined(self._merged(self._runs, read_bytes, _combined))
        finally:
            self.close()

    def close(self) -> None:
        """Forget everything and remove the runs."""
        for run in self._runs:
            run.path.unlink(missing_ok=True)
        self._runs, self._waiting, self._waiting_bytes = [], [], 0

    def _spill(self) -> None:
        run = self._run(self._take_waiting())
        # One request: a run leaves memory in one sequential write.
        self._runs.append(self._written(iter([run]), run.schema, math.inf))
        if len(self._runs) == 2 * self._factor - 1:
            self._merge_smallest()

    def _merge_smallest(self) -> None:
        self._runs.sort(key=lambda run: run.size_bytes)
        smallest, self._runs = self._runs[: self._factor], self._runs[self._factor :]
        write_bytes = self.buffer_bytes - self._factor * self._read_bytes
        merged = self._merged(smallest, self._read_bytes, self._run)
        self._runs.append(self._written(merged, smallest[0].schema, write_bytes))
        for run in smallest:
            run.path.unlink()

    def _merged(self, runs: list[SortedRun], read_bytes: int, put_together: _PutTogether) -> Iterator[pa.RecordBatch]:
        return _merge([read_run(run, read_bytes, self.io) for run in runs], put_together)

    def _written(self, parts: Iterator[pa.RecordBatch], schema: pa.Schema, write_bytes: float) -> SortedRun:
        self._made += 1
        writer = RunWriter(self._directory / f"run-{self._made}", schema, write_bytes, self.io)
        for part in parts:
            rows = max(1, int(self._block_bytes / _row_bytes(part)))
            for start in range(0, part.num_rows, rows):
                writer.write(part.slice(start, rows))
        return writer.close()

    def _take_waiting(self) -> list[pa.RecordBatch]:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        return waiting


def _records(keys: npt.NDArray[np.int64] | pa.Array, values: npt.NDArray[np.int64 | np.float64]) -> pa.RecordBatch:
    column = keys if isinstance(keys, pa.Array) else pa.array(keys)
    if column.type not in (pa.int64(), pa.string()) or column.null_count:
        raise SchemaError(f"keys are int64 or string without nulls, not {column.type} with {column.null_count}")
    if values.dtype not in (np.int64, np.float64):
        raise SchemaError(f"values are int64 or float64, not {values.dtype}")
    return pa.record_batch([column, pa.array(values)], names=["key", "sum"])


def _merge(runs: list[Iterator[pa.RecordBatch]], put_together: _PutTogether) -> Iterator[pa.RecordBatch]:
    """Sorted rows of sorted runs: all rows up to the smallest last key in memory are complete."""
    heads = [(head, run) for run in runs if (head := next(run, None)) is not None]
    while heads:
        bound = min(head["key"][-1].as_py() for head, _ in heads)
        ready, rest = [], []
        for head, run in heads:
            upto = _rows_up_to(head["key"], bound)
            ready.append(head.slice(0, upto))
            following = head.slice(upto) if upto < head.num_rows else next(run, None)
            if following is not None:
                rest.append((following, run))
        heads = rest
        yield put_together(ready)


def _joined(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A key's records may end one block of a run and begin the next: a part's last group waits for the next part."""
    last: list[pa.RecordBatch] = []
    for part in parts:
        groups = _combined([*last, part])
        last = [groups.slice(groups.num_rows - 1)]
        yield groups.slice(0, groups.num_rows - 1)
    yield from last


def _rows_up_to(keys: pa.Array, bound: int | str) -> int:
    if pa.types.is_int64(keys.type):
        return int(np.searchsorted(keys.to_numpy(), bound, side="right"))
    return bisect_right(range(len(keys)), bound, key=lambda i: keys[i].as_py())


def _sorted(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """All rows, sorted by key; text sorts by its UTF-8 bytes."""
    rows = pa.concat_batches(parts)
    return rows.take(pa.array(_order(rows["key"])))


def _combined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """One partial per key, sorted; parts are records or partials."""
    keys = pa.concat_arrays([part["key"] for part in parts])
    order = _order(keys)
    keys = keys.take(pa.array(order))
    changes = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    starts = np.concatenate(([0], np.flatnonzero(changes) + 1))
    counts = np.concatenate([_counts(part) for part in parts])
    sums = np.concatenate([part["sum"].to_numpy() for part in parts])
    totals = [pa.array(np.add.reduceat(column[order], starts)) for column in (counts, sums)]
    return pa.record_batch([keys.take(pa.array(starts)), *totals], names=["key", "count", "sum"])


def _counts(part: pa.RecordBatch) -> npt.NDArray[np.int64]:
    counts: npt.NDArray[np.int64] = (
        part["count"].to_numpy() if "count" in part.schema.names else np.ones(part.num_rows, np.int64)
    )
    return counts


def _order(keys: pa.Array) -> npt.NDArray[np.int64]:
    if pa.types.is_int64(keys.type):
        # Stable is also fastest here: merges sort a few ascending runs laid end to end.
        return np.argsort(keys.to_numpy(), kind="stable")
    order: npt.NDArray[np.int64] = pc.sort_indices(keys).to_numpy().astype(np.int64)
    return order


def _row_bytes(batch: pa.RecordBatch) -> float:
    return float(batch.nbytes) / max(1, int(batch.num_rows))
