"""Adaptive output batching by deadlines: the algorithm by numbers, then in the plant."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.measured import moments_of, of_subtask, of_worker
from tests.unit.plants import drive, job_of, line

from headrace.control.constraints import PathConstraint, paths_between
from headrace.control.flushing.batching import lowest, next_deadline_ms, step_latencies, targets_ms
from headrace.control.policy import ControlledJob, ControlPolicy, ControlSettings
from headrace.control.topology import ControlledStep, StepEdge, Topology
from headrace.measure.report import ChannelId, SubtaskId
from headrace.measure.summary import summarise
from headrace.testing.buffering import OpenBuffer
from headrace.testing.plant import Plant
from headrace.testing.plant_model import EdgeModel, PlantModel, StepModel, steady

PATH = (0, "work", 1)


# latency-guarantees fact 12: fresh channels have oblt=0 and ship every item at once
def test_fresh_channels_ship_at_once() -> None:
    assert ControlSettings().deadline_ms(ChannelId(0, 0, 0)) == 0.0
    plant = Plant(line(ControlledStep("work")), PlantModel({"src": steady(200)}), seed=1)
    summary = summarise(plant.run(ControlSettings()).reports)
    for channel in summary.channels.values():
        assert channel.wait_ms is not None and channel.wait_ms.mean == channel.wait_ms.variance == 0
        assert channel.buffers >= channel.items > 50


EMISSIONS = st.lists(st.floats(0.0, 1.0, exclude_max=True), min_size=1, max_size=80).map(sorted)


def shipped_in_steps(
    emitted: list[float], deadline_s: float, capacity: int, steps: int
) -> tuple[list[float], list[float]]:
    """Ship times of all items when the second is cut into steps, as intervals do, and all lifetimes."""
    buffer, at, lifetimes = OpenBuffer(), [], []
    for k in range(steps + math.ceil(deadline_s * steps) + 1):
        mine = np.array([e for e in emitted if int(e * steps) == k])
        buffer.append(mine, mine)
        shipped = buffer.ship(k / steps, (k + 1) / steps, deadline_s, capacity)
        assert shipped.born.tolist() == shipped.emitted.tolist()
        at += shipped.at.tolist()
        lifetimes += shipped.lifetimes_s
    return at, lifetimes


# latency-guarantees fact 13: no item waits more than L; fact 14: a full buffer ships before its deadline
@given(EMISSIONS, st.floats(0.0, 0.5), st.integers(1, 9), st.integers(1, 4))
@settings(max_examples=80)
def test_items_leave_by_deadline_or_when_full(
    emitted: list[float], deadline_s: float, capacity: int, steps: int
) -> None:
    at, lifetimes = shipped_in_steps(emitted, deadline_s, capacity, steps)
    assert len(at) == len(emitted) and at == sorted(at)
    waits = [ship - emit for ship, emit in zip(at, emitted)]
    assert all(-1e-12 <= wait <= deadline_s + 1e-9 for wait in waits)
    assert all(life <= deadline_s + 1e-9 for life in lifetimes)
    if deadline_s > 0 and capacity > 1:
        # The reference, item by item: an open buffer takes items until it is due or full.
        expected: list[float] = []
        open_items: list[float] = []
        for emit in emitted:
            if open_items and emit > open_items[0] + deadline_s:
                expected += [open_items[0] + deadline_s] * len(open_items)
                open_items = []
            open_items.append(emit)
            if len(open_items) == capacity:
                expected += [emit] * capacity
                open_items = []
        expected += [open_items[0] + deadline_s] * len(open_items) if open_items else []
        assert at == pytest.approx(expected)


# latency-guarantees fact 14, in the plant
def test_full_buffers_do_not_wait_for_their_deadline() -> None:
    topology = line(ControlledStep("work"))
    model = PlantModel(
        {"src": steady(1000)}, {"work": StepModel(0.1)}, {0: EdgeModel(item_bytes=4096)}, deadline_ms=500.0
    )
    plant = Plant(topology, model, seed=1)
    plant.run(ControlSettings())
    channel = summarise(plant.run(ControlSettings()).reports).channels[ChannelId(0, 0, 0)]
    assert channel.lifetime_ms is not None and channel.lifetime_ms.mean == pytest.approx(
        7.0, rel=0.1
    )  # 8 items of 4 KB


# latency-guarantees fact 15: two managers asking 5 and 9 ms give 5 ms
def test_the_lowest_wish_wins() -> None:
    channel, other = ChannelId(0, 0, 0), ChannelId(1, 0, 0)
    assert lowest([{channel: 5.0}, {channel: 9.0, other: 2.0}]) == {channel: 5.0, other: 2.0}


def latencies(**steps: float) -> dict[SubtaskId, float]:
    return {SubtaskId(name, 0): value for name, value in steps.items()}


# latency-guarantees fact 16: ℓ=50, Σl_v=10, 2 streams, w_ob=0.8 → 16 ms per channel; ℓ≤Σl_v → 0
def test_targets_by_numbers() -> None:
    topology = line(ControlledStep("work"))
    found = targets_ms(PATH, topology, latencies(work=10.0), 50.0)
    assert found == {ChannelId(0, 0, 0): pytest.approx(16.0), ChannelId(1, 0, 0): pytest.approx(16.0)}
    for bound in (10.0, 4.0):
        assert set(targets_ms(PATH, topology, latencies(work=10.0), bound).values()) == {0.0}


def test_the_slowest_subtask_on_the_way_counts() -> None:
    topology = line(ControlledStep("a", 2), ControlledStep("b", 2))
    steps = {SubtaskId("a", 0): 5.0, SubtaskId("a", 1): 1.0, SubtaskId("b", 0): 10.0, SubtaskId("b", 1): 2.0}
    found = targets_ms((0, "a", 1, "b", 2), topology, steps, 60.0, share=1.0)
    assert found[ChannelId(0, 0, 0)] == pytest.approx((60 - 5 - 10) / 3)
    assert found[ChannelId(0, 0, 1)] == pytest.approx((60 - 1 - 10) / 3)
    assert found[ChannelId(1, 1, 1)] == pytest.approx((60 - 1 - 2) / 3)
    assert found[ChannelId(2, 1, 0)] == pytest.approx((60 - 5 - 2) / 3)


def test_chained_edges_take_no_part() -> None:
    topology = line(ControlledStep("a"), ControlledStep("b"), paired=True)
    found = targets_ms((0, "a", 1, "b", 2), topology, latencies(a=5.0, b=5.0), 50.0, chained=frozenset({1}))
    assert found == {ChannelId(0, 0, 0): pytest.approx(16.0), ChannelId(2, 0, 0): pytest.approx(16.0)}


def test_a_silent_subtask_counts_as_its_step_and_a_silent_step_as_unknown() -> None:
    topology = line(ControlledStep("work", 2))
    one = summarise([of_worker("w", 1.0, 0, (of_subtask(SubtaskId("work", 0), 3, moments_of(3, 4.0)),))])
    assert step_latencies(PATH, topology, one) == {SubtaskId("work", 0): 4.0, SubtaskId("work", 1): 4.0}
    assert step_latencies(PATH, topology, summarise([])) is None


# latency-guarantees fact 17: oblt never exceeds 2·target
@given(st.floats(0, 1e4), st.floats(0, 1e3), st.floats(0, 1e4))
@settings(max_examples=100)
def test_deadlines_stay_within_twice_the_target(now: float, target: float, wait: float) -> None:
    assert 0 <= next_deadline_ms(now, target, wait) <= 2 * target


# latency-guarantees fact 17, in the plant: buffers that always fill first would push it up for ever
def test_full_buffers_do_not_drive_deadlines_away() -> None:
    topology = line(ControlledStep("work"))
    edges = {0: EdgeModel(item_bytes=16_384), 1: EdgeModel(item_bytes=16_384)}
    model = PlantModel({"src": steady(400)}, {"work": StepModel(0.5)}, edges)
    run = drive(job_of(topology, 50.0, scaling=False), Plant(topology, model, seed=2), 30)
    target = 0.8 * (50.0 - 1.5) / 2
    assert max(run.settings[-1].deadlines_ms.values()) == pytest.approx(2 * target, rel=0.02)
    assert all(deadline <= 2 * 0.8 * 50.0 / 2 for now in run.settings for deadline in now.deadlines_ms.values())


# latency-guarantees fact 18: constant load, buffer never full: |obl−target| <5 % after ≤8 intervals
@pytest.mark.parametrize("rate_per_s", [20, 300, 2000])
@pytest.mark.parametrize("bound_ms", [10.0, 100.0])
@pytest.mark.parametrize("regular", [True, False])
def test_waits_reach_their_target_within_eight_intervals(rate_per_s: int, bound_ms: float, regular: bool) -> None:
    topology = line(ControlledStep("work"))
    steps = {"work": StepModel(0.05, 0.0), "out": StepModel(0.05, 0.0)}
    edges = {0: EdgeModel(item_bytes=1), 1: EdgeModel(item_bytes=1)}
    interval_s = 5000 / rate_per_s  # so that what is left of the error is the algorithm's and not the sample's
    model = PlantModel({"src": steady(rate_per_s)}, steps, edges, regular=regular)
    plant = Plant(topology, model, seed=7, interval_s=interval_s)
    run = drive(job_of(topology, bound_ms, scaling=False, chaining=False, interval_s=interval_s), plant, 12)
    target = 0.8 * (bound_ms - 0.1) / 2
    for view in run.views[8:]:
        for edge in (0, 1):
            wait = view.summary.edge(edge).wait_ms
            assert wait == pytest.approx(target, rel=0.05), (view.cycle, edge)


# latency-guarantees fact 18: on a busy channel the error halves per interval, as the spec simulates
def test_convergence_of_a_busy_channel_by_numbers() -> None:
    deadline, waits = 0.0, []
    for _ in range(7):
        wait = deadline * (1 + deadline / 2) / (1 + deadline)  # one arrival per ms, target 10 ms
        waits.append(wait)
        deadline = next_deadline_ms(deadline, 10.0, wait)
    assert waits[:6] == pytest.approx([0.0, 5.5, 7.8, 8.9, 9.5, 9.7], abs=0.1)


def test_two_constraints_on_one_edge_follow_the_tighter() -> None:
    topology = line(ControlledStep("work"))
    paths = paths_between(topology, "src", "out")
    loose, tight = PathConstraint("mean", paths, 100.0), PathConstraint("p99", paths, 60.0, quantile=0.99)
    model = PlantModel({"src": steady(300)}, {"work": StepModel(0.5), "out": StepModel(0.1)})
    found = {}
    for name, constraints in (("loose", (loose,)), ("both", (loose, tight))):
        job = ControlledJob(topology, constraints, ControlPolicy(scaling=False, chaining=False))
        run = drive(job, Plant(topology, model, seed=4), 40)
        found[name] = run
        assert run.met_share(first=10) == 1.0
    ages = [found[name].views[-1].summary.edge(0).wait_ms or 0.0 for name in ("both", "loose")]
    assert ages[0] < 0.7 * ages[1]
    assert sum(s.met is True for s in found["both"].standings(1)[10:]) >= 0.9 * 30


def test_batching_decisions_say_what_they_expect_and_are_effective() -> None:
    topology = line(ControlledStep("work"))
    run = drive(
        job_of(topology, 50.0, scaling=False, chaining=False),
        Plant(topology, PlantModel({"src": steady(500)}), seed=1),
        12,
    )
    first = run.of("batch")[0]
    assert first.expects is not None and first.expects.quantity == "wait_ms" and first.withheld is None
    assert "deadline 0 →" in first.sentence() and "because" in first.sentence()
    assert [o.verdict for o in run.outcomes][:2] == ["effective", "effective"]


def test_random_trees_keep_their_bounds() -> None:
    """Fan-out and fan-in, steps of different cost, several receivers."""
    topology = Topology(
        (
            ControlledStep("src", 2, source=True), ControlledStep("a", 2), ControlledStep("b", 3), ControlledStep("c", 1), ControlledStep("d", 2),
            ControlledStep("out", 1, sink=True),
        ),
        (StepEdge(0, "src", "a"), StepEdge(1, "a", "b"), StepEdge(2, "a", "c"), StepEdge(3, "b", "d"), StepEdge(4, "c", "d"), StepEdge(5, "d", "out")),
    )  # fmt: skip
    steps = {"a": StepModel(1.0), "b": StepModel(3.0), "c": StepModel(0.5), "d": StepModel(0.5), "out": StepModel(0.1)}
    run = drive(
        job_of(topology, 80.0, scaling=False), Plant(topology, PlantModel({"src": steady(200)}, steps), seed=3), 40
    )
    assert run.met_share(first=10) == 1.0
    assert run.standings()[-1].observed_ms == pytest.approx(70, rel=0.25)  # and the slack is used
