"""The prime experiment and how bounds are judged: from the records themselves."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.bench.guarantees import primetest
from headrace.bench.guarantees.primetest import StairLoad, check, figures_of, is_prime, job_of, numbered
from headrace.bench.measuring.boundkept import spans_of
from headrace.testing import run_local

NONE = {"lost": 0, "duplicated": 0, "wrong": 0}


def test_primes_are_those_of_a_sieve() -> None:
    sieve = np.ones(10_000, bool)
    sieve[:2] = False
    for n in range(2, 100):
        sieve[n * n :: n] = False
    assert (is_prime(np.arange(10_000)) == sieve).all()


def test_the_job_answers_rightly() -> None:
    job = job_of(StairLoad(base=200, step_s=0.05), primetest.Tester(0.0), print, (1, 2, 3), 50.0)  # type: ignore[arg-type]
    rows = run_local(job, parallelism=1)["out"]
    table = {name: np.array([row[name] for row in rows]) for name in ("seq", "number", "prime")}
    assert check(table, 340) == NONE
    assert check({**table, "prime": 1 - table["prime"]}, 340)["wrong"] == 340
    assert check({name: values[1:] for name, values in table.items()}, 340) == {**NONE, "lost": 1}


def test_load_is_a_stair_case() -> None:
    load = StairLoad(200, 10.0)
    assert [rate for _, rate in load.rate] == [200, 400, 800, 1200, 1600, 1200, 800, 400, 200]
    assert load.total == sum(seconds * rate for seconds, rate in load.rate)
    assert set(numbered(np.arange(10_000))["number"].tolist()) == set(range(10_000))


# latency-guarantees fact 8: met iff the mean is at most the bound, even when single items exceed it
def test_a_bound_is_on_the_mean_of_any_span() -> None:
    due_us = np.arange(0, 20_000_000, 10_000)
    latency_ms = np.where(np.arange(len(due_us)) % 10 == 0, 100.0, 10.0)  # mean 19
    now_us = due_us + (latency_ms * 1000).astype(int)
    assert spans_of(due_us, now_us, 20.0, 5.0).met_share == 1.0
    assert spans_of(due_us, now_us, 18.0, 5.0).met_share == 0.0
    late = now_us + np.where((due_us >= 10_000_000) & (due_us < 11_000_000), 50_000, 0)
    spans = spans_of(due_us, late, 20.0, 5.0, warmup_s=2.0)
    assert len(spans.values_ms) == 13  # spans begin at 2 … 14 s, as the last item is due before 20 s
    assert spans.met_share == pytest.approx(8 / 13, abs=1e-4)  # those that begin at 6 … 10 s are not met
    assert spans_of(due_us, now_us, 18.0, 5.0, quantile=0.5).met_share == 1.0


def test_figures_name_their_run_and_differences_of_all_count() -> None:
    made = {"subtask_s": 10.0, "cpu_s": 4.0, "met_share": 0.9, "lost": 0, "duplicated": 0, "wrong": 1}
    runs = {
        "bound_50": made,
        "bound_100": made | {"subtask_s": 8.0},
        "fixed": made | {"subtask_s": 40.0},
        "immediate": made | {"cpu_s": 8.0},
    }
    figures = figures_of(runs, "bound_50")
    assert figures["met_share"] == figures["bound_50_met_share"] == 0.9
    assert figures["bound_100_subtask_s"] == 8.0
    assert (figures["subtask_share"], figures["cpu_share_of_immediate"], figures["wrong"]) == (0.25, 0.5, 4)
