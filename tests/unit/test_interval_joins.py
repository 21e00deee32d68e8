"""Joins by interval: when rows come, what they hold, how much memory they take, and that restarts change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import reference as ref
from acts import in_acts
from reference import Record
from workflows import MS, out

import headrace as hr
from headrace.graph.nodes import JoinHow, JoinNode
from headrace.graph.windowing import FOREVER_US, Interval
from headrace.runtime.batch import Batch
from headrace.runtime.operators.boundedjoin import BoundedIntervalJoin
from headrace.runtime.operators.intervaljoin import IntervalJoin
from headrace.runtime.operators.joins import join_schema
from headrace.testing import run_local, scripted
from headrace.testing.local import LocalRun

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
MODES = ("realtime", "microbatch", "batch")


class Rows:
    """What an operator emits: rows with their times, and its watermark."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.watermark_us = -1

    def receive(self, port: int, batch: Batch) -> None:
        assert batch.times.min() >= self.watermark_us
        self.rows += [row | {"at": at} for row, at in zip(batch.records.to_pylist(), batch.times.tolist())]

    def watermark(self, port: int, watermark_us: int) -> None:
        self.watermark_us = watermark_us

    def new(self) -> list[tuple[Any, Any, int]]:
        rows, self.rows = self.rows, []
        return [(row["v"], row["v_right"], row["at"]) for row in rows]


def operator(how: JoinHow, before: int, after: int, memory_bytes: int | None = None) -> tuple[Any, Rows]:
    node = JoinNode("near", ("k",), Interval(before, after), how, ("l", "r"), memory_bytes=memory_bytes)
    kind = IntervalJoin if memory_bytes is None else BoundedIntervalJoin
    made, rows = kind(node, (SCHEMA, SCHEMA), join_schema(node, SCHEMA, SCHEMA), 4), Rows()
    made.feed(rows)
    return made, rows


def give(join: IntervalJoin, port: int, *records: tuple[int | None, str, int]) -> None:
    keys, values, times = zip(*records)
    batch = pa.record_batch([pa.array(keys, pa.int64()), pa.array(values)], schema=SCHEMA)
    join.receive(port, Batch(batch, np.array(times), 1))


def advance(join: IntervalJoin, watermark_us: int) -> None:
    for port in (0, 1):
        join.watermark(port, watermark_us)


def test_pairs_come_at_once_and_a_record_by_itself_when_its_time_has_passed() -> None:
    join, rows = operator("outer", before=5, after=10)
    give(join, 0, (1, "order", 100), (2, "unpaid", 101), (None, "nobody's", 102))
    assert rows.new() == []
    give(join, 1, (1, "paid", 110), (1, "paid again", 111), (3, "stray", 103))
    assert rows.new() == [("order", "paid", 110)]
    advance(join, 108)
    assert rows.new() == [], "an order may still come for the stray payment"
    advance(join, 109)
    assert rows.new() == [(None, "stray", 108)]
    give(join, 0, (1, "later order", 116))
    assert rows.new() == [("later order", "paid again", 116)]
    advance(join, 112)
    assert rows.new() == [("unpaid", None, 111)]
    advance(join, FOREVER_US)
    assert rows.new() == [("nobody's", None, 112)]


def test_what_has_passed_is_forgotten() -> None:
    """State is bounded by time: as much after a thousand spans as after ten."""
    join, _ = operator("left", before=50, after=50)
    sizes = []
    for turn in range(1000):
        for port in (0, 1):
            give(join, port, *((n % 7, "v", 10 * turn + n) for n in range(10)))
        advance(join, 10 * turn)
        sizes.append(sum(store.nbytes for store in join.stores().values()))
        assert all(len(side) <= 80 for side in join.stores().values())
    assert max(sizes) <= 1.1 * max(sizes[:300])


def test_one_key_with_more_pairs_than_are_made_at_once() -> None:
    join, rows = operator("inner", before=1000, after=1000)
    give(join, 0, *((1, f"l{n}", n) for n in range(500)))
    give(join, 1, *((1, f"r{n}", n) for n in range(500)))
    found = rows.new()
    assert len(found) == 250_000 == len({(left, right) for left, right, _ in found})


def test_memory_is_bounded_also_for_a_single_key() -> None:
    bound, count, text = 1_000_000, 9000, "x" * 300
    join, rows = operator("outer", before=0, after=10**9, memory_bytes=bound)
    sizes = []
    for start in range(0, count, 300):
        give(join, 0, *((n if n % 3 else 0, f"{text}{n}", n) for n in range(start, start + 300)))
        advance(join, start)
        sizes.append(sum(store.nbytes for store in join.stores().values()))
    assert max(sizes) < bound < 300 * count
    give(join, 1, *((n, f"paid {n}", 40_000 + n) for n in range(1, count, 7) if n % 3), (0, "zero", 90_000))
    join.on_cut(end=True)
    found = rows.new()
    wanted = {(f"{text}{n}", f"paid {n}") for n in range(1, count, 7) if n % 3}
    wanted |= {(f"{text}{n}", "zero") for n in range(0, count, 3)}
    assert {(left, right) for left, right, _ in found} == wanted and len(found) == len(wanted)
    advance(join, FOREVER_US)
    alone = [left for left, _, _ in rows.new()]
    assert sorted(alone) == sorted(f"{text}{n}" for n in range(count) if n % 3 and n % 7 != 1)
    join.close()


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Callable[..., LocalRun]]:
    """Makes drivers for one checkpoint, each with ``runs(job, …)``; the one before is gone as if killed."""
    made: list[LocalRun] = []

    def make(job: hr.Job, **options: Any) -> LocalRun:
        if made:
            made[-1].close()
        made.append(LocalRun(job, tmp_path / "checkpoint", report="5 ms", slices=5, **options))
        return made[-1]

    yield make
    if made:
        made[-1].close()


ORDERS: list[Record] = [{"k": n % 40 or None, "v": n, "t": 5 * n + (n * 7) % 30} for n in range(400)]
PAYMENTS: list[Record] = [{"k": n % 55 or None, "w": n, "t": 6 * n + (n * 11) % 30} for n in range(300)]


@pytest.mark.parametrize("memory", [None, "1 MB"], ids=["in memory", "bounded"])
@pytest.mark.parametrize("mode", ["realtime", "microbatch"])
def test_restarts_and_other_numbers_of_subtasks_change_nothing(
    mode: str, memory: str | None, runs: Callable[..., LocalRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a bound all rows go to disk at once, so that what is there is restored too."""
    monkeypatch.setattr("headrace.runtime.operators.boundedjoin.TABLE_SHARE", 0.0)
    left = in_acts([ORDERS[::2], ORDERS[1::2]], {"k": "int64", "v": "int64", "t": "int64"}, 3, 3)
    right = in_acts([PAYMENTS], {"k": "int64", "w": "int64", "t": "int64"}, 3, 3)
    job = hr.Job("near")
    orders, payments = (job.source(n, s, event_time="t", lateness="10 ms") for n, s in (("l", left), ("r", right)))
    near = orders.key_by("k").join(
        payments.key_by("k"), before="30 ms", after="200 ms", how="outer", name="near", state=hr.keep(memory=memory)
    )
    near.sink("out", out())
    often: dict[str, Any] = {"commit": "50 ms"} if mode == "realtime" else {}  # in others each batch has one cut
    for act, subtasks in enumerate((2, 1, 3)):
        left.curtain.acts = right.curtain.acts = act + 1
        run = runs(job, mode=mode, parallelism=subtasks, **often)
        run.batch(seconds=0.1)
    run.run()
    seen = ref.enter([ORDERS[::2], ORDERS[1::2]], 10 * MS), ref.enter([PAYMENTS], 10 * MS)
    expected = ref.interval_join(*seen, ["k"], "outer", 30 * MS, 200 * MS, (["k", "v", "t"], ["k", "w", "t"]))
    assert ref.bag(run.rows("out")) == ref.bag(expected)


@pytest.mark.parametrize("mode", MODES)
def test_steps_after_a_join_know_the_columns_of_both_sides(mode: str) -> None:
    job = hr.Job("after")
    left = job.source("l", scripted([{"k": 1, "v": 2, "t": 10}]), event_time="t")
    right = job.source("r", scripted([{"k": 1, "w": 3.5, "t": 20}]), event_time="t")
    near = left.key_by("k").join(right.key_by("k"), within="1 s", name="near")
    sums = near.map(lambda row: {"k": row["k"], "sum": row["v"] + row["w"]}, name="sum", returns=None)
    sums.sink("out", out())
    assert run_local(job, mode=mode) == {"out": [{"k": 1, "sum": 5.5}]}
