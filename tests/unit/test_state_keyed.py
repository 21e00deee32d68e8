"""The store behind process steps and the rows behind joins: changes, digests, restores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from durable import Chains
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.errors import StateError
from headrace.state.durable.segments import read_block, write_segment
from headrace.state.durable.storage import LocalStorage
from headrace.state.stores.joinrows import RowStore
from headrace.state.stores.keyvalues import KeyedStore

SLICES = 3


def slices_of(keys: list[Any]) -> list[int]:
    return [len(repr(key)) % SLICES for key in keys]


NAMES = st.sampled_from(["v", "m"])
KEYS = st.sampled_from(["a", "bb", 1, 1.0, True, None, ("a", 2), float("nan")])
SUBS = st.sampled_from([None, 0, 1, "x", ("x",), (1,), (1.0,)])


# chronostream fact 4: a deleted entry misses in all phases; fact 8: base+changes and the compacted base agree
class KeyedModel(RuleBasedStateMachine):
    """A store against a plain dictionary, with epochs, restores and compaction at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.store, self.chains = KeyedStore("step", slices_of), Chains()
        self.model: dict[tuple[str, str, str], Any] = {}

    @rule(name=NAMES, key=KEYS, sub=SUBS, value=st.one_of(st.integers(), st.text("ab"), st.lists(st.integers())))
    def set(self, name: str, key: Any, sub: Any, value: Any) -> None:
        self.store.set(name, key, sub, value)
        self.model[name, repr(key), repr(sub)] = value

    @rule(name=NAMES, key=KEYS, sub=SUBS)
    def delete(self, name: str, key: Any, sub: Any) -> None:
        assert self.store.delete(name, key, sub) == (self.model.pop((name, repr(key), repr(sub)), self) is not self)
        assert self.store.get(name, key, sub, "missing") == "missing"

    @rule(name=NAMES, key=KEYS, sub=SUBS)
    def get(self, name: str, key: Any, sub: Any) -> None:
        assert self.store.get(name, key, sub, "missing") == self.model.get((name, repr(key), repr(sub)), "missing")

    @rule()
    def end_epoch(self) -> None:
        self.chains.take(self.store.changes())

    @rule()
    @precondition(lambda self: not self.store.dirty_bytes())
    def restore(self) -> None:
        self.store = KeyedStore("step", slices_of)
        for slice, image, digest in self.chains.images():
            self.store.load(slice, image, digest)
        assert self.store.changes() == []

    @rule()
    def compact(self) -> None:
        self.chains.compact()

    @invariant()
    def subs_are_in_order(self) -> None:
        for name in ("v", "m"):
            for key in ("a", "bb", 1, 1.0, True, None, ("a", 2)):
                wanted = [s for (n, k, s) in self.model if n == name and k == repr(key) and s != "None"]
                assert [repr(sub) for sub in self.store.subs(name, key)] == wanted
                assert self.store.count(name, key) == len(wanted)


KeyedModel.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
test_keyed_store_is_a_dictionary = KeyedModel.TestCase


# chronostream fact 7: change bytes depend on dirty keys, not on state (100 times the state, within 10 %)
# chronostream fact 9: one append to a long queue ships less than 1 KB
def test_an_append_to_a_long_queue_ships_little(tmp_path: Path) -> None:
    def append_bytes(length: int) -> int:
        store = KeyedStore("step", slices_of)
        for i in range(length):
            store.set("queue", "user", i, {"page": i})
        store.changes()
        last = store.last_sub("queue", "user")
        store.set("queue", "user", last + 1, {"page": 7})
        (change,) = store.changes()
        (stored,) = write_segment(LocalStorage(tmp_path), f"{length}.seg", [("step", change)])
        return stored.block.length

    assert append_bytes(100_000) <= 1.1 * append_bytes(1000)
    assert append_bytes(1000) < 1024


def test_what_a_key_cannot_be_is_named() -> None:
    with pytest.raises(StateError, match="step 'step', key holds"):
        KeyedStore("step", slices_of).set("v", object(), None, 1)


SCHEMA = pa.schema([("k", pa.string()), ("l", pa.list_(pa.int64()))])


class RowsModel(RuleBasedStateMachine):
    """The rows of a join's side against a dictionary of lists."""

    def __init__(self) -> None:
        super().__init__()
        self.store, self.chains = RowStore(SCHEMA), Chains()
        self.model: dict[int, list[Any]] = {}
        self.clean = True

    @rule(pane=st.integers(0, 3), keys=st.lists(st.sampled_from(["a", "b", None]), min_size=1, max_size=4))
    def add(self, pane: int, keys: list[Any]) -> None:
        rows = [{"k": k, "l": [len(self.model)] if k else None} for k in keys]
        slices = np.array([0 if k is None else ord(k) % 2 for k in keys], np.uint16)
        self.store.add(pa.RecordBatch.from_pylist(rows, schema=SCHEMA), pane, slices)
        self.model.setdefault(pane, []).extend(rows)
        self.clean = False

    @rule(pane=st.integers(0, 3))
    def drop(self, pane: int) -> None:
        self.store.drop(pane)
        self.clean = self.clean and pane not in self.model
        self.model.pop(pane, None)

    @rule()
    def end_epoch(self) -> None:
        self.chains.take(self.store.changes())
        self.clean = True

    @rule()
    @precondition(lambda self: self.clean)
    def restore(self) -> None:
        self.store = RowStore(SCHEMA)
        for slice, image, digest in self.chains.images():
            self.store.load(slice, image, digest)
        assert self.store.changes() == []

    @rule()
    def compact(self) -> None:
        self.chains.compact()

    @invariant()
    def rows_are_there(self) -> None:
        assert self.store.panes() == sorted(self.model)
        for pane, rows in self.model.items():
            assert sorted(self.store.rows_of([pane]).to_pylist(), key=repr) == sorted(rows, key=repr)


RowsModel.TestCase.settings = settings(max_examples=30, stateful_step_count=20)
test_row_store_keeps_rows_by_pane = RowsModel.TestCase


# chronostream fact 34: a block is what was written, or it is named
@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "other step", "other slice"])
def test_damaged_blocks_are_named(damage: str, tmp_path: Path) -> None:
    store = KeyedStore("step", lambda keys: [5 for _ in keys])
    store.set("v", "a", None, "value" * 20)
    (change,) = store.changes()
    storage = LocalStorage(tmp_path)
    first, second = write_segment(storage, "segments/x.seg", [("step", change), ("other", change)])
    path = tmp_path / "segments/x.seg"
    data = bytearray(path.read_bytes())
    assert read_block(storage, first.block, "step", 5)[0].equals(change.puts)
    if damage == "flip":
        for bit in range(8 * first.block.offset, 8 * (first.block.offset + first.block.length), 97):
            data[bit // 8] ^= 1 << bit % 8
            path.write_bytes(data)
            with pytest.raises(StateError, match=r"block of step 'step', slice 5 in segments/x.seg at 7 has changed"):
                read_block(storage, first.block, "step", 5)
            data[bit // 8] ^= 1 << bit % 8
    elif damage == "truncate":
        path.write_bytes(data[:-1])
        with pytest.raises(StateError, match=r"block of step 'other', slice 5 in segments/x.seg at \d+ is cut off"):
            read_block(storage, second.block, "other", 5)
    elif damage == "delete":
        path.unlink()
        with pytest.raises(StateError, match=r"block of step 'step', slice 5 in segments/x.seg at 7 cannot be read"):
            read_block(storage, first.block, "step", 5)
    else:
        step, slice = ("step", 5) if damage == "other step" else ("other", 6)
        with pytest.raises(StateError, match="belongs to step 'other', slice 5"):
            read_block(storage, second.block, step, slice)


# chronostream fact 5: updates during a checkpoint are readable at once and absent from what was taken
def test_updates_after_a_change_was_taken_are_readable_and_not_in_it() -> None:
    store = KeyedStore("step", slices_of)
    store.set("v", 1, None, "before")
    (change,) = store.changes()
    store.set("v", 1, None, "after")
    assert store.get("v", 1) == "after"
    assert change.puts.num_rows == 1
    assert b"before" in change.puts.column("value")[0].as_py()


def test_memory_is_counted_by_what_entries_hold() -> None:
    small, large, restored = (KeyedStore("step", slices_of) for _ in range(3))
    assert small.nbytes == 0
    for key in range(50):
        small.set("v", key, None, 1)
        large.set("v", key, None, "x" * 10_000)
    per_entry = small.nbytes / 50
    assert 300 < per_entry < 320, "a dictionary's place and some objects"
    assert large.nbytes == pytest.approx(50 * (per_entry + 10_000), rel=0.01)
    chains = Chains()
    chains.take(large.changes())
    for slice, image, digest in chains.images():
        restored.load(slice, image, digest)
    assert restored.nbytes == large.nbytes
    full = large.nbytes
    for key in range(50):
        large.set("v", key, None, "y")
    assert large.nbytes == pytest.approx(small.nbytes, rel=0.01), "what is replaced counts no more"
    for key in range(25):
        large.delete("v", key)
    assert large.nbytes == pytest.approx(small.nbytes / 2, rel=0.01)
    restored.give_away(frozenset({1}))
    left = sum(slice != 1 for slice in slices_of(list(range(50))))
    assert restored.nbytes == pytest.approx(full * left / 50, rel=0.01)
    restored.give_away(frozenset(range(SLICES)))
    assert restored.nbytes == 0


class Counted(dict[Any, Any]):
    """Counts who goes through all of it."""

    walks = 0

    def __iter__(self) -> Any:
        Counted.walks += 1
        return super().__iter__()

    def items(self) -> Any:
        Counted.walks += 1
        return super().items()


def test_giving_slices_away_looks_at_no_other_key() -> None:
    asked: list[int] = []

    def slices(keys: list[Any]) -> list[int]:
        asked.append(len(keys))
        return [int(key) % SLICES for key in keys]

    store = KeyedStore("step", slices, ttl_us={"mortal": 64})
    store.expiry.at(0)
    for key in range(90):
        store.set("m", key, "sub", key)
        store.set("mortal", key, None, key)
    store.changes()
    for part in store._parts.values():
        part.entries = Counted(part.entries)
    (bucket,) = store.expiry._buckets.values()
    bucket.update({slice: Counted(flats) for slice, flats in bucket.items()})
    asked.clear()
    Counted.walks = 0
    store.give_away(frozenset({0, 2}))
    assert (asked, Counted.walks) == ([], 0), "its cost does not grow with what is kept, nor with what goes"
    assert store.get("m", 4, "sub") == 4 and store.get("m", 3, "sub") is None and store.count("m", 3) == 0
    assert {key for _, key, _, _ in store.all_of("m")} == set(range(1, 90, 3))
    assert list(bucket) == [1] and len(bucket[1]) == 30
