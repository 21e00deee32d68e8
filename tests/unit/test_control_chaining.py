"""Dynamic task chaining: what may be chained, what is, and what the plant says to it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.plants import drive, job_of, line

from headrace.control.chaining import CEILING, chain_of, chainable, chained_edges, partition, primary_chains
from headrace.control.policy import ControlledJob, Overrides
from headrace.control.remembered import State
from headrace.control.topology import ControlledStep, StepEdge, Topology
from headrace.testing.plant import Plant
from headrace.testing.plant_model import PlantModel, StepModel, steady

NAMES = ("1", "2", "3", "4")


# latency-guarantees fact 30
@pytest.mark.parametrize(
    ("utilisations", "chains"),
    [
        ((0.1, 0.2, 0.15, 0.3), (("1", "2", "3", "4"),)),
        ((0.1, 0.2, 0.6, 0.3), (("1", "2"), ("3",), ("4",))),
        ((0.5, 0.2, 0.5, 0.2), (("1", "2"), ("3", "4"))),
        ((0.2, 0.2, 0.2, 0.2), (("1", "2", "3", "4"),)),  # equal: the printed rule would chain nothing
        ((0.95, 0.95, 0.95, 0.95), (("1",), ("2",), ("3",), ("4",))),
    ],
)
def test_partitions_by_numbers(utilisations: tuple[float, ...], chains: tuple[tuple[str, ...], ...]) -> None:
    assert partition(NAMES, utilisations) == chains


# nephele-qos fact 15: Σ CPU .89 chains, .91 does not
@pytest.mark.parametrize(("second", "chains"), [(0.44, 1), (0.46, 2)])
def test_a_core_is_not_filled(second: float, chains: int) -> None:
    assert len(partition(("a", "b"), (0.45, second))) == chains


@given(st.lists(st.floats(0.0, 0.9), min_size=2, max_size=7))
@settings(max_examples=100)
def test_partitions_keep_order_and_ceiling(utilisations: list[float]) -> None:
    names = tuple(str(i) for i in range(len(utilisations)))
    chains = partition(names, utilisations)
    assert tuple(step for chain in chains for step in chain) == names
    load = dict(zip(names, utilisations))
    assert all(len(chain) == 1 or sum(load[s] for s in chain) <= CEILING + 1e-6 for chain in chains)
    if sum(utilisations) <= CEILING - 1e-6:
        assert len(chains) == 1


CHAIN = line(*(ControlledStep(name, 2, workers=("w", "v")) for name in "abc"), paired=True)


def with_step(name: str, **changes: object) -> Topology:
    steps = tuple(replace(s, **changes) if s.name == name else s for s in CHAIN.steps)  # type: ignore[arg-type]
    return Topology(steps, CHAIN.edges)


# latency-guarantees fact 31: unequal parallelism, fan-out, or different workers forbid a chain
# nephele-qos fact 16: fan-in at v1 and fan-out at vn allowed, elsewhere refused
def test_what_may_be_chained() -> None:
    path = (0, "a", 1, "b", 2, "c", 3, "out")
    assert primary_chains(path, CHAIN) == (("a", "b", "c"),)
    assert primary_chains(path, with_step("b", parallelism=3)) == ()
    assert primary_chains(path, with_step("c", workers=("w", "x"))) == (("a", "b"),)
    assert primary_chains(path, with_step("c", chain=False)) == (("a", "b"),)
    more = (*CHAIN.steps, ControlledStep("d", 2), ControlledStep("src2", source=True))
    fan_in_first = Topology(more, (*CHAIN.edges, StepEdge(9, "src2", "a")))
    fan_out_last = Topology(more, (*CHAIN.edges, StepEdge(9, "c", "d")))
    assert primary_chains(path, fan_in_first) == primary_chains(path, fan_out_last) == (("a", "b", "c"),)
    assert primary_chains(path, Topology(more, (*CHAIN.edges, StepEdge(9, "b", "d")))) == (("a", "b"),)
    assert primary_chains(path, Topology(more, (*CHAIN.edges, StepEdge(9, "src2", "b")))) == (("b", "c"),)
    assert not chainable(CHAIN.by_id[0], CHAIN)  # a shuffle, from a source


def test_edges_and_chains_tell_the_same() -> None:
    edges = chained_edges([("a", "b"), ("c",)], CHAIN)
    assert edges == {1}
    assert [chain_of(step, edges, CHAIN) for step in "abc"] == [("a", "b"), ("a", "b"), ("c",)]


# nephele-qos fact 19: no-chain edges stay unchained under any violation
def test_pinned_edges_stay_apart() -> None:
    path = (0, "a", 1, "b", 2, "c", 3, "out")
    assert primary_chains(path, CHAIN, apart=frozenset({1})) == (("b", "c"),)
    model = PlantModel({"src": steady(50)}, {name: StepModel(1.0) for name in "abc"})
    for bound_ms in (0.1, 5.0, 500.0):
        free = job_of(CHAIN, bound_ms, scaling=False)
        pinned = ControlledJob(CHAIN, free.constraints, free.policy, Overrides(chained={1: False}))
        assert drive(free, Plant(CHAIN, model), 10).settings[-1].chained == {1, 2}
        assert drive(pinned, Plant(CHAIN, model), 10).settings[-1].chained == {2}


def test_chains_at_the_start_and_pinned_ones() -> None:
    free = job_of(CHAIN, 20.0)
    assert State.of(replace(free, chained=frozenset({1, 2}))).settings.chained == {1, 2}
    pins = Overrides(chained={1: False, 2: True})
    assert State.of(replace(free, chained=frozenset({1}), overrides=pins)).settings.chained == {2}


def test_chaining_lowers_latency_and_loses_nothing() -> None:
    model = PlantModel({"src": steady(100)}, {name: StepModel(1.0) for name in "abc"})
    latency = {}
    for chaining in (False, True):
        job = job_of(CHAIN, 20.0, chaining=chaining, scaling=False)
        plant = Plant(CHAIN, model, seed=2)
        run = drive(job, plant, 30)
        assert plant.created == plant.consumed + plant.in_flight
        edges = [run.views[-1].summary.edge(edge).latency_ms for edge in (1, 2)]
        latency[chaining] = edges
        assert run.met_share(first=8) == 1.0
    assert None not in latency[False] and latency[True] == [None, None]


def test_noise_does_not_move_the_cuts() -> None:
    topology = line(*(ControlledStep(name) for name in "abcd"), paired=True)
    model = PlantModel({"src": steady(435)}, {**{name: StepModel(1.0) for name in "abcd"}, "out": StepModel(0.1)})
    run = drive(job_of(topology, 80.0, scaling=False), Plant(topology, model, seed=2), 80)
    peaks = [sum(view.summary.step(name).peak_utilisation or 0.0 for name in "ab") for view in run.views]
    assert sum(peak > CEILING for peak in peaks) > 5  # the measured load of a chain does cross the ceiling
    assert len(run.of("chain")) <= 2 and run.settings[-1].chained == {1, 3}


def test_a_chain_that_gets_too_busy_is_split_and_merged_again() -> None:
    model = PlantModel(
        {"src": lambda at_s: 900.0 if 10 <= at_s < 30 else 200.0}, {name: StepModel(1.0) for name in "abc"}
    )
    plant = Plant(CHAIN, model, seed=2)
    run = drive(job_of(CHAIN, 50.0, scaling=False), plant, 60)
    chained = [settings.chained for settings in run.settings]
    assert chained[9] == {1, 2} and chained[29] < {1, 2} and chained[59] == {1, 2}
    assert plant.created == plant.consumed + plant.in_flight
    # It does not move the cut to and fro.
    assert len(run.of("chain")) <= 4
