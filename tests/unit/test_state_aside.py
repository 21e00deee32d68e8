"""What a cut sets aside: right whatever the columns and whoever is still writing, and in memory that is used again."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.state.durable.changes import Change, digest_of, merge_chain
from headrace.state.table.aggregates import accumulator
from headrace.state.table.aside import Rooms
from headrace.state.table.rowtable import GroupTable

SLICES = 8
KEYS = {
    pa.int64(): [1, None, -3, 2**40],
    pa.int32(): [1, None, -3, 7],
    pa.int8(): [1, None, -3, 7],
    pa.bool_(): [True, None, False],
    pa.float32(): [1.5, None, -0.25],
    pa.timestamp("us", "UTC"): [1, None, 10**15],
    pa.date32(): [1, None, 20_000],
    pa.string(): ["a", None, "", "long enough to be elsewhere"],
}


def table_of(kind: pa.DataType) -> tuple[GroupTable, pa.Schema]:
    schema = pa.schema([("k", kind), ("v", pa.int64()), ("w", pa.string())])
    reducers = {"n": hr.count(), "total": hr.sum("v"), "least": hr.min("w")}
    made = [accumulator(name, reducer, schema, lambda *_: None, None) for name, reducer in reducers.items()]
    return GroupTable([schema.field("k")], made, SLICES), schema


def absorb(table: GroupTable, schema: pa.Schema, keys: pa.Array) -> None:
    values = pa.array(np.arange(len(keys)))
    batch = pa.record_batch([keys, values, values.cast(pa.string())], schema=schema)
    table.absorb(batch, [keys], 0, np.zeros(len(keys), np.int64))


def rows(chains: dict[int, list[Change]]) -> list[tuple]:
    found = []
    for chain in chains.values():
        image = merge_chain([change.puts for change in chain], [change.deletes for change in chain])
        assert digest_of(image) == chain[-1].digest
        found += [tuple(row.values())[1:-2] for row in image.to_pylist()]
    return sorted(found, key=repr)


@pytest.mark.parametrize("kind", KEYS, ids=str)
def test_changes_are_whole_while_the_next_are_set_aside(kind: pa.DataType) -> None:
    table, schema = table_of(kind)
    keys = pa.array(KEYS[kind], pa.int32() if kind == pa.date32() else None).cast(kind)
    absorb(table, schema, keys)
    first = table.swap()
    absorb(table, schema, keys.slice(1))
    second = table.swap()  # while nobody has gone through the first
    chains: dict[int, list[Change]] = {}
    for pending in (first, second):
        for change in pending():
            chains.setdefault(change.slice, []).append(change.kept())
    again = table.export(table.all_rows())
    assert rows(chains) == sorted((tuple(row.values())[1:] for row in again.to_pylist()), key=repr)
    assert len(rows(chains)) == len(keys)


def test_memory_is_used_again_and_given_back_when_little_of_it_is_needed() -> None:
    rooms = Rooms(pa.schema([("a", pa.int64())]))
    one = rooms.take(1000)
    other = rooms.take(1000)
    assert one is not other, "the first is still being written"
    one.put(pa.record_batch([pa.array(np.arange(100))], ["a"]), np.arange(100))
    rooms.give_back(one)
    rooms.give_back(other)
    assert rooms.nbytes == 100 * (8 + 16), "one is enough, and what was never used is not there"
    kept = rooms.take(1000)
    assert kept is one
    rooms.give_back(kept)
    for _ in range(58):
        few = rooms.take(1000)
        assert few is one
        few.put(pa.record_batch([pa.array(np.arange(10))], ["a"]), np.arange(10))
        rooms.give_back(few)
    rooms.give_back(rooms.take(1000))
    assert rooms.nbytes == 0
    assert rooms.take(2000) is not one
