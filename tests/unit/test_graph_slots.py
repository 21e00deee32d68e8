"""Task slots shared out among the legs of a job, and a job that goes on with other shares."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from acts import in_acts
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

import headrace as hr
from headrace.config import Settings
from headrace.driver.planning import plan_job
from headrace.graph.slots import elastic_legs, fitted_layout, min_slots, roomy, slots_of
from headrace.graph.stages import Layout
from headrace.runtime.messages import Ordered
from headrace.runtime.orders import NO_ORDERS
from headrace.testing import LocalRun, scripted

RECORDS = [[{"k": i % 5, "v": i, "t": 10 * i} for i in range(p, 120, 2)] for p in range(2)]
SCHEMA = {"k": "int64", "v": "int64", "t": "int64"}


def job(source: object) -> hr.Job:
    """[s] → [work, more: two hops] → [count, sum: keyed] → out."""
    job = hr.Job("job")
    s = job.source("s", source, event_time="t", parallelism=2)
    more = s.map(dict, name="work", parallelism=(1, 2, 4)).map(dict, name="more", chain=False)
    windows = more.key_by("k").window(hr.tumbling("100 ms"))
    windows.reduce(name="count", n=hr.count(), v=hr.sum("v"), parallelism=(1, 2, 3)).sink("out", hr.rows())
    return job


@cache
def layout() -> Layout:
    return plan_job(job(scripted(*RECORDS)), Path("nowhere"), Settings.of(), collect=True).layout


def test_slots_are_counted_hop_by_hop() -> None:
    work, count = elastic_legs(layout())
    assert (work.index, work.last, count.index) == (1, 2, 3)
    assert layout().slots == 2 + 2 * 4 + 3 and min_slots(layout()) == 2 + 2 * 1 + 1
    assert slots_of(layout(), {1: 3, 3: 2}) == 2 + 2 * 3 + 2
    assert roomy(layout(), {1: 1, 3: 2}) == {1: 1, 3: 3}, "what is at its minimum might want fewer"
    assert roomy(layout(), {1: 4, 3: 3}) == {1: 4, 3: 3}, "no room above the maximum"


@settings(max_examples=60, deadline=None)
@given(work=st.integers(1, 4), count=st.integers(1, 3), slots=st.integers(5, 16))
def test_slots_go_to_those_who_want_them_and_then_to_all(work: int, count: int, slots: int) -> None:
    wanted = {1: work, 3: count}
    fit = fitted_layout(layout(), wanted, slots)
    held = {leg.index: leg.subtasks for leg in elastic_legs(fit)}
    assert fit.slots == slots_of(layout(), held) <= slots
    assert all(leg.minimum <= leg.active <= leg.subtasks <= leg.maximum for leg in elastic_legs(fit))
    if slots_of(layout(), wanted) <= slots:
        assert all(held[at] >= n for at, n in wanted.items())
    assert not any(
        held[leg.index] < leg.maximum and leg.last - leg.first + 1 <= slots - fit.slots for leg in elastic_legs(fit)
    )
    assert [stage.subtasks for stage in fit.stages] == [2, held[1], held[1], held[3]]


# latency-guarantees fact 29, chronostream §6(e): a restart at a border with more or fewer subtasks loses and doubles nothing
@pytest.mark.parametrize("seed", range(4))
def test_a_job_goes_on_with_other_subtasks(seed: int, tmp_path: Path) -> None:
    dice, source = random.Random(seed), in_acts(RECORDS, SCHEMA, 5, seed)
    run = LocalRun(job(source), tmp_path, report="5 ms")
    try:
        maximum, sizes = run.plan.layout, set()
        for act in range(6):
            source.curtain.acts = act + 1
            wanted = {1: dice.randint(1, 4), 3: dice.randint(1, 3)}
            laid_out = fitted_layout(maximum, wanted, dice.randint(5, 13))
            sizes.add(laid_out.slots)
            run.lay_out(replace(run.plan, run=uuid.UUID(int=act).hex, layout=laid_out))
            run.order(structs.replace(NO_ORDERS, active={leg.index: leg.active for leg in elastic_legs(laid_out)}))
            run.batch(seconds=0.05)
        run.run()
        assert len(sizes) > 2
        rows = run.rows("out")
    finally:
        run.close()
    wanted_rows = Counter((r["k"], r["t"] // 100) for part in RECORDS for r in part)
    assert {(r["k"], int(r["window_start"].timestamp() * 10)): r["n"] for r in rows} == wanted_rows
    assert len(rows) == len(wanted_rows) and sum(r["v"] for r in rows) == sum(range(120))


def test_orders_of_an_attempt_before_are_not_obeyed(tmp_path: Path) -> None:
    """They may lie unread in a worker's channel, and name subtasks that are no longer there."""
    source = in_acts(RECORDS, SCHEMA, 3, 1)
    run = LocalRun(job(source), tmp_path, report="5 ms")
    try:
        run.batch(seconds=0.05)
        before = run.machine.attempt
        source.curtain.acts = 2
        run.batch(seconds=0.05)
        (subtask,) = run.caches[0, 0].subtasks.values()
        orders, now = structs.replace(NO_ORDERS, version=7, active={1: 4}), run.machine.attempt
        assert before is not None and now is not None
        subtask._obey(Ordered(before, orders))
        assert subtask._outlet.orders.version == 0
        subtask._obey(Ordered(now, orders))
        assert subtask._outlet.orders.version == 7
    finally:
        run.close()
