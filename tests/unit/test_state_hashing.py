"""Hashes and groups: the same everywhere, and what plain Python would group."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SchemaError
from headrace.state.grouping import check_key_type, key_arrays, key_codes
from headrace.state.hashing import hash_column, hash_columns, row_stamps, slices_of

_PROBE = """
import pyarrow as pa
from datetime import UTC, date, datetime
from decimal import Decimal
from headrace.state.hashing import row_stamps, slices_of
columns = [
    pa.array(["a", "é", None, ""]), pa.array([1, -1, None, 2**62]), pa.array([0.5, float("nan"), None, -0.0]),
    pa.array([True, False, None, True]), pa.array([b"x", b"", None, bytes([255])]),
    pa.array([datetime(2024, 1, 1, tzinfo=UTC)] * 4), pa.array([date(1969, 1, 1)] * 4),
    pa.array([Decimal("1.50")] * 4), pa.array([[1, 2], [], None, [3]]), pa.array([{"a": 1, "b": "x"}] * 4),
]
print([slices_of([c], 1009).tolist() for c in columns], slices_of(columns, 64).tolist())
print(row_stamps(pa.record_batch(columns, names=list("abcdefghij"))).tolist())
"""


# chronostream fact 2: slice(key) is identical across processes and PYTHONHASHSEED values
def test_slices_are_the_same_in_every_process() -> None:
    def ask(seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run(
            [sys.executable, "-c", _PROBE], env=environment, capture_output=True, text=True, check=True
        ).stdout

    first, second = ask("1"), ask("4242")
    assert first == second and len(first) > 400


def test_slices_do_not_move_between_versions() -> None:
    """A checkpoint made by an earlier version must find its keys: these numbers may never change."""
    assert slices_of([pa.array(["a", "b", "user-17", None])], 64).tolist() == [11, 7, 27, 47]
    assert slices_of([pa.array([0, 1, -1, 10**12])], 64).tolist() == [47, 1, 32, 56]
    assert slices_of([pa.array(["a", "b"]), pa.array([1, 2])], 64).tolist() == [3, 13]


def test_keys_spread_evenly() -> None:
    for keys in (pa.array(np.arange(64_000)), pa.array([f"user-{i}" for i in range(64_000)])):
        counts = np.bincount(slices_of([keys], 64), minlength=64)
        assert counts.min() > 800 and counts.max() < 1200


TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.string(), st.text("abé", max_size=2)),
    (pa.large_string(), st.text("ab", max_size=2)),
    (pa.binary(), st.binary(max_size=2)),
    (pa.binary(2), st.binary(min_size=2, max_size=2)),
    (pa.large_binary(), st.binary(max_size=2)),
    (pa.int64(), st.integers(-3, 3)),
    (pa.int8(), st.integers(-3, 3)),
    (pa.uint64(), st.sampled_from([0, 1, 2**64 - 1])),
    (pa.float64(), st.sampled_from([0.0, -0.0, float("nan"), 1.5, float("inf")])),
    (pa.float32(), st.sampled_from([0.0, -0.0, float("nan"), 1.5])),
    (pa.bool_(), st.booleans()),
    (pa.timestamp("us", "UTC"), st.sampled_from([datetime(2024, 1, d, tzinfo=UTC) for d in (1, 2)])),
    (pa.timestamp("s"), st.sampled_from([datetime(2024, 1, 1), datetime(1960, 1, 1)])),
    (pa.date32(), st.sampled_from([date(2024, 1, 1), date(1960, 1, 1)])),
    (pa.time64("us"), st.sampled_from([time(1), time(2)])),
    (pa.duration("us"), st.sampled_from([timedelta(1), timedelta(-1)])),
    (pa.decimal128(8, 2), st.sampled_from([Decimal("1.50"), Decimal("-2.00")])),
    (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "b"])),
]


@st.composite
def keyed_batches(draw: st.DrawFn) -> tuple[list[pa.Array], list[tuple[Any, ...]], list[int]]:
    kinds = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=3))
    n = draw(st.integers(1, 25))
    columns, python = [], []
    for kind, values in kinds:
        column = draw(st.lists(st.one_of(st.none(), values), min_size=n, max_size=n))
        columns.append(pa.array(column, kind))
        python.append([_canonical(v) for v in column])
    return columns, list(zip(*python)), draw(st.lists(st.sampled_from([-5, 0, 7, 10**6]), min_size=n, max_size=n))


def _canonical(value: Any) -> Any:
    return "NaN" if value != value else value


@given(keyed_batches())
def test_codes_are_those_of_plain_python(made: tuple[list[pa.Array], list[tuple[Any, ...]], list[int]]) -> None:
    columns, rows, _ = made
    codes, keys = key_codes(columns)
    assert len({_as_tuple(key) for key in keys}) == len(keys)
    assert [_as_tuple(keys[code]) for code in codes.tolist()] == rows
    fields = [pa.field(str(i), column.type) for i, column in enumerate(columns)]
    back = list(zip(*(map(_canonical, column.to_pylist()) for column in key_arrays(keys, fields))))
    assert back == [_as_tuple(key) for key in keys]


def _as_tuple(key: Any) -> tuple[Any, ...]:
    return tuple(map(_canonical, key)) if isinstance(key, tuple) else (_canonical(key),)


@given(keyed_batches())
def test_equal_keys_have_equal_hashes(made: tuple[list[pa.Array], list[tuple[Any, ...]], list[int]]) -> None:
    columns, rows, _ = made
    for lane in (0, 1):
        by_key: dict[Any, set[int]] = {}
        for row, value in zip(rows, hash_columns(columns, lane).tolist()):
            by_key.setdefault(row, set()).add(value)
        assert all(len(found) == 1 for found in by_key.values())
        assert len({*map(min, by_key.values())}) == len(by_key), "two keys of a handful share a 64-bit hash"
    whole = hash_columns(columns)
    part = hash_columns([column.slice(len(column) // 2) for column in columns])
    assert part.tolist() == whole[len(columns[0]) // 2 :].tolist()


def test_many_key_columns_of_many_values() -> None:
    """Five columns of 7,000 values have more combinations than 64 bits can number."""
    dice = np.random.default_rng(7)
    columns = [pa.array(dice.permutation(7000)) for _ in range(5)]
    codes, keys = key_codes(columns)
    rows = list(zip(*(column.to_pylist() for column in columns)))
    assert [keys[code] for code in codes.tolist()] == rows


def test_a_dictionary_with_repeated_values_is_one_key() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, None]), pa.array(["a", "a", None]))
    codes, keys = key_codes([column])
    assert codes.tolist() == [0, 0, 1, 1] and keys == ["a", None]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int64())]
)
def test_lists_and_structs_are_no_keys(kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match=r"step 's': key column 'k' is .*; key by numbers, text"):
        check_key_type("k", kind, "s")


NESTED = [
    (pa.list_(pa.int64()), [[1, 2], [2, 1], [1], [], None, [None], [1, 2, 0]]),
    (pa.list_(pa.list_(pa.string())), [[["a"], []], [[], ["a"]], [["a"]], [], None]),
    (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        [{"a": 1, "b": "x"}, {"a": 1, "b": None}, None, {"a": 2, "b": "x"}],
    ),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [("a", 2)], [], [("b", 1)], None]),
    (pa.list_(pa.int64(), 2), [[1, 2], [2, 1], None]),
    (pa.large_list(pa.int64()), [[1, 2], [2, 1], None]),
]


@pytest.mark.parametrize(("kind", "values"), NESTED, ids=lambda v: str(v)[:20] if isinstance(v, pa.DataType) else "")
def test_nested_values_can_be_digested(kind: pa.DataType, values: list[Any]) -> None:
    """Joins keep whole rows, whatever columns they have."""
    column = pa.array(values, kind)
    assert len({*hash_column(column).tolist()}) == len(values)
    stamps = row_stamps(pa.record_batch([column], names=["c"]))
    assert len({*map(tuple, stamps.tolist())}) == len(values)
    assert hash_column(column.slice(1)).tolist() == hash_column(column)[1:].tolist()
