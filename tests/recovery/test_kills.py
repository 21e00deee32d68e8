"""kill -9 of drivers, with and without a standby, and of Python workers: the answers stay those of the reference."""

from __future__ import annotations

from headrace.bench.recovery import recovery


# chronostream fact 15
def test_answers_survive_killed_drivers_and_workers() -> None:
    figures = recovery(kills=3, rate=1000, seed=7, standby=True)
    kills = {kind: figures[f"{kind}_kills"] for kind in ("driver", "worker", "standby")}
    assert kills == {"driver": 1, "worker": 1, "standby": 1}
    assert figures["worker_restarts"] >= 1
    assert {name: figures[name] for name in ("lost", "duplicated", "wrong")} == {"lost": 0, "duplicated": 0, "wrong": 0}
