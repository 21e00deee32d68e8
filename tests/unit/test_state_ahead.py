"""Rows that are copied before a cut: what is set aside is what it would be without."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.state.durable.changes import Change, digest_of, merge_chain
from headrace.state.table import rowtable
from headrace.state.table.aggregates import accumulator
from headrace.state.table.rowtable import GroupTable

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
SLICES = 3


def new_table() -> GroupTable:
    reducers: dict[str, Any] = {"n": hr.count(), "v": hr.sum("v")}
    made = [accumulator(name, reducer, SCHEMA, None, None) for name, reducer in reducers.items()]  # type: ignore[arg-type]
    return GroupTable([SCHEMA.field("k")], made, SLICES)


def absorb(table: GroupTable, keys: list[int]) -> None:
    batch = pa.record_batch([pa.array(keys, pa.int64()), pa.array(keys, pa.int64())], schema=SCHEMA)
    table.absorb(batch, [batch.column(0)], 0, np.zeros(len(keys), np.int64))


def content(chain: list[Change]) -> set[tuple[Any, ...]]:
    image = merge_chain([change.puts for change in chain], [change.deletes for change in chain])
    assert digest_of(image) == chain[-1].digest
    return {tuple(row.values()) for row in image.select(["k", "n.n", "v.value"]).to_pylist()}


@pytest.mark.parametrize("seed", range(30))
def test_changes_are_the_same_whatever_was_copied_ahead(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rowtable, "_LARGE_ROWS", 5)
    monkeypatch.setattr("headrace.state.table.ahead._MANY_ROWS", 12 if seed % 2 else 1000)
    dice = random.Random(seed)
    plain, ahead = new_table(), new_table()
    chains: list[dict[int, list[Change]]] = [{}, {}]
    for _ in range(80):
        match dice.randrange(6):
            case 0 | 1 | 2:
                keys = [dice.randrange(40) for _ in range(dice.randrange(1, 9))]
                for table in (plain, ahead):
                    absorb(table, keys)
            case 3:
                ahead.copy_ahead()
            case 4:
                gone = [dice.randrange(40) for _ in range(3)]
                for table in (plain, ahead):
                    rows = table.index.find([pa.array(gone, pa.int64())], 0)
                    table.drop(np.unique(rows[rows >= 0]))
            case _:
                for table, chain in zip((plain, ahead), chains):
                    for change in table.changes():
                        known = chain.setdefault(change.slice, [])
                        assert not known or change.parent == known[-1].digest
                        known.append(change)
    for table, chain in zip((plain, ahead), chains):
        for change in table.changes():
            chain.setdefault(change.slice, []).append(change)
    assert {slice: content(chain) for slice, chain in chains[0].items()} == {
        slice: content(chain) for slice, chain in chains[1].items()
    }


def test_copies_of_rows_that_change_all_the_time_are_not_made_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rowtable, "_LARGE_ROWS", 5)
    table, exported = new_table(), 0

    def counting(rows: Any, export: Any = table.export) -> pa.RecordBatch:
        nonlocal exported
        exported += len(rows)
        return export(rows)

    monkeypatch.setattr(table, "export", counting)
    for _ in range(17):
        for _ in range(4):
            absorb(table, list(range(10)))
            table.copy_ahead()
        absorb(table, list(range(10)))
        table.changes()
    assert exported <= 17 * 10 + 2 * 4 * 10, "each row once a cut, and in vain for a cut or two only"
