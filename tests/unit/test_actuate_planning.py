"""The planner before a job starts: phases from its layout, plans that hold, bounds that cannot."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import simulated_runtime
from planned import planned
from thesis.provisions import busy_shares

import headrace as hr
from headrace.config import Settings
from headrace.driver.planning import plan_job
from headrace.errors import GraphError, UnstableError
from headrace.forecast.pathmodel import limits_of, plant_of, records_per_input, stages_of, total_rate_per_s
from headrace.forecast.prediction import UNKNOWN_RATE, forecast, predicted
from headrace.model.buffers import Buffering
from headrace.model.costs import Costs, StepCost
from headrace.model.sizing import Sizing, Unattainable, longest_deadline_s, smallest
from headrace.model.stagephases import MAX_BUSY
from headrace.runtime.plan import JobPlan

BUSY = Costs({"double": StepCost(0.0003, 20e-6, 0.0002**2), "count": StepCost(0.0003, 150e-6, 0.0002**2)})
"""A keyed step that one subtask can do at 6,000 records per second."""


def sized(plan: JobPlan, bound_ms: float, *, quantile: float | None = None, rate: float | None = None) -> object:
    plant = plant_of(plan, BUSY, quantile, "read", "out")
    return smallest(plant, rate or total_rate_per_s(plan) or 0.0, bound_ms / 1000, limits_of(plan, len(plant.stages)))


def test_the_phases_of_a_path_are_those_of_its_layout_and_sum_up() -> None:
    # scalla fact 27, for predictions
    (made,) = forecast(planned(), BUSY)
    assert made.at_start is not None
    assert [name for name, _ in made.at_start.phases] == [
        "read + double: buffer", "read + double: transfer", "read + double: queue", "read + double: service",
        "count + out: transfer", "count + out: queue", "count + out: service",
    ]  # fmt: skip
    assert sum(mean_s for _, mean_s in made.at_start.phases) == pytest.approx(made.at_start.mean_s)
    assert made.at_start.p50_s < made.at_start.p99_s


def test_a_path_that_begins_later_has_no_phase_before() -> None:
    plan = planned()
    whole = predicted(plan, plant_of(plan, BUSY, None, "read", "out"), 2000.0)
    later = predicted(plan, plant_of(plan, BUSY, None, "double", "out"), 2000.0)
    assert later.phases == whole.phases[3:]


def test_a_stage_that_cannot_keep_up_is_refused() -> None:
    # scalla fact 28
    plan = planned("50000/s")
    with pytest.raises(UnstableError, match=r"stage 'count \+ out' would be busy"):
        predicted(plan, plant_of(plan, BUSY, None, "read", "out"), 50_000.0)
    (made,) = forecast(plan, BUSY)
    assert made.at_start is None and isinstance(made.sizing, Unattainable) and made.sizing.smallest_bound_s is None
    assert "as laid out it cannot keep up" in made.verdict and "cannot be met" in made.verdict


def test_the_plan_has_the_fewest_subtasks_that_keep_the_bound() -> None:
    # scalla fact 31
    plan = planned("12000/s", parallelism=(1, 2, 6))
    plant = plant_of(plan, BUSY, 0.99, "read", "out")
    found = sized(plan, 60, quantile=0.99)
    assert isinstance(found, Sizing) and found.subtasks[1] >= 3 and found.latency_s <= 0.060
    for fewer in range(1, found.subtasks[1]):
        assert longest_deadline_s(plant, 12_000.0, (2, fewer), 0.060) is None
    assert plant.latency_s(12_000.0, found.subtasks, found.deadline_s * 1.05) > 0.060


def test_a_looser_bound_never_needs_more_and_a_quantile_never_less() -> None:
    # scalla fact 31
    plan = planned("15000/s", parallelism=(1, 2, 8))
    needed = [sized(plan, bound_ms, quantile=0.99) for bound_ms in (30, 45, 60, 120)]
    counts = [sum(found.subtasks) if isinstance(found, Sizing) else 99 for found in needed]
    assert counts == sorted(counts, reverse=True) and counts[-1] < 99
    by_rate = [sized(plan, 60, quantile=0.99, rate=rate) for rate in (1000.0, 5000.0, 15_000.0)]
    assert all(
        isinstance(a, Sizing) and isinstance(b, Sizing) and sum(a.subtasks) <= sum(b.subtasks)
        for a, b in pairwise(by_rate)
    )
    for quantile in (0.9, 0.99):
        mean, tail = sized(plan, 60), sized(plan, 60, quantile=quantile)
        assert isinstance(mean, Sizing) and isinstance(tail, Sizing)
        assert sum(mean.subtasks) <= sum(tail.subtasks)


@pytest.mark.parametrize("quantile", [None, 0.99])
def test_the_plan_holds_when_it_is_run_and_not_clearly_above_its_rate(quantile: float | None) -> None:
    # scalla fact 32
    plan, bound_s = planned("12000/s"), 0.040
    found = sized(plan, 1000 * bound_s, quantile=quantile)
    assert isinstance(found, Sizing)
    stages = stages_of(plan, BUSY, 1)

    def measured_s(rate_per_s: float, seed: int) -> float:
        run = simulated_runtime.run(
            rate_per_s, stages, found.subtasks, Buffering(found.deadline_s), seconds=2, seed=seed
        )
        return float(run.latency_s.mean() if quantile is None else np.quantile(run.latency_s, quantile))

    assert all(measured_s(12_000.0, seed) <= bound_s for seed in (1, 2, 3))
    limit_per_s = MAX_BUSY / max(busy_shares(1.0, plant_of(plan, BUSY, quantile, "read", "out").stages, found.subtasks))
    too_fast_per_s = 1.2 * limit_per_s
    assert measured_s(too_fast_per_s, 1) > bound_s


def test_the_bound_is_shared_out_over_steps_and_channels() -> None:
    # scalla fact 33
    (made,) = forecast(planned(), BUSY)
    assert {budget.name for budget in made.budgets} == {"double", "double → count", "count"}
    assert sum(budget.bound_s for budget in made.budgets) == pytest.approx(0.060)


def test_a_bound_over_several_paths_is_shared_out_so_that_none_exceeds_it(tmp_path) -> None:
    # scalla fact 33
    job = hr.Job("two-ways")
    read = job.source("read", hr.generate(lambda n: {"n": n, "key": n % 10}, rate="100/s"))
    slow = read.map(lambda r: r, name="slow").key_by("key").reduce(name="sums", n=hr.sum("n"))
    other = read.map(lambda r: r, name="fast").key_by("key").reduce(name="counts", n=hr.count())
    end = slow.union(other, name="both").sink("out", hr.callback(print))
    job.constrain(read >> end, mean="80 ms")
    (made,) = forecast(plan_job(job, tmp_path, Settings.of()), Costs({"slow": StepCost(0.01, 0.001)}))
    shares = {budget.name: budget.bound_s for budget in made.budgets}
    ways = [("slow", "slow → sums", "sums", "both"), ("fast", "fast → counts", "counts", "both")]
    sums = [sum(shares.get(name, 0.0) for name in way) for way in ways]
    assert max(sums) == pytest.approx(0.080, rel=0.05) and max(sums) <= 0.080 + 1e-9 and min(sums) < max(sums)


def test_steps_without_cost_leave_the_bound_to_channels() -> None:
    free = Costs({step: StepCost(0.0, 0.0) for step in ("read", "double", "count", "out")})
    (made,) = forecast(planned(None), free)
    assert [(budget.name, budget.bound_s) for budget in made.budgets] == [("double → count", pytest.approx(0.060))]


def test_a_bound_that_cannot_be_met_is_answered_with_the_smallest_that_could() -> None:
    (made,) = forecast(planned(bounds=({"p99": "5 ms"},)), BUSY)
    assert isinstance(made.sizing, Unattainable) and made.sizing.smallest_bound_s is not None
    smallest_ms = 1000 * made.sizing.smallest_bound_s
    assert made.verdict == f"cannot be met; the smallest p99 that could is {smallest_ms:.3g} ms"
    assert isinstance(sized(planned(), 1.001 * smallest_ms, quantile=0.99), Sizing)
    both = forecast(planned(bounds=({"p99": "5 ms"}, {"mean": "1 ms"})), BUSY)
    assert [one.verdict.split()[5] for one in both] == ["p99", "mean"], "two bounds say of what each is"


def test_without_a_rate_nothing_is_predicted_unless_it_is_given() -> None:
    (made,) = forecast(planned(None), BUSY)
    assert made.at_start is None and made.sizing is None and made.verdict == UNKNOWN_RATE
    (given,) = forecast(planned(None), BUSY, 2000.0)
    assert given.at_start is not None and isinstance(given.sizing, Sizing)


def test_a_varying_rate_is_planned_for_its_peak() -> None:
    assert total_rate_per_s(planned([("9 s", "500/s"), ("1 s", "5000/s")])) == 5000.0


def test_subtasks_that_the_user_fixed_stay() -> None:
    assert limits_of(planned(parallelism=(2, 3, 5)), 2) == ((2, 2), (2, 5))
    assert limits_of(planned(parallelism=4), 2) == ((2, 2), (4, 4))
    assert limits_of(planned(parallelism=None), 2) == ((2, 2), (1, 2))


def test_measured_selectivity_reaches_later_steps() -> None:
    costs = Costs({"count": StepCost(0.0, 1e-6, records_per_input=0.25)})
    given = records_per_input(planned(), costs)
    assert given == {"read": 1.0, "double": 1.0, "count": 0.25, "out": 0.25}
    assert stages_of(planned(), costs, 1)[1].items_per_input == 0.25


def test_constraints_that_no_controller_could_keep_are_refused_when_a_job_is_planned() -> None:
    with pytest.raises(GraphError, match="share the edge read → double"):
        planned(bounds=({"p99": "60 ms"}, {"p99": "80 ms"}))
    with pytest.raises(GraphError, match="share the edge"):
        planned(bounds=({"p99": "60 ms"}, {"p99": "80 ms"}), mode="microbatch")
    assert planned(bounds=({"p99": "60 ms"}, {"mean": "30 ms"})).graph.constraints
