"""The length of epochs: bound, measured gap and recovery objective."""

from __future__ import annotations

from dataclasses import replace

import pytest
import simulated_runtime
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.buffers import Buffering
from headrace.model.epochcost import EpochGoal, choose_epoch, metric_s
from headrace.model.laws import Gamma
from headrace.model.phases import EpochGap, Phase, PhasedPath
from headrace.model.stagephases import StagePhases, busy_shares, path_of

BODY = PhasedPath((Phase("body", (Gamma(0.010, 4e-6),)),))
GAP = EpochGap(0.4, 0.0)


def test_a_quantile_shorter_than_the_gap_needs_a_hundred_gaps() -> None:
    choice = choose_epoch(EpochGoal(0.020, 0.99, recovery_s=60.0), BODY, GAP)
    assert choice.epoch_s == 120.0 and "60" in choice.reason.replace("1 min", "60")
    min_s = choose_epoch(EpochGoal(0.020, 0.99, recovery_s=1.0), BODY, GAP).smallest_recovery_s
    assert min_s is not None and 2 * min_s == pytest.approx(100 * 0.4, rel=0.05)


def test_a_bound_longer_than_the_gap_allows_any_epoch() -> None:
    choice = choose_epoch(EpochGoal(0.5, 0.99, recovery_s=1.0), BODY, GAP)
    assert choice.epoch_s == 2.0 and "at least 1 s" in choice.reason


def test_without_a_recovery_objective_the_default_or_what_the_bound_needs() -> None:
    assert choose_epoch(EpochGoal(0.020, 0.99), BODY, GAP).epoch_s == 60.0
    needed_s = choose_epoch(EpochGoal(0.020, 0.999), BODY, GAP).epoch_s
    assert needed_s is not None and needed_s == pytest.approx(1000 * 0.4, rel=0.05)
    assert choose_epoch(EpochGoal(None), BODY, GAP).epoch_s == 60.0


def test_goals_that_contradict_each_other_are_told_apart() -> None:
    goal = EpochGoal(0.020, 0.99, recovery_s=10.0)
    choice = choose_epoch(goal, BODY, GAP)
    assert choice.epoch_s is None and "p99 ≤ 20 ms needs epochs of" in choice.reason
    assert choice.smallest_bound_s is not None and choice.smallest_recovery_s is not None
    assert choose_epoch(replace(goal, bound_s=choice.smallest_bound_s * 1.001), BODY, GAP).epoch_s == 20.0
    assert choose_epoch(replace(goal, recovery_s=choice.smallest_recovery_s), BODY, GAP).epoch_s is not None


def test_a_bound_below_the_path_itself_cannot_be_met() -> None:
    choice = choose_epoch(EpochGoal(0.005, 0.99), BODY, GAP)
    assert choice.epoch_s is None and "epochs of any length" in choice.reason
    assert choice.smallest_bound_s == pytest.approx(BODY.quantile_s(0.99), rel=0.01)
    assert choice.smallest_recovery_s is None


def test_a_bound_on_the_mean_counts_the_whole_gap() -> None:
    choice = choose_epoch(EpochGoal(0.011, None, recovery_s=1.0), BODY, GAP)
    assert choice.smallest_recovery_s is not None
    assert 2 * choice.smallest_recovery_s == pytest.approx(0.4 * 0.2 / 0.001, rel=0.01)


def test_no_gap_measured_yet_means_hold() -> None:
    choice = choose_epoch(EpochGoal(0.020), BODY, None)
    assert choice.epoch_s is None and choice.reason.startswith("hold, because")
    assert choice.smallest_bound_s is None


def test_an_overloaded_stage_leaves_no_epoch() -> None:
    choice = choose_epoch(EpochGoal(0.020), BODY, replace(GAP, busy_share=1.0))
    assert choice.epoch_s is None and choice.smallest_bound_s is None and "no bound holds" in choice.reason


@given(
    st.floats(0.011, 1.0), st.sampled_from([None, 0.9, 0.99, 0.999]), st.floats(0.01, 1.0), st.floats(0, 0.9),
    st.floats(1, 300),
)  # fmt: skip
def test_a_chosen_epoch_keeps_both_goals_and_a_refusal_could_not(
    bound_s: float, quantile: float | None, gap_s: float, busy: float, recovery_s: float
) -> None:
    goal, gap = EpochGoal(bound_s, quantile, recovery_s), EpochGap(gap_s, 0.0, busy, 1.5 * busy)
    choice = choose_epoch(goal, BODY, gap)
    if choice.epoch_s is not None:
        assert choice.epoch_s / 2 <= recovery_s
        assert metric_s(goal, BODY, gap, choice.epoch_s) <= bound_s
    else:
        assert metric_s(goal, BODY, gap, 2 * recovery_s) > bound_s


def test_a_chosen_epoch_keeps_its_bound_when_it_is_run() -> None:
    stages = (StagePhases("read", 2e-4, row_s=1e-4), StagePhases("count", 4e-4, row_s=1e-4))
    rate_per_s, buffering, gap_s = 500.0, Buffering(0.010), 0.1
    busy = busy_shares(rate_per_s, stages, (1, 1))
    path, gap = path_of(rate_per_s, stages, (1, 1), buffering), EpochGap(gap_s, 0.0, max(busy), sum(busy))
    min_s = choose_epoch(EpochGoal(0.050, recovery_s=1.0), path, gap).smallest_recovery_s
    assert min_s is not None
    epoch_s = 2 * min_s

    def late_share(epoch_s: float) -> float:
        run = simulated_runtime.run(
            rate_per_s, stages, (1, 1), buffering, seconds=40 * epoch_s, seed=1, gap_s=gap_s, epoch_s=epoch_s
        )
        return float((run.latency_s > 0.050).mean())

    assert late_share(1.1 * epoch_s) <= 0.01 < late_share(0.9 * epoch_s)
