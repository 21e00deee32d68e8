"""Key codes are equal exactly where keys are, and lead back to the key and its Arrow type."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import SchemaError
from headrace.state.grouping import key_arrays, key_codes
from headrace.state.index.keycodes import KeyCodes, Keys

NAN = float("nan")
DAYS = [datetime(2024, 1, 2, tzinfo=UTC), datetime(1960, 1, 1, tzinfo=UTC)]
TYPES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.string(), ["", "a", "é", "\0", "longer than one word"]),
    (pa.large_string(), ["", "a", "ab"]),
    (pa.string_view(), ["", "a", "longer than the twelve bytes of a view"]),
    (pa.binary(), [b"", b"\0", b"\0\0", b"\xff"]),
    (pa.large_binary(), [b"", b"\0"]),
    (pa.binary_view(), [b"", b"a view of more than twelve bytes"]),
    (pa.binary(2), [b"ab", b"\0\0"]),
    (pa.int64(), [0, 1, -1, 2**63 - 1, -(2**63)]),
    (pa.int32(), [0, -1, 2**31 - 1]),
    (pa.int8(), [0, -128, 127]),
    (pa.uint8(), [0, 255]),
    (pa.uint64(), [0, 1, 2**63, 2**64 - 1]),
    (pa.float64(), [0.0, -0.0, NAN, 1.5, float("inf"), 5e-324]),
    (pa.float32(), [0.0, -0.0, NAN, 1.5]),
    (pa.bool_(), [True, False]),
    (pa.timestamp("us", "UTC"), DAYS),
    (pa.timestamp("s"), [d.replace(tzinfo=None) for d in DAYS]),
    (pa.date32(), [d.date() for d in DAYS]),
    (pa.date64(), [date(2024, 1, 2), date(1960, 1, 1)]),
    (pa.time32("s"), [time(0), time(1)]),
    (pa.time64("us"), [time(0), time(1, 2, 3, 4)]),
    (pa.duration("us"), [timedelta(1), timedelta(-1)]),
    (pa.decimal128(8, 2), [Decimal("1.50"), Decimal("-2.00"), Decimal("0.00")]),
    (pa.decimal256(60, 2), [Decimal("1.50"), Decimal("-2.00")]),
    (pa.dictionary(pa.int32(), pa.string()), ["a", "b", ""]),
    (pa.dictionary(pa.int8(), pa.int64()), [1, 2, -1]),
    (pa.null(), []),
]


@st.composite
def key_columns(draw: st.DrawFn) -> list[pa.Array]:
    kinds = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=3))
    n, flush = draw(st.integers(1, 20)), draw(st.integers(0, 3))
    columns = []
    for kind, values in kinds:
        column = draw(st.lists(st.sampled_from([None, *values]), min_size=n + flush, max_size=n + flush))
        columns.append(pa.array(column, kind).slice(flush))
    return columns


def coded(columns: list[pa.Array]) -> tuple[KeyCodes, Keys, list[Any]]:
    """The codes of columns, also as values that Python can compare."""
    codes = KeyCodes([pa.field(str(i), column.type) for i, column in enumerate(columns)])
    keys = codes.encode(columns)
    words, sizes, data = keys.words.tolist(), keys.sizes.tolist() or [0] * len(keys.words), keys.data.tobytes()
    if codes.in_bytes:
        return codes, keys, [None if size < 0 else data[word : word + size] for word, size in zip(words, sizes)]
    return codes, keys, [None if size < 0 else word for word, size in zip(words, sizes)]


def canonical(value: Any) -> Any:
    return "NaN" if value != value else value


def assert_codes_are_those_of_grouping(columns: list[pa.Array]) -> None:
    views = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}  # grouping does not know views
    groups, _ = key_codes([column.cast(views.get(column.type, column.type)) for column in columns])
    _, _, codes = coded(columns)
    assert len({*zip(groups.tolist(), codes)}) == len({*groups.tolist()}) == len({*codes})


@given(key_columns())
@settings(max_examples=200)
def test_codes_are_equal_exactly_where_keys_are(columns: list[pa.Array]) -> None:
    assert_codes_are_those_of_grouping(columns)


@pytest.mark.parametrize(("kind", "values"), TYPES, ids=lambda v: str(v)[:30] if isinstance(v, pa.DataType) else "")
def test_each_value_of_each_type_is_one_key(kind: pa.DataType, values: list[Any]) -> None:
    column = pa.array([*values, None, *values, None], kind)
    assert_codes_are_those_of_grouping([column])
    assert_codes_are_those_of_grouping([column, pa.array(["x"] * len(column))])


@given(key_columns())
@settings(max_examples=200)
def test_keys_come_back_with_their_types(columns: list[pa.Array]) -> None:
    codes, keys, _ = coded(columns)
    back = codes.decode(keys)
    rows = [tuple(map(canonical, row)) for row in zip(*(column.to_pylist() for column in columns))]
    if len(columns) == 1:
        wanted = key_arrays([row[0] if row[0] != "NaN" else NAN for row in rows], codes.fields)
    else:
        wanted = key_arrays([tuple(NAN if v == "NaN" else v for v in row) for row in rows], codes.fields)
    for column, expected, given_column in zip(back, wanted, columns):
        column.validate(full=True)
        assert column.type == expected.type == given_column.type
        assert [*map(canonical, column.to_pylist())] == [*map(canonical, expected.to_pylist())]


@pytest.mark.parametrize(("kind", "values"), TYPES, ids=lambda v: str(v)[:30] if isinstance(v, pa.DataType) else "")
def test_a_fixed_width_column_is_one_word(kind: pa.DataType, values: list[Any]) -> None:
    codes, keys, _ = coded([pa.array([*values, None], kind)])
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    text = str(plain).startswith(("string", "large", "binary", "fixed", "decimal"))
    assert codes.in_bytes == text and len(keys.data) * (not text) == 0


def test_all_nans_are_one_key() -> None:
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0xFFFFFFFFFFFFFFFF], np.uint64)
    for kind in (pa.float64(), pa.float32()):
        with np.errstate(invalid="ignore"):
            column = pa.array(bits.view(np.float64).astype(kind.to_pandas_dtype()))
        assert len({*coded([column])[2]}) == len({*coded([column, column])[2]}) == 1


def test_no_rows_have_no_codes() -> None:
    for kind, _ in TYPES:
        codes, keys, found = coded([pa.array([], kind)])
        assert found == [] and codes.decode(keys)[0].equals(pa.array([], kind))


def test_bytes_behind_a_null_do_not_matter() -> None:
    """Arrow says nothing about what a null's slot holds."""
    validity = pa.py_buffer(b"\x02")
    numbers = pa.Array.from_buffers(pa.int64(), 2, [validity, pa.py_buffer(bytes([7] * 16))])
    texts = pa.Array.from_buffers(
        pa.string(), 2, [validity, pa.array([0, 3, 6], pa.int32()).buffers()[1], pa.py_buffer(b"abcdef")]
    )
    for column in (numbers, texts):
        _, _, (null, value) = coded([column])
        assert null is None and value is not None
        _, _, (first, second) = coded(
            [pa.concat_arrays([column.slice(0, 1), pa.nulls(1, column.type)]), pa.array([1, 1])]
        )
        assert first == second


def test_another_type_than_the_field_is_cast() -> None:
    codes = KeyCodes([pa.field("k", pa.string())])
    words = pa.array(["a", "b", "a"])
    assert codes.decode(codes.encode([words.dictionary_encode()]))[0].equals(words)


def test_columns_of_different_lengths_are_refused() -> None:
    codes = KeyCodes([pa.field("a", pa.int64()), pa.field("b", pa.int64())])
    with pytest.raises(SchemaError, match="different lengths"):
        codes.encode([pa.array([1, 2]), pa.array([1])])


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int8())]
)
def test_lists_and_structs_are_no_keys(kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match=r"key column 'k' is .*; key by numbers, text"):
        KeyCodes([pa.field("k", kind)])
