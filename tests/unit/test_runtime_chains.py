"""Chains are joined and parted, and receivers come and go, while records flow: none is lost, none overtakes."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from soaking import MORE

import headrace as hr
from headrace.graph.stages import Edge
from headrace.graph.windowing import IDLE_US
from headrace.runtime.batch import Batch
from headrace.runtime.messages import ToDriver, ToWorker
from headrace.runtime.orders import NO_ORDERS, Orders
from headrace.runtime.plan import Ticket
from headrace.runtime.subtask import Subtask
from headrace.runtime.wire.frames import decode
from headrace.runtime.wire.links import Link
from headrace.testing import PAUSE, LocalRun, run_local, scripted
from headrace.tokens import Attempt

N = 200


def numbered(parts: int, count: int = N) -> Any:
    """Records in order, two per poll, so that a run takes a while."""
    script = [[[{"p": p, "n": n, "t": n}, *([PAUSE] if n % 2 else [])] for n in range(count)] for p in range(parts)]
    return scripted(*([item for items in part for item in items] for part in script))


def chain_of(parts: int = 2, count: int = N, **options: Any) -> hr.Job:
    """A source with numbered records per partition, three steps, a reduce, two more steps."""
    job = hr.Job("chain")
    s = job.source("s", numbered(parts, count), event_time="t", parallelism=parts)
    a = s.map(lambda r: {**r, "a": r["n"] + 1}, name="a", **options)
    b = a.filter(lambda r: r["n"] % 10 != 3, name="b")
    c = b.map(lambda r: {**r, "c": 2 * r["a"]}, name="c")
    c.sink("seen", hr.rows())
    sums = c.key_by("p").window(hr.tumbling("100 ms")).reduce(name="sums", total=hr.sum("c"), n=hr.count())
    sums.map(lambda r: {**r, "mean": r["total"] / r["n"]}, name="mean").filter(bool, name="all").sink("out", hr.rows())
    return job


def moving(run: LocalRun, moves: list[Orders], every_s: float) -> threading.Thread:
    """Give orders one after the other while the run goes on."""

    def give() -> None:
        for orders in moves:
            if done.wait(every_s):
                return
            run.order(orders)

    done = threading.Event()
    thread = threading.Thread(target=give, daemon=True)
    thread.stop = done.set  # type: ignore[attr-defined]
    thread.start()
    return thread


def rows_of(run: LocalRun, moves: list[Orders], every_s: float = 0.01) -> dict[str, list[dict[str, Any]]]:
    thread = moving(run, moves, every_s)
    try:
        run.run(seconds=0.3)
        return {sink: run.rows(sink) for sink in ("seen", "out") if sink in run.plan.graph.by_name}
    finally:
        thread.stop()  # type: ignore[attr-defined]
        run.close()


def random_moves(run: LocalRun, seed: int, n: int = 40) -> list[Orders]:
    dice = random.Random(seed)
    inside = [edge.id for edge in run.plan.layout.edges if edge.border is None]
    moves = []
    for version in range(1, n + 1):
        chained = frozenset(id for id in inside if dice.random() < 0.5)
        deadlines = {(edge.id, i): dice.choice([0, 500, 5_000]) for edge in run.plan.layout.edges for i in range(2)}
        sizes = {sender: dice.choice([1, 400, 32_768]) for sender in deadlines}
        moves.append(Orders(version, deadlines, sizes, {}, chained, None))
    return moves


# latency-guarantees fact 2: items on one channel arrive in send order, also across chain and unchain
# latency-guarantees fact 32: a merge with a non-empty middle queue loses nothing
# nephele-qos fact 17: draining loses and reorders nothing; fact 22: the final output is independent of buffer sizes
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2 * MORE))
def test_chains_may_move_at_any_moment(tmp_path: Path, seed: int) -> None:
    expected = run_local(chain_of(), mode="batch")
    dice = random.Random(seed)
    run = LocalRun(
        chain_of(chain=bool(seed % 2)), tmp_path, chaining="dynamic", flush="2 ms", report="10 ms",
        pause=lambda stage, index: dice.random() * 0.002,
    )  # fmt: skip
    assert len(run.plan.layout.stages) == 5 + 4
    moves = random_moves(run, seed)
    rows = rows_of(run, moves)
    order = defaultdict(list)
    for row in rows["seen"]:
        order[row["p"]].append(row["n"])
    for numbers in order.values():
        assert numbers == [n for n in range(N) if n % 10 != 3], "every record once, in the order it was sent"
    key = lambda row: (row["p"], row["window_start"])  # noqa: E731
    assert sorted(rows["out"], key=key) == sorted(expected["out"], key=key)


def test_steps_run_where_orders_say(tmp_path: Path) -> None:
    run = LocalRun(chain_of(count=400), tmp_path, chaining="dynamic", flush="1 ms", report="5 ms")
    layout = run.plan.layout
    joined = frozenset(e.id for e in layout.edges if e.border is None and e.source != "s")
    places = layout.places(joined)
    assert [places[name] for name in ("s", "a", "b", "c")] == [0, 1, 1, 1]
    served: dict[str, set[int]] = defaultdict(set)
    done = threading.Event()

    def join_when_all_have_run() -> None:
        while not done.wait(0.005):
            for reported in list(run.reports):
                for flow in reported.flows:
                    if flow.items_in:
                        served[flow.step].add(reported.stage)
            if served["c"] == {3}:
                run.order(Orders(1, {}, {}, {}, joined, None))

    thread = threading.Thread(target=join_when_all_have_run, daemon=True)
    thread.start()
    try:
        run.run(seconds=0.3)
    finally:
        done.set()
        thread.join()
        run.close()
    assert served["a"] == {1} and served["b"] == {1, 2} and served["c"] >= {1, 3}


def elastic(maximum: int = 4) -> hr.Job:
    job = hr.Job("elastic")
    s = job.source("s", numbered(2), event_time="t", parallelism=2)
    a = s.map(lambda r: {**r, "a": r["n"] + 1}, name="a", parallelism=(1, 2, maximum))
    a.sink("seen", hr.rows())
    sums = (
        a.key_by("n").window(hr.tumbling("100 ms")).reduce(name="sums", total=hr.sum("a"), parallelism=(1, 2, maximum))
    )
    sums.sink("out", hr.rows())
    return job


# latency-guarantees fact 29: scale-down loses and duplicates no item
@settings(max_examples=2 * MORE)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=8, max_size=8), st.integers(0, 99))
def test_receivers_come_and_go(tmp_path_factory: Any, sizes: list[tuple[int, int]], seed: int) -> None:
    expected = run_local(elastic(), mode="batch")
    dice = random.Random(seed)
    run = LocalRun(
        elastic(), tmp_path_factory.mktemp("run"), flush="2 ms", report="10 ms",
        pause=lambda stage, index: dice.random() * 0.001,
    )  # fmt: skip
    layout = run.plan.layout
    assert [(s.minimum, s.active, s.subtasks) for s in layout.stages] == [(2, 2, 2), (1, 2, 4), (1, 2, 4)]
    moves = [replace(NO_ORDERS, version=i, active={1: a, 2: b}) for i, (a, b) in enumerate(sizes)]
    rows = rows_of(run, moves, every_s=0.04)
    for sink in ("seen", "out"):
        key = lambda row: sorted(map(str, row.items()))  # noqa: E731
        assert sorted(rows[sink], key=key) == sorted(expected[sink], key=key)


def test_records_are_spread_evenly_over_the_active_receivers(tmp_path: Path) -> None:
    run = LocalRun(elastic(), tmp_path, flush="1 ms", report="5 ms")
    run.order(replace(NO_ORDERS, version=1, active={1: 3}))
    rows_of(run, [])
    got: dict[int, int] = defaultdict(int)
    for reported in run.reports:
        for flow in reported.flows:
            if flow.step == "a":
                got[reported.index] += flow.items_in
    assert sum(got.values()) == 2 * N
    assert got[3] == 0 and all(abs(got[i] - 2 * N / 3) < N / 5 for i in range(3)), got


class Deaf:
    """A control channel on which nothing is said."""

    def tell(self, message: ToDriver) -> None:
        """Nobody listens."""

    def poll(self) -> list[ToWorker]:
        return []

    def offset_us(self) -> int:
        return 0


def middle_of(run: LocalRun) -> Subtask:
    """The subtask of the second stage of ``chain_of``, begun, with a record in its buffer from ``a`` to ``b``."""
    subtask = Subtask(run.plan, 1)
    subtask.begin(0, Ticket(Attempt(1, 0), None, 0, (0,), (0,) * 64, NO_ORDERS, (), {}, {}, {}), Deaf())
    records = pa.record_batch({"p": [0], "n": [0], "t": [0]}, schema=run.plan.schemas["s"])
    subtask._operators["a"].receive(0, Batch(records, np.zeros(1, np.int64), 1))
    return subtask


def test_a_move_is_not_forgotten_when_other_orders_follow_at_once(tmp_path: Path) -> None:
    run = LocalRun(chain_of(), tmp_path, chaining="dynamic", flush="1 h")
    joined = frozenset(e.id for e in run.plan.layout.edges if e.border is None and e.source != "s")
    subtask = middle_of(run)
    outlet = subtask._outlet
    assert not outlet.is_here("b") and not list(outlet.flush())
    outlet.obey(Orders(1, {}, {}, {}, joined, None))
    outlet.obey(Orders(2, {(0, 0): 7}, {}, {}, joined, None))
    (row,) = outlet.flush()
    (frame,) = decode(row.column("payload")[0].as_py())
    assert frame.items == 1 and outlet.is_here("b"), "what waited has left, and then the steps have moved"
    outlet.obey(replace(NO_ORDERS, version=3))
    outlet.obey(Orders(4, {}, {}, {}, joined, None))
    assert not list(outlet.flush()) and outlet.is_here("b"), "there and back: nothing has to move"
    subtask.close()
    run.close()


class Told:
    """A receiver that keeps what it is told of time."""

    def __init__(self) -> None:
        self.watermarks: list[int] = []

    def receive(self, port: int, batch: Batch) -> None:
        raise AssertionError("nobody sends records here")

    def watermark(self, port: int, watermark_us: int) -> None:
        self.watermarks.append(watermark_us)


def test_where_a_step_comes_to_be_it_is_told_how_far_time_has_come_and_that_its_input_is_silent() -> None:
    """The source may not say more for long, and a step that has heard nothing would hold back all that follows."""
    here, there = Told(), Told()
    writer: Any = there
    meter: Any = None
    link = Link(Edge(0, "s", "a", 0, None), pa.schema([]), here, writer, meter)
    link.place(here=False)
    link.watermark(0, 5)
    link.watermark(0, IDLE_US)
    link.place(here=False)
    assert (here.watermarks, there.watermarks) == ([], [5, IDLE_US])
    link.place(here=True)
    assert here.watermarks == [5, IDLE_US]
    link.watermark(0, 7)
    link.place(here=False)
    assert (here.watermarks, there.watermarks) == ([5, IDLE_US, 7], [5, IDLE_US, 7])
