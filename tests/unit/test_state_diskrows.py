"""Disk buckets: rows come back in order and bit by bit, whatever their types, and damage is found."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CorruptionError, SchemaError
from headrace.state.durable.changes import PANE
from headrace.state.spill.diskrows import DiskRows
from headrace.state.spill.rowwords import RowMessages, RowWords, row_format

_TYPES = {
    "whole": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "small": (pa.int8(), st.integers(-128, 127)),
    "unsigned": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float": (pa.float64(), st.floats()),
    "narrow": (pa.float32(), st.floats(width=32)),
    "flag": (pa.bool_(), st.booleans()),
    "day": (pa.date32(), st.dates()),
    "moment": (pa.timestamp("us"), st.datetimes()),
    "text": (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=20)),
    "bytes": (pa.binary(), st.binary(max_size=20)),
    "money": (pa.decimal128(12, 2), st.decimals(-(10**9), 10**9, places=2)),
}
_SCHEMA = pa.schema([(name, kind) for name, (kind, _) in _TYPES.items()])
_ROW = st.tuples(*(st.none() | values for _, values in _TYPES.values()))


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [pa.array([row[i] for row in rows], kind) for i, (kind, _) in enumerate(_TYPES.values())]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _bits(batch: pa.RecordBatch) -> list[list[Any]]:
    """Values; floats as their bits, since NaN is not itself and -0.0 equals 0.0."""
    return [
        [struct.pack("d", value) if isinstance(value, float) else value for value in column.to_pylist()]
        for column in batch.columns
    ]


@pytest.mark.parametrize("form", [RowWords, RowMessages])
@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.tuples(_ROW, st.integers(0, 3)), min_size=1, max_size=30))
def test_rows_are_read_as_they_were_written(form: Any, rows: list[Any]) -> None:
    batch, groups = _batch([row for row, _ in rows]), np.array([group for _, group in rows])
    made = form(_SCHEMA).pack(batch, groups, 5)
    assert len(made.starts) == 6 and made.starts[-1] == len(made.words)
    for group in range(5):
        block = made.words[made.starts[group] : made.starts[group + 1]]
        mine = batch.filter(pa.array(groups == group))
        assert (len(block) > 0) == (mine.num_rows > 0), "no block for no rows"
        if mine.num_rows:
            found = form(_SCHEMA).unpack(block)
            assert found.schema == _SCHEMA and _bits(found) == _bits(mine)
    assert sorted(form(_SCHEMA).unpack(made.words).column(0).to_pylist(), key=str) == sorted(
        batch.column(0).to_pylist(), key=str
    ), "blocks laid end to end"


def test_nested_rows_are_messages() -> None:
    assert isinstance(row_format(_SCHEMA), RowWords)
    for kind in (pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.dictionary(pa.int32(), pa.string())):
        assert isinstance(row_format(pa.schema([("k", pa.int64()), ("x", kind)])), RowMessages)
    with pytest.raises(SchemaError, match="33 columns"):
        RowWords(pa.schema([(f"c{i}", pa.int64()) for i in range(33)]))


def _disk(directory: Path, schema: pa.Schema, buffer_bytes: int) -> DiskRows:
    def buckets(rows: pa.RecordBatch) -> Any:
        return rows.column("k").to_numpy() % 3

    return DiskRows(schema, buckets, lambda rows: np.zeros(rows.num_rows, np.uint16), directory, buffer_bytes)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("buffer_bytes", [1, 5000, 10**6])
def test_buckets_by_pane_in_order(tmp_path: Path, nested: bool, buffer_bytes: int) -> None:
    """Blocks longer than what is read at once, and blocks of a few rows, read alike."""
    value = pa.list_(pa.int64()) if nested else pa.int64()
    schema = pa.schema([(PANE, pa.int64()), ("k", pa.int64()), ("v", value)])
    disk, n = _disk(tmp_path, schema, buffer_bytes), 20_000
    keys, panes = np.random.default_rng(1).integers(0, 10, n), np.arange(n) // 7 % 2
    values = pa.array([[i] for i in range(n)], value) if nested else pa.array(np.arange(n))
    rows = pa.record_batch([pa.array(panes), pa.array(keys), values], schema=schema)
    for start in range(0, n, 1000):
        disk.add(rows.slice(start, 1000))
    assert disk.panes() == [0, 1] and disk.rows_added == n
    for pane in (0, 1):
        for bucket in range(3):
            expected = rows.filter(pa.array((panes == pane) & (keys % 3 == bucket)))
            assert pa.concat_batches(disk.read(pane, bucket)).equals(expected)
    assert disk.read_bytes == disk.written_bytes == sum(disk.size_of(p, b) for p in (0, 1) for b in range(3))
    disk.drop(0)
    assert disk.panes() == [1] and not list(disk.read(0, 1)) and list(disk.read(1, 1))
    disk.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["flipped", "cut", "emptied"])
def test_damage_is_found(tmp_path: Path, damage: str) -> None:
    schema = pa.schema([(PANE, pa.int64()), ("k", pa.int64())])
    disk = _disk(tmp_path, schema, 1000)
    for start in range(0, 900, 100):
        disk.add(
            pa.record_batch([pa.array(np.zeros(100, np.int64)), pa.array(np.arange(start, start + 100))], schema=schema)
        )
    assert sum(rows.num_rows for rows in disk.read(0, 2)) == 300
    (path,) = tmp_path.glob("*/0-0002.rows")
    data = path.read_bytes()
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 1
    path.write_bytes({"flipped": damaged, "cut": data[:-40], "emptied": b""}[damage])
    with pytest.raises(CorruptionError, match="0-0002.rows has changed"):
        list(disk.read(0, 2))
    disk.close()
