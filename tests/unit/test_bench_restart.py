"""The restart experiment: medians of stops by their parts, those of the query apart from those of a batch."""

from __future__ import annotations

from headrace.bench.durability.restartgap import gap_figures
from headrace.spark.gaps import Gap

QUERY = Gap({"cut": 20.0, "stop": 200.0, "first hello": 500.0, "go": 1.0})
SLOW_QUERY = Gap({"cut": 30.0, "stop": 400.0, "first hello": 700.0, "go": 1.0})
BATCH = Gap({"cut": 20.0, "first hello": 300.0, "go": 1.0})
FAILURE = Gap({"stop": 100.0, "first hello": 900.0})


def test_stops_of_the_query_and_of_a_batch_are_told_apart() -> None:
    figures = gap_figures([QUERY, BATCH, SLOW_QUERY, FAILURE])
    assert figures["restart_gaps"] == 2 and figures["batch_gaps"] == 1, "nobody asked for the failure"
    assert figures["restart_gap_ms"] == 926.0 and figures["restart_gap_max_ms"] == 1131.0
    assert figures["restart_first_hello_ms"] == 600.0 and figures["restart_stop_ms"] == 300.0
    assert figures["batch_gap_ms"] == 321.0 and "batch_stop_ms" not in figures


def test_no_stop_has_no_figures() -> None:
    figures = gap_figures([])
    assert figures["restart_gap_ms"] is None and figures["batch_gap_max_ms"] is None
