"""Durations, sizes, rates, settings and schemas as users write them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import Settings
from headrace.errors import ConfigError, HeadraceError, SchemaError, UnitError
from headrace.schemas import conform, empty_batch, infer_schema, to_array, to_schema
from headrace.units import duration_s, duration_us, in_words, rate_per_s, size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("200 ms", 0.2), ("5s", 5.0), (" 1.5 min ", 90.0), ("2 HOURS", 7200.0), ("1 d", 86_400.0), (".5 s", 0.5),
        ("10 us", 1e-5), ("1e3 ms", 1.0), (3, 3.0), (0.25, 0.25), (0, 0.0), (timedelta(minutes=2), 120.0),
    ],
)  # fmt: skip
def test_durations(text: Any, seconds: float) -> None:
    assert duration_s(text) == pytest.approx(seconds) and duration_us(text) == round(seconds * 1e6)


@pytest.mark.parametrize(
    "text", ["", "5", "5 parsecs", "ms", "-1 s", "1 s 2 ms", "nan s", True, None, -1, float("nan"), float("inf"), "1e999 s",
             timedelta(seconds=-1)],
)  # fmt: skip
def test_what_is_no_duration_is_named(text: Any) -> None:
    with pytest.raises(UnitError, match="idle") as caught:
        duration_s(text, "idle")
    assert repr(text) in str(caught.value) and isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("text", "size"),
    [("64 MB", 64_000_000), ("1 KiB", 1024), ("1.5 gb", 1_500_000_000), (7, 7), ("8B", 8), (2**60 + 1, 2**60 + 1)],
)
def test_sizes(text: Any, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "64", "MB", "-1 MB", 0, -1, True, 1.5, "0.5 B", "1e999 TB", None])
def test_what_is_no_size_is_named(text: Any) -> None:
    with pytest.raises(UnitError, match="memory") as caught:
        size_bytes(text, "memory")
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "rate"), [("5000/s", 5000.0), ("120/min", 2.0), ("1_000/s", 1000.0), ("1,000 / s", 1000.0), (2.5, 2.5)]
)
def test_rates(text: Any, rate: float) -> None:
    assert rate_per_s(text) == pytest.approx(rate)


@pytest.mark.parametrize(
    "text", ["", "5000", "5000/parsec", "/s", "nan/s", "inf/s", 0, -1, "0/s", True, None, float("nan")]
)
def test_what_is_no_rate_is_named(text: Any) -> None:
    with pytest.raises(UnitError, match="rate"):
        rate_per_s(text)


@given(st.floats(1e-4, 1e6))
def test_words_are_read_back(seconds: float) -> None:
    assert duration_s(in_words(seconds)) == pytest.approx(seconds, rel=0.01)


def test_settings_from_what_users_write() -> None:
    settings = Settings.of(
        mode="microbatch", trigger="30 s", flush="10 ms", queue="1 MB", parallelism=3, slices=7, report="500 ms"
    )
    assert (settings.mode, settings.parallelism, settings.slices) == ("microbatch", 3, 7)
    assert (settings.trigger_s, settings.flush_s, settings.report_s) == (30.0, 0.01, 0.5)
    assert settings.queue_bytes == 1_000_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speed": 3}, "unknown setting 'speed'; known: "),
        ({"mode": "fast"}, "mode 'fast' is not one of realtime, microbatch, batch"),
        ({"parallelism": 0}, "parallelism must be a whole number of at least 1, not 0"),
        ({"parallelism": 1.5}, "parallelism must be a whole number"),
        ({"slices": "many"}, "slices must be a whole number"),
        ({"slices": 70_000}, "slices must be at most 65535"),
        ({"commit": "10 ms"}, "commit must be at least 50 ms, not 10 ms"),
        ({"commit": "soon"}, "commit 'soon' is not a duration"),
        ({"recovery": "10 ms"}, "recovery must be at least 100 ms"),
        ({"epoch": "30 s"}, "'commit'"),
        ({"max_attempts": 5}, "'give_up'"),
        ({"flush": "-1 ms"}, "flush '-1 ms' is not a duration"),
    ],
)
def test_wrong_settings_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, UnitError)) as caught:
        Settings.of(**options)
    assert message in str(caught.value) and isinstance(caught.value, HeadraceError)


def test_cuts_are_as_far_apart_as_set_and_as_recovery_allows() -> None:
    assert Settings().cut_every_s == 1.0 and Settings.of(commit="30 s").cut_every_s == 30.0
    assert Settings.of(commit="30 s", recovery="5 s").cut_every_s == 2.5, "a failure repeats two intervals at most"
    assert Settings.of(commit="1 s", recovery="60 s").cut_every_s == 1.0


def test_schemas_as_users_write_them() -> None:
    schema = to_schema(
        {"a": "int", "b": str, "c": "timestamp", "d": pa.list_(pa.int8()), "e": "timestamp[ms, UTC]", "f": "bool"}
    )
    assert schema.types == [
        pa.int64(), pa.string(), pa.timestamp("us"), pa.list_(pa.int8()), pa.timestamp("ms", "UTC"), pa.bool_()
    ]  # fmt: skip
    assert to_schema(schema) is schema


@pytest.mark.parametrize("kind", ["integer", "timestamp[parsec]", object])
def test_unknown_types_are_named(kind: Any) -> None:
    with pytest.raises(SchemaError, match=r"column 'a': .* is not an Arrow type such as 'int64'"):
        to_schema({"a": kind})


@pytest.mark.parametrize("schema", ["a int", ["a"], 3])
def test_what_is_no_schema_is_named(schema: Any) -> None:
    with pytest.raises(SchemaError, match="a schema is a mapping of column names to types"):
        to_schema(schema)


def test_schemas_from_first_records() -> None:
    schema = infer_schema([{"a": 1, "b": None}, {"a": 2.5, "c": "x"}], "step")
    assert schema.names == ["a", "b", "c"] and schema.types == [pa.float64(), pa.string(), pa.string()]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "step 'step': no sample record came through, so its columns are unknown; declare them: returns="),
        ([1], "step 'step' must return records (mappings), not int: 1"),
        ([{"a": 1}, {"a": "x"}], "step 'step': column 'a' mixes types in its first records"),
    ],
)
def test_records_without_one_schema_are_named(rows: list[Any], message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        infer_schema(rows, "step")
    assert message in str(caught.value)


def test_conform_reorders_casts_or_names_what_does_not_fit() -> None:
    schema = pa.schema([("a", pa.float64()), ("b", pa.string())])
    batch = conform(pa.record_batch({"b": ["x"], "extra": [0], "a": [1]}), schema, "step")
    assert batch.schema == schema and batch.to_pylist() == [{"a": 1.0, "b": "x"}]
    with pytest.raises(SchemaError, match="step 'step': column 'b' is missing; got a; the schema was fixed"):
        conform(pa.record_batch({"a": [1]}), schema, "step")
    with pytest.raises(SchemaError, match="step 'step': column 'a' is string now but double in the schema"):
        conform(pa.record_batch({"a": ["one"], "b": ["x"]}), schema, "step")
    assert empty_batch(schema).num_rows == 0


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None], pa.int64()),
        ([1, 2.0], pa.int32()),
        ([2**64 - 1], pa.uint64()),
        ([[1], [], None], pa.list_(pa.int64())),
    ],
)
def test_values_that_fit_a_column(values: list[Any], kind: pa.DataType) -> None:
    assert to_array(values, kind).type == kind and to_array(values, kind).to_pylist() == values


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2.5], pa.int64()),
        ([[1, 2.5]], pa.list_(pa.int64())),
        (["1"], pa.int64()),
        ([300], pa.uint8()),
        ([1], pa.string()),
    ],
)
def test_values_that_would_be_changed_do_not_fit(values: list[Any], kind: pa.DataType) -> None:
    with pytest.raises((pa.ArrowException, TypeError, ValueError)):
        to_array(values, kind)
