"""Costs from the reports of a run, and a source's clockwork buffers."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.measured import moments_of, of_subtask, of_worker

from headrace.measure.report import Report, SubtaskId
from headrace.model.buffers import Buffering, paced_flushes
from headrace.model.costs import PER_RECORD, SHUFFLED, Costs, StepCost
from headrace.model.fitting import fitted_costs
from headrace.model.laws import total_of
from headrace.model.queueing import Seconds
from headrace.model.stagephases import Transfer


def reports(sizes: list[int], batch_ms: float, record_ms: float) -> list[Report]:
    return [
        of_worker("w", at, 0, (
            of_subtask(SubtaskId("read", 0), 40 * size),
            of_subtask(SubtaskId("count", 0), 10 * size, service_ms=moments_of(10, batch_ms + record_ms * size, 0.1)),
        ))
        for at, size in enumerate(sizes)
    ]  # fmt: skip


def test_a_run_shows_what_a_batch_and_a_record_cost() -> None:
    found = fitted_costs(reports([2, 5, 9, 40], 0.5, 0.02), ["read"]).steps["count"]
    assert (found.batch_s, found.record_s) == (pytest.approx(0.0005), pytest.approx(20e-6))
    assert found.records_per_input == 0.25 and found.batch_var_s2 == pytest.approx(0.01e-6)


def test_one_stall_does_not_move_the_line() -> None:
    seen = [*reports([2, 5, 9, 14, 20, 40], 0.5, 0.02), *reports([12], 300.0, 0.02)]
    found = fitted_costs(seen, ["read"]).steps["count"]
    assert found.record_s == pytest.approx(20e-6, rel=0.1) and found.batch_s == pytest.approx(0.0005, rel=0.1)


def test_batches_of_one_size_cost_what_a_batch_does_by_default() -> None:
    found = fitted_costs(reports([10, 10, 10], 0.5, 0.02), ["read"]).steps["count"]
    assert found.batch_s == pytest.approx(PER_RECORD.batch_s) and found.record_s == pytest.approx(40e-6)


def test_what_no_report_shows_stays() -> None:
    before = Costs({"late": StepCost(1.0, 2.0)})
    found = fitted_costs(reports([1, 2], 0.5, 0.1), ["read"], before)
    assert found.steps["late"] == before.steps["late"] and found.transfer == SHUFFLED


def paced_reading(every_s: float, deadline_s: float) -> tuple[Seconds, Seconds]:
    """Waits of records, and times of flushes, when all that is due is read once its oldest has waited that long."""
    due_s = np.arange(4000) * every_s
    waits_s, flushes_s, at = [], [], 0
    while due_s[at] + deadline_s < due_s[-1]:
        flushes_s.append(due_s[at] + deadline_s)
        end = int(np.searchsorted(due_s, flushes_s[-1] + 1e-9, side="right"))
        waits_s.append(flushes_s[-1] - due_s[at:end])
        at = end
    return np.concatenate(waits_s), np.array(flushes_s)


@pytest.mark.parametrize("every_s", [0.0005, 0.003, 0.013])
def test_a_paced_source_is_read_once_per_deadline(every_s: float) -> None:
    """As ``runtime.subtask`` does."""
    flushes = paced_flushes(every_s, 0.0, Buffering(0.040))
    waits_s, flushes_s = paced_reading(every_s, 0.040)
    assert np.diff(flushes_s) == pytest.approx(flushes.cycle_s) and flushes.cycle_cv2 == 0
    assert flushes.gathered.mean_s == pytest.approx(waits_s.mean(), abs=every_s / 2)
    shares = np.array([np.mean(waits_s <= time_s) for time_s in (0.010, 0.020, 0.030)])
    assert flushes.gathered.below(np.array([0.010, 0.020, 0.030])) == pytest.approx(shares, abs=every_s / 0.040)


def test_a_record_that_comes_alone_waits_for_its_whole_deadline() -> None:
    flushes = paced_flushes(0.1, 0.0, Buffering(0.02))
    assert flushes.gathered.mean_s == pytest.approx(0.02) and flushes.gathered.var_s2 == pytest.approx(0, abs=1e-12)
    assert flushes.cycle_s == 0.1 and flushes.cycle_cv2 == 0


def test_a_full_buffer_of_a_paced_source_leaves_before_its_deadline() -> None:
    flushes = paced_flushes(0.001, 100.0, Buffering(0.050, max_bytes=1000))
    assert flushes.gathered.lifetime_s == pytest.approx(0.010)


def test_rows_that_are_held_up_make_the_tail_and_leave_the_median() -> None:
    smooth, rough = Transfer(0.003, 0.0, 1e-6), Transfer(0.003, 0.0, 1e-6, held_share=0.05, held_s=0.050)
    assert smooth.laws(0.0) == rough.laws(0.0)[:1] and Transfer().laws(0.0) == ()
    assert total_of(rough.laws(0.0)).above(0.006) == pytest.approx(0.05, abs=0.01)
    assert total_of(smooth.laws(0.0)).above(0.008) < 0.001
