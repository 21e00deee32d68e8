"""Elastic scaling: the model by numbers, plans against brute force, the policy in the plant."""

from __future__ import annotations

import math
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.plants import Run, drive, job_of, line

from headrace.control.constraints import PathConstraint
from headrace.control.kingman import Station, ceiling, fit_of
from headrace.control.policy import ControlledJob, ControlPolicy
from headrace.control.scaling import Wish, rebalance, resolve, scale_reactively
from headrace.control.topology import ControlledStep, StepEdge, Topology
from headrace.model.queueing import kingman
from headrace.testing.plant import Plant
from headrace.testing.plant_model import Load, PlantModel, StepModel, stairs, steady


def station(
    name: str = "a", *, p: int = 4, minimum: int = 1, maximum: int = 64, service_ms: float = 4.0, utilisation: float = 0.5,
    fit: float = 1.0, variation: float = 1.0,
) -> Station:  # fmt: skip
    return Station(
        name, p, minimum, maximum, service_ms, service_ms / utilisation, variation, variation, utilisation, fit
    )


# latency-guarantees fact 20: M/M/1 (c=1), S̄=10 ms, ρ=0.8 → W_K=40 ms
def test_kingman_by_numbers() -> None:
    assert kingman(10.0, 12.5, 1.0, 1.0) == pytest.approx(40.0)


# latency-guarantees fact 21: W(p_current) equals the measured wait (without clamp)
@given(st.integers(1, 50), st.floats(0.05, 0.95), st.floats(0.1, 50), st.floats(0.1, 3), st.floats(0.1, 100))
@settings(max_examples=60)
def test_the_fitted_model_is_exact_now(p: int, rho: float, service: float, variation: float, measured: float) -> None:
    fit = fit_of(measured, kingman(service, service / rho, variation**2, variation**2))
    found = station(p=p, utilisation=rho, service_ms=service, variation=variation, fit=fit)
    assert found.wait_ms(p) == pytest.approx(measured)
    assert fit_of(measured, 1.0, (0.8, 1.2)) == min(max(measured, 0.8), 1.2)


# latency-guarantees fact 22: W is +∞ for ρ(p*)≥1 and strictly decreasing beyond
@given(st.integers(1, 30), st.floats(0.1, 3.0).map(lambda rho: round(rho, 3)))
@settings(max_examples=60)
def test_the_wait_is_infinite_up_to_the_load_and_falls_beyond(p: int, rho: float) -> None:
    found = station(p=p, utilisation=rho)
    waits = [found.wait_ms(n) for n in range(1, 120)]
    for n, wait in enumerate(waits, 1):
        assert (wait == math.inf) == (found.utilisation(n) > 1 - 1e-12)
        assert wait > 0
    finite = [wait for wait in waits if wait < math.inf]
    assert all(later < earlier for earlier, later in pairwise(finite))


STATIONS = st.builds(
    station,
    st.just("s"), p=st.integers(1, 4), minimum=st.integers(1, 2), maximum=st.integers(2, 7),
    service_ms=st.floats(0.5, 20), utilisation=st.floats(0.1, 2.0), fit=st.floats(0.5, 2),
)  # fmt: skip


def total_ms(stations: list[Station], plan: tuple[int, ...]) -> float:
    return sum(s.wait_ms(p) for s, p in zip(stations, plan))


# latency-guarantees fact 23: Rebalance equals brute force on small instances; infeasible → p_max everywhere
@given(st.lists(STATIONS, min_size=1, max_size=3), st.floats(0.1, 200))
@settings(max_examples=300)
def test_rebalance_equals_brute_force(stations: list[Station], budget_ms: float) -> None:
    plan = rebalance(stations, budget_ms, [s.minimum for s in stations])
    options = product(*(range(s.minimum, s.maximum + 1) for s in stations))
    feasible = [option for option in options if total_ms(stations, option) <= budget_ms]
    if feasible:
        assert sum(plan) == min(map(sum, feasible)) and total_ms(stations, plan) <= budget_ms
    else:
        assert plan == tuple(s.maximum for s in stations)


# latency-guarantees fact 24: no Rebalance result implies ρ>0.9 unless p_max forces it
@given(st.lists(STATIONS, min_size=1, max_size=3), st.floats(0.1, 1e5))
@settings(max_examples=100)
def test_no_plan_is_busier_than_nine_tenths(stations: list[Station], budget_ms: float) -> None:
    plan = rebalance(stations, budget_ms, [s.floor(ceiling(budget_ms, 5.0)) for s in stations])
    for s, p in zip(stations, plan):
        assert s.utilisation(p) <= 0.9 + 1e-9 or p == s.maximum


def test_a_stop_is_made_good_within_what_the_bound_leaves() -> None:
    """Waits after a stop of 0.2 s, worked off at the ceiling, add half of the queues' share to the mean over 5 s."""
    for queueing_ms in (20.0, 30.0, 52.0):
        rho, due_s = ceiling(queueing_ms, 5.0), np.arange(0, 5, 1e-4)
        waits_ms = np.maximum(200 - (1 - rho) * 1000 * due_s, 0)  # since the stop began
        assert waits_ms.mean() == pytest.approx(queueing_ms / 2, rel=0.01)
    assert ceiling(1e6, 5.0) == 0.85 and ceiling(1.0, 5.0) == ceiling(-1.0, 5.0) == 0.5


def test_looser_bounds_need_fewer_subtasks_even_without_variation() -> None:
    calm = station(utilisation=0.5, p=8, variation=0.0)
    needs = [scale_reactively([Wish("c", (calm,), ms)]).parallelism["a"] for ms in (7.0, 19.0, 39.0)]
    assert needs == sorted(needs, reverse=True) and len(set(needs)) == 3


# latency-guarantees fact 25: p=10, ρ=1.3 → 26; p=10, ρ=0.99 → 20; capped by p_max
def test_bottlenecks_by_numbers() -> None:
    assert resolve(station(p=10, utilisation=1.3)) == 26
    assert resolve(station(p=10, utilisation=0.99)) == 20
    assert resolve(station(p=10, utilisation=1.3, maximum=15)) == 15


# latency-guarantees fact 26: a task at ρ≥0.99 triggers ResolveBottlenecks, not Rebalance, for its constraint
@pytest.mark.parametrize(("rho", "plan"), [(0.99, {"a": 8}), (0.98, None)])
def test_a_bottleneck_replaces_rebalancing(rho: float, plan: dict[str, int] | None) -> None:
    busy, calm = station("a", utilisation=rho), station("b", utilisation=0.05)
    found = scale_reactively([Wish("c", (busy, calm), 5.0)])
    assert (found.parallelism == plan) if plan else set(found.parallelism) == {"a", "b"}
    assert ("bottleneck" in found.reasons["a"]) == (plan is not None)


# latency-guarantees fact 27: a second constraint never lowers a p chosen by the first in the same cycle
@given(st.floats(0.1, 200), st.floats(0.1, 200), st.floats(0.1, 1.2), st.floats(0.1, 1.2))
@settings(max_examples=100)
def test_later_constraints_never_lower_a_choice(one_ms: float, two_ms: float, rho: float, other: float) -> None:
    shared, a, b = station("s", utilisation=rho), station("a", utilisation=other), station("b", utilisation=0.5)
    wishes = [Wish("one", (a, shared), one_ms), Wish("two", (shared, b), two_ms)]
    alone, both = scale_reactively(wishes[:1]).parallelism, scale_reactively(wishes).parallelism
    assert all(both[name] >= p for name, p in alone.items())


def test_later_constraints_build_on_what_is_chosen() -> None:
    shared, a, b = station("s", utilisation=0.6), station("a", utilisation=0.6), station("b", utilisation=0.6)
    tight, loose = Wish("tight", (a, shared), 1.0), Wish("loose", (shared, b), 6.0)
    alone, after = scale_reactively([loose]).parallelism, scale_reactively([tight, loose]).parallelism
    assert after["s"] > alone["s"] and after["b"] < alone["b"]


def scaled(
    load: Load, cycles: int, *, bound_ms: float = 40.0, seed: int = 1, p: int = 2, maximum: int = 24, **model: int
) -> Run:
    topology = line(ControlledStep("work", p, 1, maximum))
    plant = Plant(
        topology, PlantModel({"src": load}, {"work": StepModel(4.0), "out": StepModel(0.05)}, **model), seed=seed
    )  # type: ignore[arg-type]
    return drive(job_of(topology, bound_ms, chaining=False), plant, cycles)


# latency-guarantees fact 28: no ES decision within 3 intervals after a finished scale-up
@pytest.mark.parametrize("delay", [0, 4])
def test_scaling_rests_after_a_scale_up(delay: int) -> None:
    run = scaled(stairs([200, 500, 1200, 2500], 12), 60, scale_cycles=delay)
    made = [[d for d in cycle if d.action == "scale"] for cycle in run.decisions]
    ups = [
        k for k, (before, after) in enumerate(zip(run.settings, run.settings[1:]))
        if after.parallelism["work"] > before.parallelism["work"]
    ]  # fmt: skip
    assert len(ups) >= 3
    for k in (k for k in ups if k + delay + 4 < 60):
        target = run.settings[k + 1].parallelism["work"]
        finished = next(n for n in range(k + 1, 60) if run.seen[n].parallelism["work"] == target)
        assert finished == k + 1 + delay
        assert not any(made[k + 1 : finished + 3])
        held = [d.reason for cycle in run.decisions[k + 1 : finished + 3] for d in cycle if d.action == "hold"]
        assert any("rests" in reason for reason in held)
        assert any("not complete" in reason for reason in held) == (delay > 0)


def test_subtasks_that_never_come_are_not_waited_for_for_ever() -> None:
    run = scaled(stairs([900] * 4 + [100], 10), 130, scale_cycles=10**6)
    given_up = [d for d in run.of("give up") if "did not come" in d.reason]
    assert given_up
    k = next(k for k, cycle in enumerate(run.decisions) if given_up[0] in cycle)
    assert run.settings[k].parallelism["work"] > 2 and run.seen[k].parallelism["work"] == 2
    assert run.settings[-1].parallelism["work"] <= 2  # the load has fallen, and nobody asks for more


# latency-guarantees fact 28: scale-down immediately followed by another is allowed, one subtask at a time
def test_scale_downs_follow_each_other_at_once() -> None:
    run = scaled(steady(100), 30, p=12)
    counts = [seen.parallelism["work"] for seen in run.seen]
    assert counts[-1] <= 2
    falls = [(k, a - b) for k, (a, b) in enumerate(pairwise(counts)) if a != b]
    assert all(fall <= 1 for _, fall in falls)
    assert any(later == earlier + 1 for (earlier, _), (later, _) in pairwise(falls))


def test_scale_downs_wait_until_the_last_has_been_measured() -> None:
    topology = line(ControlledStep("work", 6, 1, 24))
    model = PlantModel({"src": steady(100)}, {"work": StepModel(4.0), "out": StepModel(0.05)})
    run = drive(job_of(topology, 40.0, quiet_cycles=2), Plant(topology, model, seed=1), 40)
    counts = [seen.parallelism["work"] for seen in run.seen]
    falls = [k for k, (a, b) in enumerate(pairwise(counts)) if a != b]
    assert counts[-1] <= 2 and min(later - earlier for earlier, later in pairwise(falls)) == 3


def reversals(down_share: float) -> int:
    topology = line(ControlledStep("work", 3, 1, 24))
    model = PlantModel({"src": steady(550)}, {"work": StepModel(4.0), "out": StepModel(0.05)})
    turns = 0
    for seed in range(2):
        run = drive(job_of(topology, 40.0, down_share=down_share), Plant(topology, model, seed=seed), 80)
        counts = [seen.parallelism["work"] for seen in run.seen[10:]]
        moves = [b - a for a, b in pairwise(counts) if a != b]
        turns += sum(one * two < 0 for one, two in pairwise(moves))
    return turns


def test_room_for_noise_keeps_scaling_from_going_to_and_fro() -> None:
    assert reversals(0.8) <= 1 and reversals(1.0) >= 4


def test_what_was_measured_before_the_rest_ended_does_not_count() -> None:
    run = scaled(stairs([200, 1500], 15), 40)
    up = next(k for k, d in enumerate(run.decisions) if any("bottleneck" in x.reason for x in d))
    first = run.views[up + 4]  # the cycle in which scaling may act again
    assert first.pooled.step("work").queue_ms == first.summary.step("work").queue_ms


def test_a_bottleneck_is_resolved_and_the_bound_kept_again() -> None:
    run = scaled(stairs([200, 1500], 15), 60)
    reasons = [d.reason for d in run.of("scale")]
    assert any("bottleneck" in reason for reason in reasons)
    assert run.met_share(first=30) >= 0.9
    assert {o.verdict for o in run.outcomes if o.decision.action == "scale" and "bottleneck" in o.decision.reason} == {
        "effective"
    }


# latency-guarantees facts 35 and 36 are in test_control_plant.py


def test_an_unenforceable_bound_is_reported_and_the_fallback_used() -> None:
    run = scaled(steady(300), 25, bound_ms=3.0, maximum=6)
    given_up = run.of("give up")
    assert given_up and "use up the bound" in given_up[0].sentence()
    assert len(given_up) <= 10
    waits = [view.summary.step("work").queue_ms or 0.0 for view in run.views[-10:]]
    assert sum(waits) / 10 < 2.0 and run.seen[-1].parallelism["work"] > 2


def test_a_step_that_may_not_scale_does_not_drive_the_others_to_their_maximum() -> None:
    topology = line(ControlledStep("work", 2, 1, 20), ControlledStep("slow"))
    steps = {"work": StepModel(4.0), "slow": StepModel(6.0), "out": StepModel(0.02)}
    run = drive(job_of(topology, 40.0), Plant(topology, PlantModel({"src": steady(200)}, steps), seed=1), 30)
    assert run.seen[-1].parallelism["work"] <= 4
    assert any("use up the bound" in d.reason for d in run.of("give up"))


def test_steps_joined_one_to_one_scale_together() -> None:
    topology = line(ControlledStep("a", 2, 1, 12), ControlledStep("b", 2, 1, 8), paired=True)
    for chaining in (False, True):
        plant = Plant(
            topology,
            PlantModel({"src": steady(800)}, {"a": StepModel(1.0), "b": StepModel(4.0), "out": StepModel(0.1)}),
            seed=2,
        )
        run = drive(job_of(topology, 60.0, chaining=chaining), plant, 40)
        assert all(seen.parallelism["a"] == seen.parallelism["b"] for seen in run.seen)
        assert run.seen[-1].parallelism["a"] >= 4 and run.met_share(first=20) >= 0.9
        assert plant.created == plant.consumed + plant.in_flight


def test_constraints_that_share_a_step_scale_it_for_both() -> None:
    steps = (
        ControlledStep("src", source=True), ControlledStep("a", 1, 1, 20), ControlledStep("b", 1, 1, 20), ControlledStep("c", 1, 1, 20), ControlledStep("out", sink=True),
    )  # fmt: skip
    topology = Topology(
        steps,
        (
            StepEdge(0, "src", "a"),
            StepEdge(1, "a", "b"),
            StepEdge(2, "a", "c"),
            StepEdge(3, "b", "out"),
            StepEdge(4, "c", "out"),
        ),
    )
    constraints = (PathConstraint("one", (("a", 1, "b", 3),), 30.0), PathConstraint("two", (("a", 2, "c", 4),), 60.0))
    model = PlantModel(
        {"src": steady(300)}, {"a": StepModel(4.0), "b": StepModel(2.0), "c": StepModel(6.0), "out": StepModel(0.1)}
    )
    run = drive(ControlledJob(topology, constraints, ControlPolicy()), Plant(topology, model, seed=3), 50)
    for index in (0, 1):
        met = [s.met is True for s in run.standings(index)[25:]]
        assert sum(met) >= 0.9 * len(met)
