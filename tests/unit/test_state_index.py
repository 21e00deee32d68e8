"""The index against a dictionary: any keys, any panes, any order of dropping, colliding hashes, bounded memory."""

from __future__ import annotations

import gc
import random
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import StateError
from headrace.state.compiled import _DIGEST, KERNEL_MODULES, compiled
from headrace.state.index import keybytes, probing, residency
from headrace.state.index import registers as reg
from headrace.state.index.keyindex import KeyIndex
from headrace.state.index.policies import FREQUENT, INC, MARKER, SPACE_SAVING
from headrace.state.spill import buckets
from headrace.state.spill.buckets import bucket_of
from headrace.state.warming import warm

KINDS: dict[str, tuple[list[pa.DataType], list[tuple[Any, ...]]]] = {
    "int": ([pa.int64()], [(None,), *((i,) for i in range(-2, 60))]),
    "text": ([pa.string()], [(None,), *(("user" * (i % 5) + str(i),) for i in range(60)), ("",)]),
    "several": (
        [pa.int32(), pa.string(), pa.float64()],
        [(a, b, c) for a in (None, 0, 1) for b in (None, "", "a", "ab") for c in (None, 0.5, 2.0)],
    ),
}
MASKS = {"whole hash": -1, "eight hashes": -(2**61), "one hash": 0}


def index_of(kind: str, mask: int = -1, **options: Any) -> KeyIndex:
    index = KeyIndex([pa.field(str(i), t) for i, t in enumerate(KINDS[kind][0])], **options)
    index._table.registers[reg.HASH_MASK] = mask
    return index


def columns_of(kind: str, keys: list[tuple[Any, ...]]) -> list[pa.Array]:
    return [pa.array([key[i] for key in keys], t) for i, t in enumerate(KINDS[kind][0])]


def keys_of(index: KeyIndex, rows: Any) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in index.key_columns(rows))))


class Model:
    """An unbounded index, and the dictionary that it must equal."""

    def __init__(self, kind: str, mask: int) -> None:
        self.kind, self.index = kind, index_of(kind, mask)
        self.rows: dict[tuple[int, Any], int] = {}

    def admit(self, keys: list[tuple[Any, ...]], panes: list[int]) -> None:
        admission = self.index.admit(columns_of(self.kind, keys), np.array(panes, np.int64))
        fresh = []
        for pane, key, row in zip(panes, keys, admission.rows.tolist()):
            if (pane, key) not in self.rows:
                assert row not in self.rows.values(), "a row number given twice"
                self.rows[pane, key] = row
                fresh.append(row)
            assert self.rows[pane, key] == row
        assert admission.fresh.tolist() == fresh and not len(admission.evicted)

    def drop(self, pairs: list[tuple[int, Any]]) -> None:
        self.index.drop(np.array([self.rows.pop(pair) for pair in pairs], np.int64))

    def check(self) -> None:
        index, rows = self.index, self.index.all_rows()
        assert len(index) == len(rows) == len(self.rows) and rows.tolist() == sorted(self.rows.values())
        pairs = list(zip(index.pane_of(rows).tolist(), keys_of(index, rows)))
        assert dict(zip(pairs, rows.tolist())) == self.rows
        assert index.panes() == sorted({pane for pane, _ in self.rows})
        for pane in (0, 1, -(2**62), 99):
            assert index.rows_of(pane).tolist() == sorted(row for (p, _), row in self.rows.items() if p == pane)
        everything = [(pane, key) for pane in (0, 1) for key in KINDS[self.kind][1]]
        found = index.find(
            columns_of(self.kind, [key for _, key in everything]), np.array([pane for pane, _ in everything])
        )
        assert found.tolist() == [self.rows.get(pair, -1) for pair in everything]
        assert index.capacity > max(self.rows.values(), default=-1)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_storms_of_drops_and_returns(kind: str, mask: int, seed: int) -> None:
    """Also when all keys have the same hash: then only the comparison of whole keys tells them apart."""
    dice, model = random.Random(seed), Model(kind, mask)
    for _ in range(60):
        n = dice.choice([0, 1, 5, 60])
        keys = [dice.choice(KINDS[kind][1]) for _ in range(n)]
        model.admit(keys, [dice.choice([0, 1, -(2**62)]) for _ in range(n)])
        if model.rows and dice.random() < 0.7:
            model.drop(dice.sample(sorted(model.rows, key=repr), dice.randint(0, len(model.rows))))
        model.check()


@pytest.mark.parametrize("policy", [FREQUENT, SPACE_SAVING, MARKER], ids=lambda p: p.rule.name)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("kind", KINDS)
def test_evicted_rows_stay_readable_until_released(kind: str, mask: int, policy: Any) -> None:
    dice, index = random.Random(4), index_of(kind, mask, slots=9, policy=policy)
    pending: dict[int, tuple[int, Any, int]] = {}
    for _ in range(60):
        keys, panes = [dice.choice(KINDS[kind][1]) for _ in range(6)], [dice.choice([0, 1]) for _ in range(6)]
        before = {*index.all_rows().tolist()}
        admission = index.admit(columns_of(kind, keys), np.array(panes))
        assert {*admission.evicted.tolist()} <= before | {*admission.fresh.tolist()}, (
            "a row that was not live was evicted"
        )
        assert not pending.keys() & {*admission.fresh.tolist()}, "the number of an evicted row was used again"
        assert not pending.keys() & {*admission.rows.tolist()}
        for row in admission.evicted.tolist():
            at = np.array([row])
            pending[row] = (int(index.pane_of(at)[0]), keys_of(index, at)[0], int(index.hash_of(at)[0]))
        for row, (pane, key, hashed) in pending.items():
            at = np.array([row])
            assert (index.pane_of(at)[0], keys_of(index, at)[0], index.hash_of(at)[0]) == (pane, key, hashed)
        live = index.all_rows()
        assert not {*live.tolist()} & pending.keys() and len(live) == len(index) <= 9
        assert len({*zip(index.pane_of(live).tolist(), keys_of(index, live))}) == len(live)
        assert index.panes() == sorted({*index.pane_of(live).tolist()})
        if dice.random() < 0.2:
            index.drop(live[:: dice.randint(1, 3)])
        if dice.random() < 0.3:
            index.release(np.array(list(pending), np.int64))
            pending.clear()


def test_one_batch_may_enter_and_push_out_the_same_key_twice() -> None:
    index = index_of("int", slots=1, policy=SPACE_SAVING)
    admission = index.admit(columns_of("int", [(1,), (2,), (1,), (2,)]), 0)
    assert admission.rows.tolist() == admission.fresh.tolist() == [0, 1, 2, 3]
    assert admission.evicted.tolist() == [0, 1, 2] and index.capacity == 4
    index.release(admission.evicted)
    assert index.admit(columns_of("int", [(5,)]), 0).rows[0] < 4


@given(st.integers(0, 2**63), st.booleans())
@settings(max_examples=20)
def test_hashes_are_the_same_for_records_and_rows(seed: int, text: bool) -> None:
    kind = "text" if text else "int"
    index = index_of(kind, seed=seed)
    columns = columns_of(kind, KINDS[kind][1])
    admission = index.admit(columns, 7)
    assert index.hash_of(admission.rows).tolist() == admission.hashes.tolist()
    assert len({*admission.hashes.tolist()}) == len(admission.hashes)
    assert index.admit(columns, 8).hashes.tolist() != admission.hashes.tolist(), "the pane is part of the key"
    assert index_of(kind, seed=seed + 1).admit(columns, 7).hashes.tolist() != admission.hashes.tolist()


# scalla 2.4: buckets are re-partitioned with independent functions
def test_levels_of_buckets_are_independent() -> None:
    index = index_of("int")
    hashes = index.admit([pa.array(np.arange(100_000))], 0).hashes
    first, second = bucket_of(hashes, 0, 16), bucket_of(hashes, 1, 16)
    together = np.bincount(first * 16 + second, minlength=256)
    assert together.min() > 300 and together.max() < 480, "expected 391 in each pair of buckets"
    assert {*first.tolist()} == {*range(16)} and bucket_of(hashes, 5, 1).max() == 0
    slots = (hashes >> np.uint64(60)).astype(np.int64)
    assert np.bincount(first * 16 + slots, minlength=256).min() > 300, "a bucket's keys must spread over the table"


# scalla fact 20: all memory is accounted for, and bounded by slots
@pytest.mark.parametrize("kind", ["int", "text"])
def test_memory_is_accounted_for_exactly(kind: str) -> None:
    keys = pa.array(np.arange(200_000)) if kind == "int" else pa.array([f"user{i:06d}" for i in range(200_000)])
    warm()
    index_of(kind, policy=FREQUENT).admit([keys.slice(0, 5000)], 0)
    gc.collect()
    tracemalloc.start()
    index = index_of(kind, policy=FREQUENT)
    for at in range(0, 200_000, 5000):
        rows = index.admit([keys.slice(at, 5000)], at % 7).rows
    index.drop(rows[:10])
    del rows
    gc.collect()
    traced, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert index.nbytes == pytest.approx(traced, rel=0.01)
    held = sum(a.nbytes for a in gc.get_referents(index._table) if isinstance(a, np.ndarray))
    assert 0 <= index.nbytes - held < 2000, "the count of rows per pane is small"


# scalla fact 20: memory stays within what slots and one batch's evictions need, at all times
@pytest.mark.parametrize("policy", [INC, FREQUENT, SPACE_SAVING, MARKER], ids=lambda p: p.rule.name)
def test_memory_does_not_grow_with_the_number_of_keys(policy: Any) -> None:
    slots, batch, maximum, peak = 1000, 500, 0, 0
    index = KeyIndex([pa.field("k", pa.string())], slots=slots, policy=policy)
    for at in range(0, 100_000, batch):
        admission = index.admit([pa.array([f"user{i:06d}" for i in range(at, at + batch)])], 0)
        maximum = max(maximum, len(admission.evicted))
        assert index.capacity <= slots + maximum and len(index) <= slots
        index.release(admission.evicted)
        peak = max(peak, index.nbytes)
    rows, slot_table, arena, rest = 65 * (slots + 2 * batch), 8 * 2048, 4 * 10 * (slots + batch), 1000
    assert peak <= rows + slot_table + arena + rest
    assert (maximum > 0) == policy.evicts


# scalla 2.6: metadata size is INC < Marker < Frequent = Space-Saving
def test_policies_need_more_and_more_metadata() -> None:
    sizes = []
    for policy in (INC, MARKER, FREQUENT, SPACE_SAVING):
        index = KeyIndex([pa.field("k", pa.int64())], slots=1000, policy=policy)
        index.admit([pa.array(np.arange(1000))], 0)
        sizes.append(index.nbytes)
    assert sizes[0] < sizes[1] < sizes[2] == sizes[3]


def test_bytes_of_gone_keys_are_reclaimed() -> None:
    index = KeyIndex([pa.field("k", pa.string())])
    for at in range(300):
        rows = index.admit([pa.array([f"a key of some length {i}" for i in range(at * 100, at * 100 + 100)])], at).rows
        index.drop(rows[1:])
    arena, used = index._table.arena, int(index._table.registers[reg.ARENA_USED])
    kept = sum(len(f"a key of some length {at * 100}") for at in range(300))
    assert kept <= used <= 2 * kept + 1024 and len(arena) <= 2 * used + 1024
    names = index.key_columns(index.all_rows())[0].to_pylist()
    assert sorted(names) == sorted(f"a key of some length {at * 100}" for at in range(300))


def test_misuse_is_refused_and_changes_nothing() -> None:
    index = index_of("int", slots=1, policy=SPACE_SAVING)
    evicted = index.admit(columns_of("int", [(1,), (2,)]), 0).evicted
    for rows in ([0], [1, 1], [1, 5], [-1], [1, 0]):
        with pytest.raises(StateError, match=r"row -?\d is not in the index"):
            index.drop(np.array(rows))
    for rows in ([1], [0, 0], [7]):
        with pytest.raises(StateError, match=r"row \d was not evicted"):
            index.release(np.array(rows))
    assert len(index) == 1 and index.find(columns_of("int", [(2,)]), 0).tolist() == [1]
    index.release(evicted)
    index.drop(np.array([1]))
    assert len(index) == 0 and index.panes() == [] and index.all_rows().tolist() == []
    with pytest.raises(StateError, match="3 records, but 1 panes"):
        index.admit(columns_of("int", [(1,)] * 3), np.array([0]))
    for weights in ([1], [1, 0, 1], [1, -1, 1]):
        with pytest.raises(StateError, match="3 records need as many weights, all of them positive"):
            index.admit(columns_of("int", [(1,)] * 3), 0, weights=np.array(weights))
    with pytest.raises(StateError, match="at least one slot, not 0"):
        index_of("int", slots=0)


def test_kernels_are_compiled_for_one_kind_of_arrays() -> None:
    """A second kind would be compiled while records wait: read-only, sliced and strided input must be the first."""
    warm()
    kernels = [k for m in (buckets, keybytes, probing, residency) for k in vars(m).values() if hasattr(k, "signatures")]
    before = {kernel.py_func.__name__: len(kernel.signatures) for kernel in kernels}
    strided = np.arange(40)[::2]
    for kind in KINDS:
        index = index_of(kind, slots=5, policy=SPACE_SAVING)
        columns = [c.slice(3, 20) for c in columns_of(kind, KINDS[kind][1][:30])]
        admission = index.admit(columns, pa.array(range(20)).to_numpy(), weights=strided + 1, now=3)
        index.admit([pa.array(c.to_pylist()[::2], c.type) for c in columns], strided[:10].astype(np.int32))
        index.find(columns, strided)
        index.release(admission.evicted[::2])
        index.drop(index.all_rows()[::2])
        index.key_columns(index.all_rows())
        bucket_of(admission.hashes[::2], 1, 3)
    assert {kernel.py_func.__name__: len(kernel.signatures) for kernel in kernels} == before
    cached = [kernel for kernel in kernels if kernel.signatures and kernel._cache.cache_path]
    assert len(cached) >= 10 and {kernel._cache._cache_file._source_stamp for kernel in cached} == {_DIGEST}


def test_a_changed_part_of_a_kernel_is_compiled_anew() -> None:
    """numba looks only at the kernel's own file; all files with parts of kernels must be in the digest."""
    home = Path(residency.__file__).parent.parent
    with_parts = (path for path in home.rglob("*.py") if re.search(r"^@(compiled|inlined)$", path.read_text(), re.M))
    parts = {path.relative_to(home).with_suffix("").as_posix() for path in with_parts}
    assert {*KERNEL_MODULES} == parts | {"index/registers", "index/policies"}


def test_without_a_place_for_the_cache_kernels_still_work() -> None:
    made: dict[str, Any] = {}
    exec("def twice(x): return 2 * x", made)
    assert compiled(made["twice"])(21) == 42


def test_a_fresh_process_compiles_nothing() -> None:
    """Compiling takes many seconds, loading from the cache a fraction of one."""
    warm()
    probe = """
from headrace.state.spill import buckets
from headrace.state.index import keybytes
from headrace.state.index import probing
from headrace.state.index import residency
from headrace.state import warming
warming.warm()
kernels = [k for m in (buckets, keybytes, probing, residency) for k in vars(m).values() if hasattr(k, "stats")]
print(sum(len(k.stats.cache_hits) for k in kernels), sum(len(k.stats.cache_misses) for k in kernels))
"""
    told = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    hits, misses = map(int, told.stdout.split())
    assert hits >= 10 and misses == 0


def test_an_index_can_be_narrowed_to_what_it_holds() -> None:
    index = KeyIndex([pa.field("k", pa.int64())], slots=10)
    index.admit([pa.array([1, 2, 3])], 0)
    with pytest.raises(StateError, match="drop some first"):
        index.narrow(2)
    index.narrow(3)
    assert index.admit([pa.array([4, 1])], 0).rows.tolist() == [-1, 0]
    index.narrow(10)
    assert index.admit([pa.array([4])], 0).rows.tolist() == [-1], "it only gets narrower"


@pytest.mark.parametrize(("before", "rows"), [(0, 5_000), (3_000, 5_000), (3_000, 10), (0, 0)])
def test_room_that_is_made_at_once_is_as_good_as_room_made_step_by_step(before: int, rows: int) -> None:
    keys = pa.array(np.random.default_rng(7).permutation(8_000))
    grown, made = (KeyIndex([pa.field("k", pa.int64())]) for _ in range(2))
    for index in (grown, made):
        index.admit([keys.slice(0, before)], 0)
    made.reserve(rows)
    held = made.nbytes
    made.admit([keys.slice(before, max(rows - before, 0))], 0)
    assert made.nbytes - held < 1_000, "nothing had to grow but the number of panes"
    grown.admit([keys.slice(before, max(rows - before, 0))], 0)
    for index in (grown, made):
        index.admit([keys], 0)
    assert len(made) == len(grown) == 8_000
    assert made.find([keys], 0).tolist() == grown.find([keys], 0).tolist()
    assert made.find([keys], 1).max() == -1


def test_no_more_room_is_made_than_there_may_be_rows() -> None:
    index = KeyIndex([pa.field("k", pa.int64())], slots=100)
    index.reserve(1_000_000)
    assert index.nbytes < 100_000
