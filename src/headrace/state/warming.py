"""Compile every kernel once, or load it from the cache, before the first record comes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.state.compiled import read_only
from headrace.state.hashing import row_stamps, slices_of
from headrace.state.index.choosing import DistinctKeys
from headrace.state.index.keyindex import KeyIndex
from headrace.state.index.policies import FREQUENT
from headrace.state.rowhash import (
    gather_words,
    last_of_each,
    places_by_slice,
    restamp,
    rows_of_slices,
    rows_where,
    scatter_words,
)
from headrace.state.spill.blocks import whole_words
from headrace.state.spill.buckets import bucket_of
from headrace.state.spill.rowwords import RowWords
from headrace.state.stores.timedrows import Newcomers, TimedRows

_ROWS = 2000


def warm() -> None:
    """Make sure that all kernels are compiled: seconds on a machine's first time, then a fraction of one."""
    names = pa.array([f"a name of some length {i}" for i in range(_ROWS)])
    numbers = pa.array(np.arange(_ROWS))
    for columns in ([numbers], [numbers, names]):
        index = KeyIndex([pa.field(str(i), column.type) for i, column in enumerate(columns)], policy=FREQUENT)
        rows = index.admit(columns, 0).rows
        index.find(columns, 0)
        index.key_hashes(columns)
        index.rows_of(0)
        index.key_columns(rows[:1])
        index.drop(rows[1:])
    bucket_of(index.hash_of(rows[:1]), 0, 2)
    DistinctKeys().add(index.hash_of(rows[:1]))
    batch = pa.record_batch([numbers, names], ["number", "name"])
    words = RowWords(batch.schema)
    packed = words.pack(batch, np.zeros(_ROWS, np.int64), 1).words.tobytes()
    found = np.frombuffer(packed, np.uint64)  # read-only, as what comes from a file
    whole_words(found)
    words.unpack(found)
    stamps, slices = row_stamps(batch), slices_of(batch.columns, 2)
    all_of_them, rows, places = np.ones(_ROWS, bool), np.empty(_ROWS, np.int64), np.empty(_ROWS, np.int64)
    rows_where(all_of_them, rows)
    gather_words(read_only(stamps[:, 0]), read_only(rows), np.empty(_ROWS, np.uint64))
    places_by_slice(rows, slices, np.empty(3, np.int64), places)
    restamp(rows, slices, stamps, stamps.copy(), np.zeros((2, 2), np.uint64))
    for dtype in (np.uint32, np.uint64):
        scatter_words(read_only(np.zeros(_ROWS, dtype)), places, np.empty(_ROWS, dtype))
    rows_of_slices(np.zeros(_ROWS, np.uint16), all_of_them, all_of_them, np.empty(_ROWS, np.int64))
    last_of_each(np.zeros(_ROWS, np.uint64), np.zeros(_ROWS, np.uint64), all_of_them)
    times = np.arange(_ROWS)
    timed = TimedRows(batch.schema, ("number",), 1, 1, 2, noting=True)
    new = Newcomers.of(batch, ("number",), times, times)
    timed.add(new, ~all_of_them)
    list(timed.meeting(new, 0, 0))
    list(timed.expire(_ROWS))
