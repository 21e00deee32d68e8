"""What the journal says about cuts."""

from __future__ import annotations

from headrace.driver.cutwatch import CutWatch
from headrace.driver.status import CutFigures


def cut(number: int, took_ms: float = 30.0, held_ms: float = 2.0, logged_s: float | None = None) -> CutFigures:
    return CutFigures(number, logged_s if logged_s is not None else float(number), took_ms, held_ms, 1.0, 1_000)


def test_there_is_a_line_a_minute() -> None:
    watch, said = CutWatch(1.0), []
    for number in range(1, 130):
        said += watch.took(cut(number, took_ms=30.0 + (number == 7) * 60, held_ms=2.0 + (number == 8) * 7), 1.0)
    assert said == [
        "61 cuts in 60 s took 30 ms each, 90 at most; they held records up for 2 ms, 9 at most, and wrote 61,000 bytes",
        "60 cuts in 60 s took 30 ms each, 30 at most; they held records up for 2 ms, 2 at most, and wrote 60,000 bytes",
    ]


def test_cuts_that_become_longer_than_the_interval_are_told_of_once_and_when_that_is_over() -> None:
    watch = CutWatch(1.0)
    took = (30.0, 1_400.0, 2_000.0, 40.0, 50.0)
    said = [watch.took(cut(number, took_ms), 1.0) for number, took_ms in enumerate(took)]
    assert said == [[], ["cut 1 took 1400 ms, longer than the interval of 1 s"], [], ["cut 3 took 40 ms again"], []]


def test_cuts_that_get_further_apart_by_themselves_are_told_of_once_and_when_that_is_over() -> None:
    watch = CutWatch(1.0)
    said = [watch.took(cut(number, held_ms=90.0), s) for number, s in enumerate((1.0, 3.0, 3.2, 1.2, 1.0))]
    apart = "cuts are 3.0 s apart from now on, for the last one held records up for 90 ms and kept a core busy for 1 ms"
    assert said == [[], [apart], [], ["cuts are 1 s apart again"], []]
