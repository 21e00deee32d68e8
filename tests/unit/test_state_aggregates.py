"""Accumulators and tables: merging partials in any way equals one pass, and equals plain Python."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import reference as ref
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Seen

import headrace as hr
from headrace.errors import SchemaError, StateError, UserCodeError
from headrace.graph.nodes import ReduceNode
from headrace.graph.reduction import Reducer
from headrace.runtime.operators.usercode import Guard
from headrace.runtime.reduce.reduce import make_table
from headrace.state.table.rowtable import GroupTable, Partials

FAIL = Guard("step", "fail")
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("x", pa.float64()), ("s", pa.string())])
RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.sampled_from(["a", "b", None]),
            "v": st.one_of(st.none(), st.integers(-100, 100)),
            "x": st.one_of(st.none(), st.sampled_from([float("nan"), math.inf, -0.0]), st.integers(-9, 9).map(float)),
            "s": st.one_of(st.none(), st.text("xyé", max_size=2)),
        }
    ),
    min_size=1,
    max_size=30,
)
PAIRS: dict[str, tuple[Reducer, Any]] = {
    "count": (hr.count(), ref.count()),
    "sum": (hr.sum("v"), ref.total("v")),
    "mean": (hr.mean("v"), ref.mean("v")),
    "min": (hr.min("x"), ref.smallest("x")),
    "max": (hr.max("x"), ref.largest("x")),
    "min_s": (hr.min("s"), ref.smallest("s")),
    "max_s": (hr.max("s"), ref.largest("s")),
    "top": (hr.top_k("x", 2), ref.top_k("x", 2)),
    "top_by": (hr.top_k("s", 2, by="v"), ref.top_k_by("s", 2, "v")),
    "distinct": (hr.count_distinct("x"), ref.distinct("x")),
    "distinct_s": (hr.count_distinct("s"), ref.distinct("s")),
    "first": (hr.first("s"), ref.first("s")),
    "last": (hr.last("x"), ref.last("x")),
    "all": (hr.collect_list("s"), ref.collected("s")),
    "user": (
        hr.reducer(init=int, update=lambda n, r: n + (r["v"] or 0), combine=lambda a, b: a + b),
        lambda members: sum(one.record["v"] or 0 for one in members),
    ),
}


def table_of(reducers: dict[str, Reducer], schema: pa.Schema = SCHEMA, keys: tuple[str, ...] = ("k",)) -> GroupTable:
    node = ReduceNode("step", keys, None, tuple(reducers.items()), ("before",))
    out = pa.schema([pa.field("user", pa.int64())])
    return make_table(node, schema, out, FAIL, 4)


def absorb(table: GroupTable, records: list[dict[str, Any]], times: list[int], schema: pa.Schema = SCHEMA) -> Any:
    batch = pa.RecordBatch.from_pylist(records, schema=schema)
    return table.absorb(batch, [batch.column(k.name) for k in table.key_fields], 0, np.array(times))


def results(table: GroupTable, names: list[str]) -> list[dict[str, Any]]:
    rows = table.rows_of(0)
    columns = [*table.key_columns(rows), *table.results(rows)]
    return pa.table(columns, names=[*(f.name for f in table.key_fields), *names]).to_pylist()  # type: ignore[no-any-return]


def expected(records: list[dict[str, Any]], times: list[int]) -> list[dict[str, Any]]:
    seen = [Seen(record, at) for record, at in zip(records, times)]
    return ref.whole(seen, ["k"], {name: fn for name, (_, fn) in PAIRS.items()})


# cmr fact 18: with and without combining, equal answers; cmr fact 19: each record is absorbed once
@given(RECORDS, st.data())
@settings(max_examples=60)
def test_merged_partials_equal_one_pass(records: list[dict[str, Any]], data: st.DataObject) -> None:
    times = [data.draw(st.integers(0, 5)) for _ in records]
    reducers = {name: ours for name, (ours, _) in PAIRS.items()}
    once = table_of(reducers)
    absorb(once, records, times)
    assert ref.bag(results(once, list(reducers))) == ref.bag(expected(records, times))

    merged = table_of(reducers)
    partials = Partials(merged.key_fields, table_of(reducers).accumulators)
    owner = [data.draw(st.integers(0, 2)) for _ in records]
    for part in range(3):
        mine = [i for i, o in enumerate(owner) if o == part]
        if not mine:
            continue
        batch = pa.RecordBatch.from_pylist([records[i] for i in mine], schema=SCHEMA)
        partial = partials.of(batch, [batch.column("k")], 0, np.array([times[i] for i in mine]))
        merged.absorb_partial(partial)
    assert ref.bag(results(merged, list(reducers))) == ref.bag(results(once, list(reducers)))


# chronostream fact 8: what a table exports and loads again has the same results and the same digests
@given(st.lists(RECORDS, min_size=1, max_size=3), st.data())
@settings(max_examples=25)
def test_changes_rebuild_the_table(batches: list[list[dict[str, Any]]], data: st.DataObject) -> None:
    from headrace.state.durable.changes import ZERO_DIGEST, digest_of, merge_chain

    reducers = {name: ours for name, (ours, _) in PAIRS.items()}
    table = table_of(reducers)
    chains: dict[int, list[Any]] = {}
    for records in batches:
        absorb(table, records, [0] * len(records))
        if data.draw(st.booleans()):
            table.drop(table.rows_of(0)[:1])
        for change in table.changes():
            chain = chains.setdefault(change.slice, [])
            assert change.parent == (chain[-1].digest if chain else ZERO_DIGEST)
            chain.append(change)
    again = table_of(reducers)
    for slice, changes in chains.items():
        image = merge_chain([c.puts for c in changes], [c.deletes for c in changes])
        assert digest_of(image) == changes[-1].digest
        again.load(slice, image, changes[-1].digest)
    assert ref.bag(results(again, list(reducers))) == ref.bag(results(table, list(reducers)))
    assert again.changes() == []


@given(
    st.lists(st.floats(allow_nan=False, width=64), min_size=1, max_size=40),
    st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.99, 1.0]),
)
def test_quantile_is_within_one_percent(values: list[float], q: float) -> None:
    table = table_of({"q": hr.quantile("x", q)})
    absorb(table, [{"k": "a", "x": x} for x in values], [0] * len(values))
    exact = sorted(values)[math.floor(q * (len(values) - 1))]
    got = results(table, ["q"])[0]["q"]
    assert got == exact or abs(got - exact) <= 0.0101 * abs(exact) or exact == pytest.approx(0, abs=1e-307)


def test_quantile_ignores_what_has_no_rank() -> None:
    table = table_of({"q": hr.quantile("x", 0.5)})
    absorb(table, [{"k": "a", "x": x} for x in (None, float("nan"), 8.0, float("nan"))], [0] * 4)
    absorb(table, [{"k": "b", "x": None}], [0])
    assert {row["k"]: row["q"] for row in results(table, ["q"])} == {"a": pytest.approx(8, rel=0.011), "b": None}


_AT = datetime(2024, 2, 29, 12, 30, 0, 5)
TYPED: list[tuple[pa.DataType, list[Any]]] = [
    (pa.timestamp("us"), [_AT, _AT + timedelta(days=1)]),
    (pa.timestamp("us", "UTC"), [_AT.replace(tzinfo=UTC), _AT.replace(tzinfo=UTC) + timedelta(days=1)]),
    (pa.timestamp("s"), [_AT.replace(microsecond=0), _AT.replace(microsecond=0) + timedelta(days=1)]),
    (pa.date32(), [date(1969, 1, 1), date(2024, 1, 1)]),
    (pa.time64("us"), [time(1, 2, 3), time(23, 0)]),
    (pa.time32("s"), [time(1, 2, 3), time(23, 0)]),
    (pa.duration("us"), [timedelta(seconds=-1), timedelta(days=3)]),
    (pa.bool_(), [False, True]),
    (pa.int8(), [-128, 127]),
    (pa.uint64(), [1, 2**64 - 1]),
    (pa.int64(), [-(2**63), 2**63 - 1]),
    (pa.float32(), [-1.5, 2.25]),
    (pa.decimal128(10, 2), [Decimal("-1.25"), Decimal("99.50")]),
    (pa.string(), ["a", "é"]),
    (pa.binary(), [b"\x00", b"\xff"]),
]


@pytest.mark.parametrize(("kind", "values"), TYPED, ids=lambda v: str(v) if isinstance(v, pa.DataType) else "")
def test_every_type_keeps_its_values(kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([("k", pa.string()), ("v", kind)])
    reducers: dict[str, Reducer] = {
        "low": hr.min("v"), "high": hr.max("v"), "first": hr.first("v"), "last": hr.last("v"), "n": hr.count_distinct("v"),
        "top": hr.top_k("v", 1), "all": hr.collect_list("v"),
    }  # fmt: skip
    table = table_of(reducers, schema)
    records = [{"k": "a", "v": v} for v in [values[1], None, values[0], values[1]]] + [{"k": "none", "v": None}]
    absorb(table, records, [0, 1, 2, 3, 4], schema)
    low, high = values
    rows = {row.pop("k"): row for row in results(table, list(reducers))}
    assert rows["a"] == {
        "low": low, "high": high, "first": high, "last": high, "n": 2, "top": [high], "all": [high, low, high]
    }  # fmt: skip
    assert rows["none"] == {"low": None, "high": None, "first": None, "last": None, "n": 0, "top": [], "all": []}
    assert table.results(table.rows_of(0))[0].type == kind


@pytest.mark.parametrize("reducer", [hr.sum("v"), hr.mean("v"), hr.quantile("v", 0.5)])
def test_numbers_are_demanded(reducer: Reducer) -> None:
    with pytest.raises(SchemaError, match="needs a numeric column, but 'v' is string"):
        table_of({"out": reducer}, pa.schema([("k", pa.string()), ("v", pa.string())]))


@pytest.mark.parametrize(
    "reducer", [hr.min("v"), hr.max("v"), hr.top_k("v", 2), hr.count_distinct("v"), hr.top_k("k", 1, by="v")]
)
def test_lists_cannot_be_ranked(reducer: Reducer) -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.list_(pa.int64()))])
    with pytest.raises(SchemaError, match="can be ranked"):
        table_of({"out": reducer}, schema)


def test_infinities_add_up_without_noise() -> None:
    table = table_of({"sum": hr.sum("x"), "mean": hr.mean("x")})
    absorb(table, [{"k": "a", "x": math.inf}, {"k": "a", "x": -math.inf}, {"k": "b", "x": math.inf}], [0, 0, 0])
    rows = {row["k"]: row for row in results(table, ["sum", "mean"])}
    assert math.isnan(rows["a"]["sum"]) and rows["b"] == {"k": "b", "sum": math.inf, "mean": math.inf}


def user_table(guard: Guard, result: pa.DataType = pa.int64(), **functions: Any) -> GroupTable:
    reducer = hr.reducer(**{"init": int, "update": lambda n, r: n + r["v"], **functions})
    node = ReduceNode("step", ("k",), None, (("user", reducer),), ("before",))
    return make_table(node, SCHEMA, pa.schema([("user", result)]), guard, 4)


@pytest.mark.parametrize(
    ("functions", "result", "cause"),
    [
        ({"update": lambda n, r: 1 // 0}, pa.int64(), "ZeroDivisionError"),
        ({"init": lambda: 1 // 0}, pa.int64(), "ZeroDivisionError"),
        ({"finalize": lambda n: 1 // 0}, pa.int64(), "ZeroDivisionError"),
        ({"finalize": lambda n: "text"}, pa.int64(), "SchemaError: reducer 'user' gave a value that does not fit"),
        ({"finalize": lambda n: n + 0.5}, pa.int64(), "SchemaError: reducer 'user' gave a value that does not fit"),
    ],
)
def test_a_users_reducer_that_fails_is_named(functions: Any, result: pa.DataType, cause: str) -> None:
    table = user_table(FAIL, result, **functions)
    with pytest.raises(UserCodeError, match=cause) as caught:
        absorb(table, [{"k": "a", "v": 1}], [0])
        table.results(table.rows_of(0))
    assert caught.value.step == "step"
    skipping = Guard("step", "skip")
    table = user_table(skipping, result, **functions)
    absorb(table, [{"k": "a", "v": 1}], [0])
    assert results(table, ["user"]) == [{"k": "a", "user": None}] and skipping.skipped == 1


def test_state_that_is_not_plain_is_refused() -> None:
    table = user_table(FAIL, init=object, update=lambda state, record: state)
    absorb(table, [{"k": "a", "v": 1}], [0])
    with pytest.raises(StateError, match=r"reducer 'user' holds .* cannot be stored \(a object\)"):
        table.changes()


# chronostream fact 7: the bytes of a change depend on what changed, not on how much state there is
def test_change_bytes_depend_on_dirty_keys() -> None:
    def change_bytes(keys: int) -> int:
        table = table_of({"n": hr.count(), "words": hr.collect_list("s"), "sum": hr.sum("v")})
        absorb(table, [{"k": f"key{i:06d}", "v": i, "s": "word"} for i in range(keys)], [0] * keys)
        table.changes()
        absorb(table, [{"k": f"key{i:06d}", "v": 1, "s": "word"} for i in range(50)], [0] * 50)
        return sum(c.puts.nbytes + c.deletes.nbytes for c in table.changes())

    assert change_bytes(20_000) <= 1.1 * change_bytes(200)
