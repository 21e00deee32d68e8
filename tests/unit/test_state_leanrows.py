"""Columns that say what others say are stored once, and are there again when they are read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from durable import MemoryStorage

from headrace.state.durable.changes import ZERO_DIGEST, Change, digest_of, ids_of, no_ids, with_ids
from headrace.state.durable.leanrows import lean, whole
from headrace.state.durable.segments import read_block, write_segment

N = 1000
NUMBERS = np.arange(N)
COLUMNS = {
    "zero": pa.array(np.zeros(N, np.int64)),
    "a": pa.array(NUMBERS),
    "same as a": pa.array(NUMBERS),
    "nearly a": pa.array(np.where(NUMBERS == 500, 0, NUMBERS)),
    "small a": pa.array(NUMBERS.astype(np.int32)),
    "same bits": pa.array(NUMBERS.astype(np.uint64)),
    "float": pa.array(np.zeros(N)),
    "text": pa.array(["x"] * N),
    "nulls": pa.array([None] * N, pa.int64()),
    "some": pa.array([None, *range(1, N)], pa.int64()),
}


def batch(*names: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([COLUMNS[name] for name in names], names=list(names))


def test_what_is_said_twice_is_left_out() -> None:
    slim = lean(batch(*COLUMNS))
    assert slim is not None
    assert slim.single.schema.names == ["zero"]
    assert slim.different.schema.names == ["a", "nearly a", "small a", "same bits", "float", "text", "nulls", "some"]
    again = whole(slim, list(COLUMNS))
    assert again.schema.names == list(COLUMNS)
    for name, column in COLUMNS.items():
        assert again.column(name).to_pylist() == column.to_pylist()


@pytest.mark.parametrize("rows", [batch("a", "text"), batch("zero"), batch("zero", "a").slice(0, 10)])
def test_what_saves_nothing_stays_as_it_is(rows: pa.RecordBatch) -> None:
    assert lean(rows) is None


@pytest.mark.parametrize("names", [tuple(COLUMNS), ("a", "same as a"), ("zero", "a"), ("a", "text")])
@pytest.mark.parametrize("offset", [0, 300])
def test_blocks_are_read_as_they_were_written(names: tuple[str, ...], offset: int) -> None:
    rows = batch(*names).slice(offset)
    puts = with_ids(rows, ids_of(rows.columns[:1]))
    gone = no_ids() if offset else puts.select(["__id0", "__id1"]).slice(0, 3)
    storage = MemoryStorage()
    (stored,) = write_segment(storage, "segments/x.seg", [("s", Change(7, puts, gone, ZERO_DIGEST, digest_of(puts)))])
    found, deletes = read_block(storage, stored.block, "s", 7)
    assert found.schema == puts.schema
    assert found.to_pylist() == puts.to_pylist() and digest_of(found) == digest_of(puts)
    assert deletes.to_pylist() == gone.to_pylist()
