"""Stable, vectorised 64-bit hashes of Arrow columns.

The same value gives the same hash in every process (no PYTHONHASHSEED), so that slices and digests
agree between workers, drivers and restarts. Whole numbers, times and floats go through splitmix64,
text and bytes through SipHash as implemented by pandas, once per distinct value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from headrace.state.compiled import read_only
from headrace.state.plain import pack
from headrace.state.rowhash import combine_hashes, finish_stamps, hash_words, stamp_words

HASH_ID = "splitmix64+siphash/1"
U64 = npt.NDArray[np.uint64]

_LANE_SEEDS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03))
_LANE_KEYS = ("headrace.lane.00", "headrace.lane.01")
_NULL = np.uint64(0xA0761D6478BD642F)
_TEXTS = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
_ZERO = np.uint64(0)
_NAN_BITS = np.float64("nan").view(np.uint64)


WORD_TYPES: dict[int, np.dtype[Any]] = {32: np.dtype(np.uint32), 64: np.dtype(np.uint64)}
"""What values of so many bits are looked at as."""


def raw_words(column: pa.Array) -> npt.NDArray[Any]:
    """The bits of values of four or eight bytes, without a copy; of nulls anything."""
    words = np.frombuffer(column.buffers()[1], WORD_TYPES[column.type.bit_width])
    return words[column.offset : column.offset + len(column)]


def mix(x: U64, seed: np.uint64 = _ZERO) -> U64:
    """The finaliser of splitmix64: every input bit reaches every output bit."""
    hashes = np.empty(x.size, np.uint64)
    hash_words(read_only(x).reshape(-1), seed, hashes)
    return hashes.reshape(x.shape)


def hash_column(column: pa.Array, lane: int = 0) -> U64:
    """One hash per value; all nulls have the same hash."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        hashes = _hash_lists(column, lane)
    elif pa.types.is_struct(kind):
        hashes = hash_columns([column.field(i) for i in range(kind.num_fields)], lane)
    elif kind in _TEXTS or pa.types.is_fixed_size_binary(kind):
        hashes = _hash_text(column, lane)
    elif pa.types.is_nested(kind):
        hashes = _hash_text(pa.array([pack(value) for value in column.to_pylist()], pa.binary()), lane)
    else:
        hashes = mix(_bits(column), _LANE_SEEDS[lane])
    if column.null_count:
        hashes = np.where(pc.is_valid(column).to_numpy(zero_copy_only=False), hashes, _NULL)
    return hashes


def hash_columns(columns: list[pa.Array], lane: int = 0) -> U64:
    """One hash per row over several columns; the order of the columns matters."""
    hashes = hash_column(columns[0], lane)
    for column in columns[1:]:
        combine_hashes(hashes, hash_column(column, lane))
    return hashes


def slices_of(columns: list[pa.Array], slices: int) -> npt.NDArray[np.uint16]:
    """The slice of each row by its key columns."""
    return (hash_columns(columns) % np.uint64(slices)).astype(np.uint16)


def row_stamps(batch: pa.RecordBatch) -> U64:
    """Two independent hashes per row over all columns, side by side: what digests are sums of."""
    stamps = np.empty((batch.num_rows, 2), np.uint64)
    stamps[:] = _LANE_SEEDS
    for column in batch.columns:
        stamp_words(stamps, read_only(_words(column)))
    finish_stamps(stamps)
    return stamps


def _words(column: pa.Array) -> U64:
    """A word for each value: numbers' own bits, and hashes of what is longer."""
    kind = column.type
    if (
        kind in _TEXTS
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_nested(kind)
        or pa.types.is_dictionary(kind)
    ):
        return hash_column(column)
    words = _bits(column)
    return np.where(pc.is_valid(column).to_numpy(zero_copy_only=False), words, _NULL) if column.null_count else words


def _bits(column: pa.Array) -> U64:
    kind = column.type
    if pa.types.is_floating(kind):
        values = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0  # -0.0 becomes 0.0
        return np.where(np.isnan(values), _NAN_BITS, values.view(np.uint64))
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif pa.types.is_date32(kind) or pa.types.is_time32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_temporal(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return _hash_text(column.cast(pa.string()), 0)
    if column.null_count:
        column = column.fill_null(0)
    numbers: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    if numbers.dtype == np.uint64:
        return numbers
    return numbers.astype(np.int64, copy=False).view(np.uint64)


def _hash_text(column: pa.Array, lane: int) -> U64:
    encoded = column.dictionary_encode()
    values = encoded.dictionary.to_numpy(zero_copy_only=False)
    if not len(values):
        return np.full(len(column), _NULL)
    hashed = pd.util.hash_array(values.astype(object), hash_key=_LANE_KEYS[lane], categorize=False)
    indices = encoded.indices
    if indices.null_count:
        indices = indices.fill_null(0)
    taken: U64 = mix(hashed)[indices.to_numpy(zero_copy_only=False)]
    return taken


def _hash_lists(column: pa.Array, lane: int) -> U64:
    """Order-sensitive: each element is mixed with its position, then summed per list."""
    if column.null_count:
        column = pc.if_else(pc.is_valid(column), column, pa.scalar([], column.type))
    lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
    elements = column.flatten()
    owner = np.repeat(np.arange(len(column)), lengths)
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1])) if len(lengths) else lengths
    place = (np.arange(len(elements)) - np.repeat(starts, lengths)).astype(np.uint64)
    sums = mix(lengths.astype(np.uint64) + _LANE_SEEDS[lane])
    if len(elements):
        with np.errstate(over="ignore"):
            np.add.at(sums, owner, mix(hash_column(elements, lane) + mix(place)))
    return sums
