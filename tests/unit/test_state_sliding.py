"""Windows over many panes by suffix and prefix: the same states as by merging every pane, from wherever one begins."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.runtime.operators.usercode import Guard
from headrace.state.table import sliding
from headrace.state.table.aggregates import accumulator
from headrace.state.table.rowtable import GroupTable
from headrace.state.table.sliding import Sliding
from headrace.testing import run_local, scripted

KEYS = [pa.field("k", pa.int64())]
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64())])


def new_table() -> GroupTable:
    reducers = {"n": hr.count(), "v": hr.sum("v")}
    guard = Guard("sliding", "fail", None)
    return GroupTable(KEYS, [accumulator(name, reducer, SCHEMA, guard, None) for name, reducer in reducers.items()], 4)


def filled(panes: dict[int, list[tuple[int, float]]]) -> GroupTable:
    table = new_table()
    for pane, records in panes.items():
        batch = pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in records], schema=SCHEMA)
        table.absorb(batch, [batch.column("k")], np.full(len(records), pane), np.zeros(len(records), np.int64))
    return table


def states(table: GroupTable) -> dict[int, tuple[int, float]]:
    rows = table.rows_of(0)
    n, v = (column.to_pylist() for column in table.results(rows))
    return {key: (a, b) for key, a, b in zip(table.key_columns(rows)[0].to_pylist(), n, v)}


RECORDS = st.lists(st.tuples(st.integers(0, 5), st.floats(-1e6, 1e6)), min_size=1, max_size=6)


@given(
    st.dictionaries(st.integers(0, 60), RECORDS, max_size=40), st.integers(8, 20), st.integers(1, 5), st.integers(0, 30),
    st.booleans(),
)  # fmt: skip
def test_every_window_is_the_sum_of_its_panes(
    panes: dict[int, list[tuple[int, float]]], size: int, slide: int, start: int, crowded: bool
) -> None:
    table = filled(panes)

    def partial_of(pane: int) -> pa.RecordBatch | None:
        rows = table.rows_of(pane)
        return table.export(rows) if len(rows) else None

    kept, sliding._MAX_ROWS = sliding._MAX_ROWS, 3 if crowded else sliding._MAX_ROWS
    try:
        windows = Sliding(size, slide, partial_of, new_table)
        later = Sliding(size, slide, partial_of, new_table)
        for first in range(0, 60, slide):
            got = states(windows.window(first))
            counts = Counter(k for pane in range(first, first + size) for k, _ in panes.get(pane, []))
            assert {key: n for key, (n, _) in got.items()} == counts
            for key, (_, total) in got.items():
                exact = sum(v for pane in range(first, first + size) for k, v in panes.get(pane, []) if k == key)
                assert total == pytest.approx(exact, abs=1e-6)
            if first >= start and not crowded:
                assert states(later.window(first)) == got, "to the last bit, wherever one begins"
    finally:
        sliding._MAX_ROWS = kept


def test_a_window_of_many_panes_costs_as_few_merges_as_one_of_few() -> None:
    """Each pane is exported twice, for a suffix and for a prefix, whatever the window's size."""
    for size in (8, 64):
        table, asked = filled({pane: [(1, 1.0)] for pane in range(1024)}), Counter[int]()

        def partial_of(pane: int, table: GroupTable = table, asked: Counter[int] = asked) -> pa.RecordBatch:
            asked[pane] += 1
            return table.export(table.rows_of(pane))

        windows = Sliding(size, 1, partial_of, new_table)
        for first in range(512):
            assert states(windows.window(first)) == {1: (size, float(size))}
        assert max(asked.values()) <= 2


def test_windows_over_many_panes_count_both_partitions() -> None:
    """A partition that falls silent and comes back is in ``test_runtime_idle.py``."""
    job = hr.Job("two")
    one = [{"k": 1, "t": t} for t in range(0, 400, 5)]
    other = [{"k": 1, "t": t} for t in (3, 250, 251, 390)]
    s = job.source("s", scripted(one, other), event_time="t")
    window = hr.sliding("80 ms", every="10 ms")
    s.key_by("k").window(window).reduce(name="n", state=hr.keep(combine=True), n=hr.count()).sink("out", hr.rows())
    times = [r["t"] for r in (*one, *other)]
    expected = {end: sum(end - 80 <= t < end for t in times) for end in range(10, 471, 10)}
    for seed in range(3):
        rows = run_local(job, seed=seed)["out"]
        assert {round(row["window_end"].timestamp() * 1000): row["n"] for row in rows} == expected
        assert len(rows) == len(expected)
