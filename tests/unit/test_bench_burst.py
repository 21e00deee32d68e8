"""The simulated burst: what C-MR's Figure 7 shows, under the policies that subtasks use."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from headrace.bench.burst import PROFILES, RECEIVERS, WORK_US, Burst, Played, play
from headrace.config import Transition
from headrace.runtime.scheduling.disciplines import make_policy


@cache
def played(schedule: str, peak: float, throttled: bool = False) -> Played:
    burst = Burst(peak=peak, seconds=300, throttled=throttled, buffer_rows=2000)
    return play(burst, make_policy(schedule, Transition(), seed=1))


def test_the_workflow_has_the_capacity_of_the_specification() -> None:
    arriving = {"A": 1.0}
    for step, receivers in RECEIVERS.items():
        for receiver in receivers:
            arriving[receiver] = arriving[step] * PROFILES[step].selectivity
        assert PROFILES[step].fan_out == len(receivers)
    assert sum(share * PROFILES[step].time_us for step, share in arriving.items()) == pytest.approx(WORK_US)
    assert Burst().nodes / WORK_US == 0.125, "four nodes: 125,000 records per second"


# cmr fact 24: burst 2.5×: Hybrid stays under the budget and equals ODF while x < T; ODF exceeds it
def test_hybrid_survives_a_burst_that_odf_does_not() -> None:
    odf, mem, hybrid = (played(schedule, 2.5) for schedule in ("odf", "mem", "hybrid"))
    assert hybrid.calm > 100 and hybrid.results[: hybrid.calm] == odf.results[: hybrid.calm]
    assert hybrid.peak_bytes < 2e9 < odf.peak_bytes and hybrid.left_bytes < 1e7
    assert odf.left_bytes == pytest.approx(21e9, rel=0.05), "it never recovers: what swaps is ten times as slow"
    assert mem.peak_bytes == pytest.approx(0.9e9, rel=0.05) and hybrid.peak_bytes == pytest.approx(1.97e9, rel=0.02)
    assert mem.mean_ms == pytest.approx(7500, rel=0.05) and hybrid.mean_ms == pytest.approx(5100, rel=0.05)
    early = [[ms for at_s, ms in run.results if 4 < at_s - ms / 1e3 < 6] for run in (mem, hybrid)]
    assert np.mean(early[0]) > 2 * np.mean(early[1]), "MEM is worst at first"


# cmr fact 25: burst 3×: without throttling even Hybrid passes the limit; with it input waits, and that is reported
def test_a_larger_burst_is_throttled_and_says_so() -> None:
    swapping, throttled = played("hybrid", 3.0), played("hybrid", 3.0, throttled=True)
    assert swapping.peak_bytes > 2e9 and swapping.left_bytes > 2e9 and swapping.stopped_s == 0
    assert swapping.results[-1][0] < 20, "it emits nothing more"
    assert throttled.peak_bytes <= 2e9 + 2000 * 1000 and throttled.left_bytes < 1e7
    assert 0 < throttled.stopped_s < played("odf", 3.0, throttled=True).stopped_s
    assert played("hybrid", 2.5, throttled=True).stopped_s == 0


def test_the_simulation_is_deterministic() -> None:
    burst = Burst(seconds=30, buffer_rows=5000)
    runs = [play(burst, make_policy("hybrid", Transition(), seed=3)) for _ in range(2)]
    assert runs[0] == runs[1]
