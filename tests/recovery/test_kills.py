"""kill -9 of the driver and of Python workers: the answers stay those of the reference."""

from __future__ import annotations

from headrace.bench.recovery import recovery


# chronostream fact 15
def test_answers_survive_killed_drivers_and_workers() -> None:
    figures = recovery(kills=3, rate=1000, seconds=90, seed=7)  # long enough for three kills on a busy machine
    assert figures["driver_kills"] == 2
    assert figures["worker_kills"] == 1
    assert figures["worker_restarts"] >= 1
    assert {name: figures[name] for name in ("lost", "duplicated", "wrong")} == {"lost": 0, "duplicated": 0, "wrong": 0}
