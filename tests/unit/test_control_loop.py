"""The whole loop: sentences, outcomes, holds, pins, observe-only, replay."""

from __future__ import annotations

import doctest
from dataclasses import replace
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.plants import drive, job_of, line

from headrace.control import chaining
from headrace.control.constraints import PathConstraint, paths_between
from headrace.control.decisions import Decision, Expectation, compare
from headrace.control.flushing import batching
from headrace.control.flushing import buffersizes as buffers
from headrace.control.loop import decide, decide_again
from headrace.control.policy import ControlledJob, ControlPolicy, ControlSettings, Overrides, SettingsChange
from headrace.control.remembered import State
from headrace.control.topology import ControlledStep
from headrace.errors import GraphError
from headrace.measure import moments
from headrace.measure.report import ChannelId
from headrace.measure.trace import Observation
from headrace.testing import plant_model
from headrace.testing.plant import Plant
from headrace.testing.plant_model import Faults, PlantModel, StepModel, bursts, stairs, steady

ELASTIC = line(ControlledStep("work", 2, 1, 12))
STEPS = {"work": StepModel(4.0), "out": StepModel(0.05)}
STAIRS = stairs([100, 300, 900, 300], 12)


# latency-guarantees fact 37: two runs with one seed and one recorded trace give identical decisions
def test_a_recorded_trace_replays_to_the_same_decisions() -> None:
    job = job_of(ELASTIC, 40.0)
    model = PlantModel({"src": STAIRS}, STEPS, faults=Faults(0.1, 0.1))
    runs = [drive(job, Plant(ELASTIC, model, seed=11), 48) for _ in range(2)]
    assert runs[0].seen == runs[1].seen and runs[0].decisions == runs[1].decisions
    again = list(decide_again(job, runs[0].seen))
    assert [cycle.decisions for cycle in again] == runs[0].decisions
    assert [o for cycle in again for o in cycle.outcomes] == runs[0].outcomes
    assert {d.action for cycle in runs[0].decisions for d in cycle} >= {"batch", "scale", "hold"}


def test_the_order_in_which_reports_come_in_does_not_matter() -> None:
    job = job_of(ELASTIC, 40.0)
    seen = drive(job, Plant(ELASTIC, PlantModel({"src": STAIRS}, STEPS), seed=11), 30).seen
    turned = [replace(s, reports=tuple(reversed(s.reports))) for s in seen]
    assert [c.decisions for c in decide_again(job, seen)] == [c.decisions for c in decide_again(job, turned)]


def test_a_decision_is_a_sentence() -> None:
    run = drive(job_of(ELASTIC, 40.0), Plant(ELASTIC, PlantModel({"src": STAIRS}, STEPS), seed=1), 40)
    scale = run.of("scale")[0]
    assert scale.sentence().startswith("scale work: "), "when is told by its event"
    for part in (" subtasks, because ", "(seen: utilisation", "; expects utilisation "):
        assert part in scale.sentence()
    hold = run.of("hold")[0]
    assert hold.sentence().endswith("because it rests after a start, a scale-up or new chains (seen: cycles_left 3)")
    assert len([d for d in run.of("hold") if d.at_s < 4]) == 1  # the same is not said again


@pytest.mark.parametrize(
    ("quantity", "before", "after", "observed", "verdict"),
    [
        ("utilisation", 1.2, 0.5, 0.55, "effective"),
        ("utilisation", 1.2, 0.5, 1.19, "ineffective"),
        ("utilisation", 1.2, 0.5, 1.4, "ineffective"),
        ("utilisation", 0.3, 0.6, 0.2, "effective"),
        ("utilisation", 0.3, 0.4, 0.9, "effective"),
        ("wait_ms", 0.0, 16.0, 8.0, "effective"),
        ("wait_ms", 16.0, 10.0, 16.5, "ineffective"),
        ("wait_ms", 18.0, 18.5, 17.9, "effective"),
        ("wait_ms", 18.0, 8.0, None, "unknown"),
    ],
)
def test_outcomes(quantity: str, before: float, after: float, observed: float | None, verdict: str) -> None:
    expects = Expectation(quantity, "work", before, after, 3)  # type: ignore[arg-type]
    decision = Decision(1.0, "scale", "work", "1 → 2", "reasons", {}, expects)
    outcome = compare(decision, observed, 5.0)
    assert outcome.verdict == verdict and outcome.sentence().startswith(f"{verdict}: ")


def test_scaling_that_does_not_help_is_called_ineffective() -> None:
    """The costs of each item double with the subtasks, as on a machine that has no more cores."""
    job = job_of(ELASTIC, 40.0, chaining=False)
    state, verdicts = State.of(job), []
    plant = Plant(ELASTIC, PlantModel({"src": steady(480)}, STEPS), seed=1)
    for _ in range(30):
        now = plant.topology.by_name["work"].parallelism
        plant.model = replace(plant.model, steps={**STEPS, "work": StepModel(4.0 * now / 2)})
        cycle = decide(job, state, plant.run(state.settings))
        verdicts += [o.verdict for o in cycle.outcomes if o.decision.action == "scale"]
        state = cycle.state
    assert "ineffective" in verdicts


def test_observing_only_changes_nothing_and_says_what_it_would_do() -> None:
    job = job_of(ELASTIC, 40.0, observe_only=True)
    run = drive(job, Plant(ELASTIC, PlantModel({"src": STAIRS}, STEPS), seed=1), 40)
    assert {s.version for s in run.settings} == {0} and not run.settings[-1].deadlines_ms
    made = [d for cycle in run.decisions for d in cycle if d.action in ("batch", "scale")]
    assert made and all(d.withheld == "observing only" for d in made)
    assert "; withheld: observing only" in made[0].sentence()
    assert not run.outcomes


def test_pins_are_kept_and_named() -> None:
    free = job_of(ELASTIC, 40.0)
    job = ControlledJob(
        ELASTIC, free.constraints, free.policy, Overrides(deadlines_ms={0: 3.0}, parallelism={"work": 5})
    )
    run = drive(job, Plant(ELASTIC, PlantModel({"src": STAIRS}, STEPS), seed=1), 40)
    for now in run.settings:
        assert now.parallelism["work"] == 5
        assert {d for c, d in now.deadlines_ms.items() if c.edge == 0} == {3.0}
    assert max(d for c, d in run.settings[-1].deadlines_ms.items() if c.edge == 1) > 3.0
    withheld = {d.withheld for cycle in run.decisions for d in cycle} - {None}
    assert withheld == {"the user pinned this edge's deadline", "the user pinned this step's parallelism"}


def test_a_pinned_deadline_holds_for_subtasks_that_come_later() -> None:
    job = ControlledJob(ELASTIC, job_of(ELASTIC, 40.0).constraints, ControlPolicy(), Overrides(deadlines_ms={0: 3.0}))
    run = drive(job, Plant(ELASTIC, PlantModel({"src": STAIRS}, STEPS), seed=1), 40)
    assert max(seen.parallelism["work"] for seen in run.seen) > 2
    for seen, now in zip(run.seen[1:], run.settings[1:]):
        assert all(now.deadline_ms(ChannelId(0, 0, i)) == 3.0 for i in range(seen.parallelism["work"]))


def test_without_reports_everything_is_held() -> None:
    run = drive(job_of(ELASTIC, 40.0), Plant(ELASTIC, PlantModel({"src": STAIRS}, STEPS, faults=Faults(1.0))), 20)
    assert {s.version for s in run.settings} == {0}
    reasons = [d.reason for d in run.of("hold")]
    assert any("no measurement of 0, 1, out, work" in reason for reason in reasons)
    assert any("not all subtasks of work, out have reported" in reason for reason in reasons)
    assert {d.action for cycle in run.decisions for d in cycle} == {"hold"}


def test_a_worker_that_falls_silent_stops_scaling_but_not_batching() -> None:
    job, state = job_of(ELASTIC, 40.0, chaining=False), None
    plant, holds, batched = Plant(ELASTIC, PlantModel({"src": steady(300)}, STEPS), seed=1), [], 0
    state = State.of(job)
    for k in range(20):
        seen = plant.run(state.settings)
        if k >= 8:
            seen = replace(seen, reports=tuple(r for r in seen.reports if r.worker != "work/1"))
        cycle = decide(job, state, seen)
        state = cycle.state
        if k >= 11:
            assert not [d for d in cycle.decisions if d.action == "scale"]
            batched += len([d for d in cycle.decisions if d.action == "batch"])
        holds += [d.reason for d in cycle.decisions if d.action == "hold"]
    assert "not all subtasks of work have reported" in holds and batched


# Lost and late reports slow the controller down; they do not mislead it.
@pytest.mark.parametrize("faults", [Faults(0.3, 0.0), Faults(0.0, 1.0), Faults(0.2, 0.3)])
def test_lost_and_late_reports(faults: Faults) -> None:
    job = job_of(ELASTIC, 60.0, chaining=False)
    run = drive(job, Plant(ELASTIC, PlantModel({"src": steady(300)}, STEPS, faults=faults), seed=3), 80)
    assert run.met_share(first=20) >= 0.9
    waits = [view.summary.edge(0).wait_ms for view in run.views[40:]]
    known = [wait for wait in waits if wait is not None]
    assert sum(known) / len(known) == pytest.approx(0.8 * 55.8 / 2, rel=0.15)


def test_no_deadline_changes_twice_on_the_same_measurements() -> None:
    job = job_of(ELASTIC, 40.0, chaining=False, scaling=False)
    run = drive(job, Plant(ELASTIC, PlantModel({"src": steady(300)}, STEPS, faults=Faults(0.0, 0.5)), seed=3), 40)
    changed: dict[ChannelId, int] = {}
    for before, after, view in zip(run.settings, run.settings[1:], run.views):
        for channel, deadline in after.deadlines_ms.items():
            if deadline != before.deadlines_ms.get(channel):
                assert view.summary.versions[channel] >= changed.get(channel, 0)
                changed[channel] = after.version
    assert len(changed) >= 2


def test_settings_have_a_new_version_only_if_they_changed() -> None:
    now = ControlSettings()
    assert now.changed([]) is now and now.changed([SettingsChange()]) is now
    after = now.changed(
        [SettingsChange(deadlines_ms={ChannelId(0, 0, 0): 4.0}), SettingsChange(joined=frozenset({1, 2}))]
    )
    assert (after.version, after.chained) == (1, {1, 2})
    assert after.changed([SettingsChange(deadlines_ms={ChannelId(0, 0, 0): 4.0})]) is after
    assert after.changed([SettingsChange(parted=frozenset({2}))]).chained == {1}


def test_illegal_constraints_are_refused_before_anything_runs() -> None:
    paths = paths_between(ELASTIC, "src", "out")
    with pytest.raises(GraphError, match="share the edge"):
        ControlledJob(ELASTIC, (PathConstraint("a", paths, 10.0), PathConstraint("b", paths, 20.0)))


# Whatever is reported, settings stay within their limits and nothing raises.
@given(
    st.lists(st.integers(0, 4000), min_size=3, max_size=12), st.floats(1.0, 200.0), st.integers(0, 99), st.booleans()
)
@settings(max_examples=10)
def test_settings_stay_within_limits(rates: list[int], bound_ms: float, seed: int, by_size: bool) -> None:
    model = PlantModel({"src": stairs(rates, 3)}, STEPS, faults=Faults(0.2, 0.2), scale_cycles=seed % 3)
    job = job_of(ELASTIC, bound_ms, flush_by="size" if by_size else "deadline")
    plant = Plant(ELASTIC, model, seed=seed)
    for now in drive(job, plant, 3 * len(rates)).settings:
        assert all(0 <= deadline <= 0.8 * bound_ms for deadline in now.deadlines_ms.values())
        assert all(4_096 <= size <= 32_768 for size in now.sizes_bytes.values())
        assert 1 <= now.parallelism["work"] <= 12 and now.parallelism["out"] == 1
    assert plant.created == plant.consumed + plant.in_flight


def test_bursts_are_survived() -> None:
    topology = line(ControlledStep("work", 2, 1, 24))
    run = drive(
        job_of(topology, 60.0), Plant(topology, PlantModel({"src": bursts(200, 5.0, 40, 8)}, STEPS), seed=2), 160
    )
    quiet = [s.met is True for k, s in enumerate(run.standings()) if k >= 40 and 12 <= k % 40 < 32]
    assert sum(quiet) == len(quiet)


def test_an_empty_observation_is_no_reason_to_act() -> None:
    job = job_of(ELASTIC, 40.0)
    cycle = decide(job, State.of(job), Observation(1.0, (), {"src": 1, "work": 2, "out": 1}))
    assert cycle.state.settings == State.of(job).settings and {d.action for d in cycle.decisions} == {"hold"}


@pytest.mark.parametrize("module", [batching, buffers, chaining, moments, plant_model], ids=lambda m: m.__name__)
def test_examples_in_docstrings(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted and not result.failed
