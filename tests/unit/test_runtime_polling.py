"""Polls are small enough for cuts to get in between."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onesubtask import ATTEMPT, Working, planned

import headrace as hr
from headrace.runtime.messages import CutOrdered
from headrace.runtime.operators import polling
from headrace.runtime.operators.polling import PollSize


def polled(size: PollSize, row_us: float, call_us: float = 0.0, available: int = 1_000_000) -> float:
    """A poll of a source that takes so long for a row; how long it took."""
    rows = min(size.rows, available)
    elapsed_us = call_us + rows * row_us
    size.took(rows, int(elapsed_us))
    return elapsed_us


@given(st.floats(0.01, 40_000.0), st.floats(0.01, 40_000.0), st.floats(0.0, 5_000.0))
def test_polls_come_to_take_50_ms_at_most_whatever_a_row_takes(before_us: float, row_us: float, call_us: float) -> None:
    size = PollSize()
    for _ in range(12):
        polled(size, before_us, call_us)
    for _ in range(12):
        polled(size, row_us, call_us)
    taken_us = [polled(size, row_us, call_us) for _ in range(3)]
    assert max(taken_us) <= 55_000 or size.rows == 1
    assert min(taken_us) >= 20_000 or row_us < 1.0, "and are not smaller than they need to be"


def test_a_poll_that_found_little_says_nothing() -> None:
    size = PollSize()
    before = size.rows
    polled(size, 100.0, available=10)
    size.took(0, 400_000)
    assert size.rows == before


# cuts.md, "speed": a source inside a long poll stalls the cut and everything behind it
def test_a_source_with_slow_steps_behind_it_is_polled_for_a_few_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "_LONGEST_POLL_US", 1)
    job = hr.Job("slow")
    read = job.source("read", hr.generate(lambda numbers: {"k": numbers}))
    read.key_by("k").reduce(name="count", n=hr.count()).sink("out", hr.callback(print))
    with Working(planned(job, tmp_path), 0) as working:
        working.until(lambda: working.subtask._sources.size.rows == 1, "every poll takes too long")
        working.driver.give(CutOrdered(ATTEMPT.cut(1), end=False, at_us=0, tables={}, editions={}))
        working.aligned(1)
