"""The simulated plant itself, and what the controllers make of it over long runs."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from soaking import MORE
from tests.unit.plants import Run, drive, job_of, line

from headrace.control.constraints import PathConstraint, paths_between
from headrace.control.policy import ControlledJob, ControlPolicy, ControlSettings
from headrace.control.topology import ControlledStep, StepEdge, Topology
from headrace.measure.moments import merge
from headrace.measure.report import ChannelId, Report
from headrace.measure.summary import summarise
from headrace.testing.plant import Plant
from headrace.testing.plant_model import EdgeModel, Faults, PlantModel, StepModel, stairs, steady, waves


def mean_wait_ms(reports: list[Report], step: str) -> float:
    total = merge(s.queue_ms for r in reports for s in r.subtasks if s.id.step == step)
    assert total is not None
    return total.mean


# latency-guarantees fact 20, in the plant: M/M/1 waits 40 ms at S̄=10 ms, ρ=0.8; M/D/1 half of it
@pytest.mark.parametrize(("variation", "expected_ms"), [(1.0, 40.0), (0.0, 20.0)])
def test_queues_wait_as_theory_says(variation: float, expected_ms: float) -> None:
    model = PlantModel({"src": steady(80)}, {"work": StepModel(10.0, variation), "out": StepModel(0.01)})
    plant = Plant(line(ControlledStep("work")), model, seed=1, interval_s=20.0)
    reports = [r for _ in range(150) for r in plant.run(ControlSettings()).reports]
    assert mean_wait_ms(reports, "work") == pytest.approx(expected_ms, rel=0.1)


def test_splitting_at_random_keeps_queues_independent() -> None:
    model = PlantModel({"src": steady(320)}, {"work": StepModel(10.0), "out": StepModel(0.01)})
    plant = Plant(line(ControlledStep("work", 4), sources=2), model, seed=1, interval_s=20.0)
    reports = [r for _ in range(80) for r in plant.run(ControlSettings()).reports]
    assert mean_wait_ms(reports, "work") == pytest.approx(40.0, rel=0.1)


def test_the_length_of_an_interval_does_not_matter_to_the_items() -> None:
    """Buffers and queues go on over the border of an interval as if it were not there."""
    topology = line(ControlledStep("a", 2), ControlledStep("b"))
    deadlines = {channel: 7.0 for edge in topology.edges for channel in topology.channels(edge.id)}
    found = []
    for interval_s in (0.1, 1.0, 10.0):
        steps = {"a": StepModel(3.0, 0.0), "b": StepModel(2.0, 0.0), "out": StepModel(0.1, 0.0)}
        plant = Plant(topology, PlantModel({"src": steady(200)}, steps, regular=True), interval_s=interval_s)
        reports = [r for _ in range(round(20 / interval_s)) for r in plant.run(ControlSettings(0, deadlines)).reports]
        ages = merge(s.queue_ms for r in reports for s in r.subtasks if s.id.step == "b")
        waits = merge(c.wait_ms for r in reports for c in r.channels if c.id.edge == 1)
        assert ages is not None and waits is not None
        found.append((ages.mean, waits.mean))
    for other in found[1:]:
        assert other == pytest.approx(found[0], rel=0.05)


SETTINGS = st.builds(
    lambda p, chained, deadline: ControlSettings(
        0,
        {ChannelId(e, s, r): deadline for e in range(4) for s in range(4) for r in range(4)},
        {},
        {"a": p, "b": p, "c": p},
        frozenset(chained),
    ),
    st.integers(1, 4),
    st.sets(st.sampled_from([1, 2])),
    st.sampled_from([0.0, 5.0, 400.0]),
)


# latency-guarantees facts 2, 29 and 32 as far as the plant goes: nothing is lost, doubled or stuck
@given(st.lists(SETTINGS, min_size=2, max_size=12), st.integers(0, 99))
@settings(max_examples=25)
def test_no_item_is_lost_when_chains_and_parallelism_change(wanted: list[ControlSettings], seed: int) -> None:
    topology = line(*(ControlledStep(name, 2, 1, 4) for name in "abc"), paired=True)
    rate = stairs([300.0] * len(wanted) + [0.0], 1.0)
    steps = {name: StepModel(4.0) for name in "abc"}
    plant = Plant(topology, PlantModel({"src": rate}, steps, cut_s=4.0), seed=seed)
    for now in wanted:
        plant.run(now)
        assert plant.created == plant.consumed + plant.in_flight
    for _ in range(40):
        plant.run(wanted[-1])
    assert plant.in_flight == 0 and plant.created == plant.consumed > 0


def test_a_cut_ships_open_buffers() -> None:
    model = PlantModel({"src": steady(20)}, {"work": StepModel(0.1)}, deadline_ms=math.inf, cut_s=5.0)
    plant = Plant(line(ControlledStep("work")), model, seed=1)
    seen = [plant.run(ControlSettings()).reports for _ in range(20)]
    served = [sum(s.items for r in reports for s in r.subtasks if s.id.step == "work") for reports in seen]
    assert [k for k, items in enumerate(served) if items] == [5, 10, 15], "what no deadline ships leaves at a cut"
    assert plant.created == plant.consumed + plant.in_flight


def test_plants_with_one_seed_are_one() -> None:
    topology = line(ControlledStep("work", 2))
    model = PlantModel({"src": steady(200)}, faults=Faults(0.1, 0.1))
    one, two, other = (Plant(topology, model, seed=seed) for seed in (5, 5, 6))
    trace = [one.run(ControlSettings()) for _ in range(10)]
    assert trace == [two.run(ControlSettings()) for _ in range(10)]
    assert trace != [other.run(ControlSettings()) for _ in range(10)]


def served(bound_ms: float, item_bytes: int, offered_per_s: float = 4000.0) -> tuple[float, float]:
    """Items per second that get through under a bound, and the receiver's CPU per item."""
    topology = line(ControlledStep("work"))
    edges = {0: EdgeModel(item_bytes=item_bytes, buffer_ms=0.5), 1: EdgeModel(item_bytes=item_bytes)}
    model = PlantModel({"src": steady(offered_per_s)}, {"work": StepModel(0.1), "out": StepModel(0.001)}, edges)
    run = drive(job_of(topology, bound_ms, scaling=False, chaining=False), Plant(topology, model, seed=1), 25)
    work = [s for seen in run.seen[15:] for r in seen.reports for s in r.subtasks if s.id.step == "work"]
    service = merge(s.service_ms for s in work)
    assert service is not None
    return sum(s.items for s in work) / 10, service.mean


# latency-guarantees fact 33: small items at high rate: a looser bound gives more throughput and less CPU per item
def test_looser_bounds_carry_more() -> None:
    rates, costs = zip(*(served(bound_ms, 128) for bound_ms in (0.5, 3.0, 20.0)))
    assert rates[0] * 1.2 < rates[1] <= rates[2] * 1.01 and rates[2] > 1.5 * rates[0]
    assert costs[0] > costs[1] > costs[2]


# latency-guarantees fact 34: large items (≥ buffer): AOB yields no throughput gain
def test_large_items_gain_nothing() -> None:
    tight, loose = served(0.5, 40_000), served(20.0, 40_000)
    assert loose == pytest.approx(tight, rel=0.02)


UP_AND_DOWN = [200, 400, 600, 800, 1000, 1000, 800, 600, 400, 200]


def staircase(bound_ms: float, step_s: int = 30) -> Run:
    """The thesis's PrimeTest, smaller: warm-up, increments, plateau, decrements."""
    topology = line(ControlledStep("work", 4, 1, 60), sources=2)
    model = PlantModel({"src": stairs(UP_AND_DOWN, step_s)}, {"work": StepModel(5.0), "out": StepModel(0.02)})
    return drive(job_of(topology, bound_ms), Plant(topology, model, seed=4), step_s * len(UP_AND_DOWN))


# latency-guarantees fact 35: stair-case load: bound met in ≥90 % of intervals, violations mainly after step-ups
def test_staircase() -> None:
    run = staircase(30.0)
    assert run.met_share() >= 0.9
    violated = [k for k, s in enumerate(run.standings()) if s.met is False]
    after_ups = [k for k in violated if 0 <= k // 30 <= 4 and k % 30 < 15]
    assert len(after_ups) >= len(violated) / 2


# latency-guarantees fact 36: loosening ℓ reduces subtask-seconds
def test_looser_bounds_need_fewer_subtasks() -> None:
    spent = [staircase(bound_ms, 12).subtask_s("work") for bound_ms in (20.0, 40.0, 100.0)]
    assert spent[0] > spent[1] > spent[2]


def test_drifting_costs_and_waves_are_followed() -> None:
    topology = line(ControlledStep("work", 2, 1, 40))
    steps = {"work": StepModel(3.0, drift_per_s=0.01), "out": StepModel(0.02)}
    run = drive(job_of(topology, 50.0), Plant(topology, PlantModel({"src": waves(400, 0.6, 60)}, steps), seed=4), 180)
    assert run.met_share(first=10) >= 0.85
    parallelism = [seen.parallelism["work"] for seen in run.seen]
    assert max(parallelism) >= 2 * min(parallelism[10:])


def test_a_quantile_is_kept() -> None:
    topology = line(ControlledStep("work", 2, 1, 20))
    constraint = PathConstraint("p99", paths_between(topology, "src", "out"), 80.0, quantile=0.99)
    model = PlantModel({"src": steady(300)}, {"work": StepModel(4.0), "out": StepModel(0.02)})
    run = drive(ControlledJob(topology, (constraint,), ControlPolicy()), Plant(topology, model, seed=4), 80)
    assert run.met_share(first=20) >= 0.9
    assert all((s.mean_bound_ms or 0.0) < 60.0 for s in run.standings()[20:])


def random_graph(rng: random.Random) -> Topology:
    """Layers of steps, each fed by some of the layer before; some edges paired where that is legal."""
    layers: list[list[ControlledStep]] = [[ControlledStep("src", rng.randint(1, 2), source=True)]]
    for depth in range(rng.randint(1, 3)):
        names = [f"s{depth}{i}" for i in range(rng.randint(1, 2))]
        layers.append([ControlledStep(name, rng.randint(1, 2), 1, 12) for name in names])
    layers.append([ControlledStep("out", 2, sink=True)])
    edges: list[StepEdge] = []
    for above, below in pairwise(layers):
        for step in below:
            for source in rng.sample(above, rng.randint(1, len(above))):
                paired = (
                    source.parallelism == step.parallelism and source.elastic and step.elastic and rng.random() < 0.4
                )
                edges.append(StepEdge(len(edges), source.name, step.name, paired))
        for source in above:
            if not any(edge.source == source.name for edge in edges):
                edges.append(StepEdge(len(edges), source.name, below[0].name))
    return Topology(tuple(step for layer in layers for step in layer), tuple(edges))


# Random graphs: whatever the shape, a bound with room in it is reached, and the loop stays sane.
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4 * MORE))
def test_random_graphs_keep_their_bounds(seed: int) -> None:
    rng = random.Random(seed)
    topology = random_graph(rng)
    steps = {step.name: StepModel(rng.uniform(0.5, 4.0), rng.choice([0.0, 0.5, 1.0])) for step in topology.steps}
    steps["out"] = StepModel(0.05)
    model = PlantModel({"src": steady(150)}, steps, scale_cycles=rng.randint(0, 2), faults=Faults(0.03, 0.05))
    run = drive(job_of(topology, 120.0), Plant(topology, model, seed=seed), 60)
    known = [s.met for s in run.standings()[30:] if s.met is not None]
    assert len(known) >= 15 and sum(known) >= 0.9 * len(known)
    for now, seen in zip(run.settings, run.seen):
        for edge in topology.edges:
            if edge.paired:
                assert seen.parallelism[edge.source] == seen.parallelism[edge.target]
        assert all(0 <= deadline <= 96 * 2 for deadline in now.deadlines_ms.values())
    assert run.settings[-1].deadlines_ms


# nephele-qos fact 1: of items merged into one, the first shows more
def test_the_first_of_a_merged_group_waits_longest() -> None:
    model = PlantModel({"src": steady(20)}, {"merge": StepModel(0.1, 0.0, window_ms=200.0)}, regular=True)
    plant = Plant(line(ControlledStep("merge", latency="read-write")), model, interval_s=10.0)
    plant.run(ControlSettings())
    latency = (
        summarise(plant.run(ControlSettings()).reports).subtasks[next(plant.topology.subtasks("merge"))].latency_ms
    )
    assert latency is not None
    # Four items per window at 25, 75, 125 and 175 ms (and 0.3 ms on the way): the first waits 175, the last 25.
    assert latency.mean == pytest.approx(100.0, abs=1.0)
    assert math.sqrt(latency.variance) == pytest.approx(math.sqrt((75**2 + 25**2) / 2), rel=0.01)
