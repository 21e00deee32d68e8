"""The phases of our runtime against a simulation of its data path."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import simulated_runtime as simulated
from hypothesis import given
from hypothesis import strategies as st
from thesis.scalla_quantiles import cantelli_quantile_s

from headrace.errors import UnstableError
from headrace.model.buffers import Buffering, flushes_of, rows_of
from headrace.model.stagephases import StagePhases, Transfer, path_of

TRANSFER = Transfer(0.002, 1e-9, 0.001**2)
READ = StagePhases("read", 50e-6, 50e-6**2, 300e-6)
COUNT = StagePhases("count", 100e-6, 100e-6**2, 300e-6, 150e-6**2, item_bytes=100, transfer=TRANSFER)
TOP = StagePhases("top", 50e-6, 50e-6**2, 300e-6, 150e-6**2, item_bytes=100, transfer=TRANSFER)

SETTINGS = [
    ((READ, COUNT, TOP)[: len(subtasks)], subtasks, busy, Buffering(deadline_s))
    for subtasks in ((1, 1), (2, 2), (2, 1), (1, 2), (4, 4), (2, 2, 2))
    for busy in (0.01, 0.3, 0.6, 0.8)
    for deadline_s in (0.005, 0.02)
    if not (subtasks == (4, 4) and busy == 0.8 and deadline_s == 0.005)  # rows alone overload it
]
"""One to four subtasks, one or two shuffles, nearly idle to heavily loaded; 47 in all."""


def rate_of(subtasks: tuple[int, ...], busy: float) -> float:
    return busy * min(subtasks[0] / READ.item_s, subtasks[1] / COUNT.item_s)


@cache
def latency_of(at: int) -> simulated.Numbers:
    stages, subtasks, busy, buffering = SETTINGS[at]
    rate_per_s = rate_of(subtasks, busy)
    return simulated.run(
        rate_per_s, stages, subtasks, buffering, seconds=min(20, 30_000 / rate_per_s), seed=at
    ).latency_s


def test_predicted_mean_and_quantiles_are_near_the_simulated() -> None:
    # scalla fact 29, for our phases
    mean_errors, errors = [], []
    for at, (stages, subtasks, busy, buffering) in enumerate(SETTINGS):
        path = path_of(rate_of(subtasks, busy), stages, subtasks, buffering)
        mean_errors.append(path.spread.mean_s / latency_of(at).mean() - 1)
        errors += [path.quantile_s(share) / np.quantile(latency_of(at), share) - 1 for share in (0.5, 0.9, 0.99)]
    assert np.mean(np.abs(mean_errors) < 0.15) >= 0.9
    assert np.mean(np.abs(errors) < 0.20) >= 0.85


@pytest.mark.parametrize("share", [0.9, 0.99])
def test_cantelli_is_never_below_the_simulated_quantile(share: float) -> None:
    # scalla fact 30, for our phases
    for at, (stages, subtasks, busy, buffering) in enumerate(SETTINGS):
        path = path_of(rate_of(subtasks, busy), stages, subtasks, buffering)
        assert cantelli_quantile_s(path.spread, share) >= np.quantile(latency_of(at), share)


def test_a_buffer_that_fills_is_flushed_before_its_deadline() -> None:
    buffering = Buffering(0.020, max_bytes=10_000)
    stages = (READ, COUNT, replace(TOP, item_bytes=500.0))
    path = path_of(4000, stages, (4, 1, 1), buffering)
    latency_s = simulated.run(4000, stages, (4, 1, 1), buffering, seconds=10, seed=1).latency_s
    waits = {phase.name: phase.spread.mean_s for phase in path.phases}
    assert waits["top: buffer"] <= 10_000 / (4000 * 500)
    assert path.spread.mean_s == pytest.approx(latency_s.mean(), rel=0.15)


def test_an_item_alone_waits_for_the_whole_deadline() -> None:
    (read, *_) = path_of(1.0, (READ,), (1,), Buffering(0.020)).phases
    (shared, *_) = path_of(10_000.0, (READ,), (1,), Buffering(0.020)).phases
    assert read.spread.mean_s == pytest.approx(0.020, rel=0.02)
    assert shared.spread.mean_s == pytest.approx(0.010, rel=0.02)


@given(
    st.floats(0.01, 1e6), st.floats(0.1, 1e4), st.floats(0, 2), st.integers(1, 20), st.integers(1, 20),
    st.floats(1e-4, 1.0),
)  # fmt: skip
def test_rows_hold_all_items_and_none_is_empty(
    items_per_s: float, opened_per_s: float, cv2: float, senders: int, receivers: int, deadline_s: float
) -> None:
    flushes = flushes_of(opened_per_s, cv2, 0.0, Buffering(deadline_s))
    rows = rows_of(flushes, items_per_s, senders, receivers)
    assert rows.per_s * rows.items == pytest.approx(items_per_s * senders / receivers)
    assert rows.items >= 1 - 1e-9 and rows.seen_items >= 1 and 0 <= flushes.gathered.opener_share <= 1


def test_results_that_leave_in_turn_are_earlier() -> None:
    stages = (replace(READ, finish="in_turn", row_s=0.0), replace(COUNT, finish="in_turn", row_s=0.0))
    together = path_of(4000, (READ, COUNT), (1, 1), Buffering(0.020)).spread.mean_s
    path = path_of(4000, stages, (1, 1), Buffering(0.020))
    latency_s = simulated.run(4000, stages, (1, 1), Buffering(0.020), seconds=10, seed=1).latency_s
    # The second stage waits for all of a row of the first: only the last one's turn is gained.
    assert path.spread.mean_s < latency_s.mean() < together


def test_polls_windows_and_rows_that_come_together_add_their_phases() -> None:
    read = replace(READ, poll_s=0.004)
    count = replace(COUNT, window_every_s=1.0, window_lateness_s=0.5, rows_together=3.0)
    plain = path_of(1000, (READ, COUNT), (1, 1), Buffering(0.010)).spread.mean_s
    path = path_of(1000, (read, count), (1, 1), Buffering(0.010))
    assert {"read: poll", "count: window"} <= {phase.name for phase in path.phases}
    assert path.spread.mean_s > plain + 0.002 + 1.0 + COUNT.row_s
    assert path.quantile_s(0.999) < plain + 1.6


def test_measured_arrivals_and_error_replace_the_assumption() -> None:
    def queue_s(stage: StagePhases) -> float:
        path = path_of(8000, (READ, stage), (2, 1), Buffering(0.010))
        return next(phase.spread.mean_s for phase in path.phases if phase.name == "count: queue")

    assert queue_s(replace(COUNT, arrivals_cv2=2.0)) > queue_s(COUNT)
    assert queue_s(replace(COUNT, wait_error=1.2)) == pytest.approx(1.2 * queue_s(COUNT))


def test_a_stage_that_cannot_keep_up_is_named() -> None:
    with pytest.raises(UnstableError, match="'count'"):
        path_of(11_000, (READ, COUNT), (1, 1), Buffering(0.010))
    with pytest.raises(UnstableError, match="'count' would be busy"):
        path_of(6_000, (READ, COUNT), (8, 1), Buffering(0.001))
    assert path_of(9_500, (READ, COUNT), (1, 1), Buffering(0.1)).spread.mean_s > 0.1
    with pytest.raises(UnstableError, match="'count'"):
        path_of(9_500, (READ, COUNT), (1, 1), Buffering(0.1), bounded=True)
