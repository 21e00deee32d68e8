"""A stop of the sources by its parts, whatever happened in it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.spark.gaps import Gap, GapClock, Moment


def gap_of(*marks: tuple[Moment, float], began_s: float) -> Gap | None:
    clock = GapClock()
    for moment, at_s in marks:
        clock.mark(moment, at_s)
    return clock.began(began_s)


RESTART: Sequence[tuple[Moment, float]] = [
    ("ordered", 1.0), ("logged", 1.02), ("stop", 1.03), ("stopped", 1.23), ("start", 1.33), ("started", 1.43),
    ("hello", 1.63), ("hello", 1.65), ("hello", 1.68), ("loaded", 1.7), ("loaded", 1.73),
]  # fmt: skip


def test_a_restart_has_all_parts_and_they_are_the_whole() -> None:
    gap = gap_of(*RESTART, began_s=1.74)
    assert gap is not None and gap.deliberate and not gap.between_batches
    assert gap.seconds == pytest.approx(0.74)
    assert {name: round(ms) for name, ms in gap.parts_ms.items()} == {
        "cut": 20, "leave": 10, "stop": 200, "between": 100, "start": 100, "first hello": 200, "all hello": 50, "load": 50,
        "go": 10,
    }  # fmt: skip
    assert gap.sentence().startswith("sources stood still for 0.74 s (cut 20 ms, leave 10 ms, stop 200 ms")


def test_the_next_batch_of_a_query_has_no_part_of_a_query() -> None:
    gap = gap_of(("ordered", 1.0), ("logged", 1.1), ("hello", 1.3), ("hello", 1.4), ("loaded", 1.5), began_s=1.6)
    assert gap is not None and gap.between_batches
    assert list(gap.parts_ms) == ["cut", "first hello", "all hello", "load", "go"]


def test_a_failure_counts_from_when_it_was_noticed() -> None:
    gap = gap_of(("hello", 0.5), ("stop", 1.0), ("stopped", 1.1), ("start", 1.2), ("hello", 2.0), began_s=2.5)
    assert gap is not None and not gap.deliberate and not gap.between_batches
    assert gap.seconds == pytest.approx(1.5)


def test_who_fails_while_it_starts_starts_again() -> None:
    again: Sequence[tuple[Moment, float]] = [
        ("stop", 2.0), ("stopped", 2.1), ("start", 2.2), ("started", 2.3), ("hello", 2.4), ("loaded", 2.5),
    ]  # fmt: skip
    gap = gap_of(*RESTART, *again, began_s=2.6)
    assert gap is not None and gap.seconds == pytest.approx(1.6)
    assert all(ms >= 0 for ms in gap.parts_ms.values())
    assert "all hello" not in gap.parts_ms


def test_a_query_may_be_faster_than_its_start_returns() -> None:
    gap = gap_of(("stop", 1.0), ("start", 1.1), ("hello", 1.2), ("started", 1.3), ("loaded", 1.4), began_s=1.5)
    assert gap is not None and list(gap.parts_ms) == ["between", "first hello", "load", "go"]


def test_a_first_start_is_no_stop() -> None:
    assert gap_of(("start", 1.0), ("hello", 2.0), ("loaded", 3.0), began_s=3.1) is None
