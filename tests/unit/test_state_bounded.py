"""Hash engines: whatever fits in memory and whatever the order, the answers are those of sorting."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.graph.nodes import ReduceNode
from headrace.runtime.operators.usercode import Guard
from headrace.runtime.reduce.reduce import make_table
from headrace.state.durable.changes import ZERO_DIGEST, digest_of, merge_chain
from headrace.state.spill.bounded import ENGINES, BoundedTable, Parts
from headrace.state.spill.bounds import Bound
from headrace.state.spill.mrhash import MrHash
from headrace.state.table.panes import PaneStates
from headrace.state.table.rowtable import Partials

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
TEXTS = pa.schema([("k", pa.string()), ("v", pa.int64())])
EVERY_ENGINE = [*ENGINES, "mr"]
SUM = {"n": hr.count(), "total": hr.sum("v")}
LISTS = {"vs": hr.collect_list("v")}
USER = {
    "u": hr.reducer(
        init=list, update=lambda s, r: [*s, r["v"]], combine=lambda a, b: a + b, finalize=lambda s: sorted(s)
    )
}
OUT = pa.schema([("u", pa.list_(pa.int64()))])


def states_of(
    tmp_path: Path, engine: str, reducers: dict[str, Any], schema: pa.Schema = SCHEMA, **bound: Any
) -> PaneStates:
    node = ReduceNode("step", ("k",), None, tuple(reducers.items()), ("before",))

    def table(slots: int | None = None, policy: Any = ENGINES["inc"]) -> Any:
        return make_table(node, schema, OUT, Guard("step", "fail"), 4, slots=slots, policy=policy)

    def partials() -> Partials:
        made = table()
        return Partials(made.key_fields, made.accumulators)

    bound.setdefault("memory_bytes", 64_000)
    limits = Bound(engine=engine, directory=tmp_path, slices=4, **bound)
    parts = Parts(table, partials)
    return MrHash(parts, limits, schema, ("k",)) if engine == "mr" else BoundedTable(parts, limits)


def feed(states: PaneStates, keys: Any, values: Any = None, panes: Any = 0, schema: pa.Schema = SCHEMA) -> None:
    values = np.arange(len(keys)) if values is None else values
    batch = pa.RecordBatch.from_arrays([pa.array(keys, schema.field(0).type), pa.array(values)], schema=schema)
    states.absorb(batch, [batch.column(0)], panes, np.zeros(len(keys), np.int64))


def answers(states: PaneStates, panes: list[int] | None = None) -> dict[Any, tuple[Any, ...]]:
    found: dict[Any, tuple[Any, ...]] = {}
    for table, rows in states.settled([0] if panes is None else panes):
        columns = [table.key_columns(rows)[0], *table.results(rows)]
        for key, *results in zip(*(column.to_pylist() for column in columns)):
            assert key not in found, "a key is settled once"
            found[key] = tuple(tuple(sorted(r)) if isinstance(r, list) else r for r in results)
    return found


def expected_sums(keys: list[Any], values: list[int]) -> dict[Any, tuple[int, int]]:
    n, total = Counter(keys), Counter[Any]()
    for key, value in zip(keys, values):
        total[key] += value
    return {key: (n[key], total[key]) for key in n}


# scalla facts 1 and 2: exact at one slot, at more slots than keys, for no input, one key, all-distinct keys, any order
@pytest.mark.parametrize("engine", EVERY_ENGINE)
@given(st.lists(st.lists(st.integers(0, 30), max_size=40), max_size=4), st.sampled_from([1, 2, 7, 100]))
@settings(max_examples=25)
def test_every_engine_equals_the_reference(
    tmp_path_factory: Any, engine: str, batches: list[list[int]], slots: int
) -> None:
    states = states_of(tmp_path_factory.mktemp("spill"), engine, SUM, slots=slots, buckets=3)
    try:
        for keys in batches:
            feed(states, keys, np.array(keys, np.int64) * 10)
        flat = [key for keys in batches for key in keys]
        assert answers(states) == expected_sums(flat, [10 * key for key in flat])
    finally:
        states.close()


@pytest.mark.parametrize("engine", EVERY_ENGINE)
@pytest.mark.parametrize("order", ["distinct", "adversarial", "one key", "sorted"])
def test_orders_that_are_hard_for_a_policy(tmp_path: Path, engine: str, order: str) -> None:
    keys = {
        "distinct": np.arange(3000),
        "adversarial": np.tile(np.arange(2 * 50 + 1), 30),
        "one key": np.zeros(3000, np.int64),
        "sorted": np.sort(np.arange(3000) % 500),
    }[order]
    states = states_of(tmp_path, engine, SUM, slots=50, buckets=4)
    feed(states, keys)
    assert answers(states) == expected_sums(keys.tolist(), list(range(len(keys))))
    states.close()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


# scalla fact 3
@pytest.mark.parametrize("engine", ["inc", "dinc", "mr"])
def test_a_bucket_larger_than_memory_is_spread_by_another_hash_function(tmp_path: Path, engine: str) -> None:
    keys = np.random.default_rng(1).permutation(np.repeat(np.arange(3_000), 2))
    states = states_of(tmp_path, engine, SUM, memory_bytes=100_000, buckets=2)
    feed(states, keys)
    depths = set()
    found: dict[int, int] = {}
    for table, rows in states.settled([0]):
        depths.add(len(list(tmp_path.rglob("rows-*"))))
        found.update(zip(table.key_columns(rows)[0].to_pylist(), table.results(rows)[0].to_pylist()))
    assert max(depths) >= 3, "two buckets of fifteen hundred keys do not fit into 25 kB"
    assert found == dict.fromkeys(range(3_000), 2)
    states.close()


# scalla fact 4
def test_inc_writes_nothing_when_all_keys_fit(tmp_path: Path) -> None:
    states = states_of(tmp_path, "inc", SUM, memory_bytes=4_000_000)
    for seed in range(5):
        feed(states, np.random.default_rng(seed).permutation(5000))
    assert isinstance(states, BoundedTable)
    assert states.disk.rows_added == states.disk.written_bytes == 0
    assert len(answers(states)) == 5000
    states.close()


# scalla fact 20: tables, metadata and write buffers, at all times
@pytest.mark.parametrize(
    ("engine", "schema", "reducers"),
    [
        *((engine, schema, SUM) for engine in ENGINES for schema in (SCHEMA, TEXTS)),
        *((engine, TEXTS, reducers) for engine in ("inc", "dinc") for reducers in (LISTS, USER)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_memory_stays_within_the_bound(tmp_path: Path, engine: str, reducers: Any, schema: pa.Schema) -> None:
    bound = 400_000
    states = states_of(tmp_path, engine, reducers, schema, memory_bytes=bound)
    dice = np.random.default_rng(3)
    keys: list[Any] = []
    for _ in range(5):
        batch = (dice.zipf(1.3, 3000) % 40_000).tolist()
        batch = [f"a user called {key}" for key in batch] if schema is TEXTS else batch
        feed(states, batch, schema=schema)
        keys += batch
        assert states.nbytes <= bound
        for store in states.stores().values():
            store.changes()
        assert states.nbytes <= bound
    found = answers(states)
    assert len(found) == len(set(keys))
    if reducers is SUM:
        assert {key: result[0] for key, result in found.items()} == dict(Counter(keys))
    else:
        assert sum(len(result[0]) for result in found.values()) == len(keys)
    states.close()


@pytest.mark.parametrize("engine", ENGINES)  # MR-hash has a pane per window: without combine nothing is assembled
def test_panes_are_kept_apart_and_assembled(tmp_path: Path, engine: str) -> None:
    keys = np.random.default_rng(4).integers(0, 400, 6000)
    panes = np.arange(6000) // 1000
    states = states_of(tmp_path, engine, SUM, slots=60, buckets=4)
    for start in range(0, 6000, 700):
        at = slice(start, start + 700)
        feed(states, keys[at], np.arange(6000)[at], panes[at])
    for window in ([0], [1, 2], [3, 4, 5]):
        inside = np.isin(panes, window)
        assert answers(states, window) == expected_sums(keys[inside].tolist(), np.flatnonzero(inside).tolist())
    states.drop_pane(1)
    assert 1 not in states.panes() and answers(states, [1]) == {}
    assert answers(states, [1, 2]) == answers(states, [2])
    states.close()


# scalla fact 39, chronostream fact 8: what was stored in chunks, memory and disk, rebuilds the same answers
@pytest.mark.parametrize("engine", EVERY_ENGINE)
@given(st.lists(st.tuples(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.booleans()), max_size=6), st.data())
@settings(max_examples=15)
def test_changes_rebuild_the_state(
    tmp_path_factory: Any, engine: str, batches: list[tuple[list[int], bool]], data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("spill")
    states = states_of(directory, engine, SUM, slots=5, buckets=3)
    chains: dict[tuple[str, int], list[Any]] = {}

    def chunk() -> None:
        for name, store in states.stores().items():
            dirty = store.dirty_bytes()
            for change in store.changes():
                assert dirty
                chain = chains.setdefault((name, change.slice), [])
                assert change.parent == (chain[-1].digest if chain else ZERO_DIGEST)
                chain.append(change)

    kept: list[int] = []
    for keys, drop in batches:
        feed(states, keys, np.array(keys))
        kept += keys
        if drop:
            states.drop_pane(0)
            kept = []
        if data.draw(st.booleans()):
            chunk()
    chunk()
    before, expected = states, expected_sums(kept, kept)
    for slots in (5, 2, 40):  # the same memory, less, and enough
        states = states_of(directory, engine, SUM, slots=slots, buckets=3)
        for name, store in states.stores().items():
            for slice, chain in [(slice, chain) for (of, slice), chain in chains.items() if of == name]:
                image = merge_chain([c.puts for c in chain], [c.deletes for c in chain])
                assert digest_of(image) == chain[-1].digest
                store.load(slice, image, chain[-1].digest)
        assert answers(states) == answers(before) == expected
        chunk()
        before.close()
        before = states
    before.close()


# scalla fact 20: keys longer than the room left for them take slots from others, once; answers stay exact
def test_long_keys_stay_within_the_bound(tmp_path: Path) -> None:
    memory_bytes, schema = 400_000, pa.schema([("k", pa.string()), ("v", pa.int64())])
    states = states_of(tmp_path, "inc", {"n": hr.count()}, schema, memory_bytes=memory_bytes)
    keys = [f"{n:0>300}" for n in range(3000)]
    peak_bytes = 0
    for start in range(0, 6000, 500):
        part = pa.array([keys[n % 3000] for n in range(start, start + 500)])
        batch = pa.record_batch([part, pa.array(np.ones(500, np.int64))], schema=schema)
        states.absorb(batch, [part], 0, np.zeros(500, np.int64))
        peak_bytes = max(peak_bytes, states.nbytes)
    assert peak_bytes <= memory_bytes
    counts: dict[str, int] = {}
    for table, rows in states.settled([0]):
        counts |= dict(zip(table.key_columns(rows)[0].to_pylist(), table.results(rows)[0].to_pylist()))
    assert counts == dict.fromkeys(keys, 2)
    states.close()


# scalla 2.5: what is refused may be combined before it is written (cb), or not (init alone): the states are the same
def test_refused_records_combined_or_not() -> None:
    node = ReduceNode("step", ("k",), None, (("n", hr.count()), ("total", hr.sum("v"))), ("before",))
    made = make_table(node, SCHEMA, OUT, Guard("step", "fail"), 4)
    partials = Partials(made.key_fields, made.accumulators)
    batch = pa.RecordBatch.from_arrays([pa.array([3, 1, 3]), pa.array([10, 20, 30])], schema=SCHEMA)
    one, each = (
        of(batch, [batch.column(0)], 7, np.zeros(3, np.int64)).to_pylist() for of in (partials.of, partials.of_each)
    )
    assert [(row["k"], row["n.n"], row["total.value"]) for row in one] == [(3, 2, 40), (1, 1, 20)]
    assert [(row["k"], row["n.n"], row["total.value"]) for row in each] == [(3, 1, 10), (1, 1, 20), (3, 1, 30)]
    assert {row["__pane"] for row in each} == {7}


def test_few_repeated_keys_are_written_one_by_one(tmp_path: Path) -> None:
    """Distinct keys are looked through once in a while only; the answers stay exact."""
    reducers = {"n": hr.count(), "total": hr.sum("v")}
    keys = [*np.random.default_rng(3).permutation(6000).tolist(), *([7000] * 9000)]
    states = states_of(tmp_path, "inc", reducers, slots=100)
    assert isinstance(states, BoundedTable)
    feed(states, keys)
    assert 5900 < states.disk.rows_added < 11_000, "where keys repeat again, they are combined again"
    assert answers(states) == expected_sums(keys, list(range(len(keys))))
    states.close()
