"""An ordered cut cannot be withdrawn: it is waited for while there is progress, and then the attempt ends."""

from __future__ import annotations

from driven import Driven, counting, kinds

from headrace.driver.protocol.events import Append, BatchEndAsked, Say, StopAsked, StopQuery
from headrace.measure.flows import Flow
from headrace.runtime.messages import Aligned, Failed, Loaded
from headrace.state.copies.nearest import NOTHING_LOADED

SILENCE_S = 120.0
"""24 leases of 5 s."""


def ordered() -> Driven:
    driven = Driven(counting(2)).run()
    driven.later(1.1)
    assert driven.machine.cut is not None
    return driven


def passes(driven: Driven, seconds: float) -> list[str]:
    """The loop turns as it does; what is asked for meanwhile, but for orders that are repeated."""
    asked = []
    for _ in range(int(2 * seconds)):
        asked += kinds(driven.later(0.5))
    return [kind for kind in asked if kind != "CutOrdered"]


def test_a_cut_that_nobody_works_on_ends_the_attempt_and_names_who_did_not_answer() -> None:
    driven = ordered()
    for place in ((0, 0), (0, 1), (1, 1)):
        driven.hear(place, Aligned(*place, driven.token))
    assert passes(driven, SILENCE_S - 5) == []
    driven.report((1, 0))
    driven.report((0, 0))
    assert "StopQuery" in passes(driven, 10.0)
    (stop,) = driven.all(StopQuery)
    assert [hello.place for hello in stop.hung] == [(1, 0)], "who would not notice is killed"
    driven.later(0.2)
    said = [say.detail for say in driven.all(Say) if say.loud]
    why = "cut 1 was not made: nothing came of it for 120 s; subtask 0 of stage 1 did not answer"
    assert said == [f"{why}; going on from the last cut"]
    assert driven.machine.query == 2 and driven.finish is None, "it goes on from the last cut"


def test_only_the_first_stage_that_does_not_answer_is_named() -> None:
    driven = ordered()
    driven.hear((0, 1), Aligned(0, 1, driven.token))
    passes(driven, SILENCE_S + 5)
    (stop,) = driven.all(StopQuery)
    assert [hello.place for hello in stop.hung] == [(0, 0)], "those behind it wait for its mark"


def test_who_has_aligned_and_does_not_describe_is_silent_too() -> None:
    driven = ordered()
    for place in driven.places:
        driven.hear(place, Aligned(*place, driven.token))
    for place in driven.places[:-1]:
        driven.describe(place)
    passes(driven, SILENCE_S + 5)
    assert [hello.place for stop in driven.all(StopQuery) for hello in stop.hung] == [(1, 1)]


def test_a_cut_is_waited_for_while_there_is_progress() -> None:
    driven = ordered()
    working = (Flow("n", 5, 0, 0, None),)
    for _ in range(3):
        assert passes(driven, SILENCE_S - 5) == []
        driven.report((1, 0), flows=working)
    driven.hear((0, 0), Aligned(0, 0, driven.token))
    assert passes(driven, SILENCE_S - 5) == []
    driven.describe((0, 0))
    assert passes(driven, SILENCE_S - 5) == []
    driven.report((0, 0), flows=working)
    driven.hear((0, 0), Aligned(0, 0, driven.token))
    driven.describe((0, 0))
    assert "StopQuery" in passes(driven, 10.0), "what is said again, or by who is done, is none"


def test_a_driver_that_stood_still_itself_blames_nobody() -> None:
    driven = ordered()
    driven.later(10 * SILENCE_S)
    assert driven.all(StopQuery) == []
    assert passes(driven, SILENCE_S - 10) == []


def test_a_stop_ends_although_a_subtask_hangs() -> None:
    driven = ordered()
    driven.tell(StopAsked())
    passes(driven, SILENCE_S + 5)
    assert driven.finish is not None


def test_what_a_worker_says_itself_tells_more() -> None:
    driven = ordered()
    passes(driven, SILENCE_S - 1)
    driven.hear((1, 0), Failed(1, (1, 0), "StateError", "the disk is on fire", None))
    passes(driven, 5.0)
    assert driven.finish is not None and "on fire" in str(driven.finish.error)


def test_a_described_cut_that_waits_for_the_log_is_not_silent() -> None:
    driven = ordered()
    driven.held.add(Append)
    driven.describe_all()
    assert "StopQuery" not in passes(driven, SILENCE_S + 30), "the disk is away, and subtasks have done their part"


def test_who_hangs_while_it_loads_is_named() -> None:
    driven = Driven(counting(2))
    driven.join()
    for place in driven.places[1:]:
        driven.hear(place, Loaded(*place, driven.attempt, NOTHING_LOADED))
    assert "StopQuery" in passes(driven, SILENCE_S + 10)
    (stop,) = driven.all(StopQuery)
    assert [hello.place for hello in stop.hung] == [driven.places[0]]


def test_who_does_not_come_to_the_next_batch_is_named_and_a_query_that_waits_for_slots_is_not_ended() -> None:
    driven = Driven(counting(2))
    assert "StopQuery" not in passes(driven, 2 * SILENCE_S), "nobody has come yet: Spark may have no room for it"
    driven.run()
    driven.tell(BatchEndAsked("it was asked for"))
    driven.later(1.1)
    driven.describe_all()
    for place in driven.places[:-1]:
        driven.hello(place, batch=1)
    assert "StopQuery" in passes(driven, SILENCE_S + 10)
    (stop,) = driven.all(StopQuery)
    assert driven.places[-1] in [hello.place for hello in stop.hung]
