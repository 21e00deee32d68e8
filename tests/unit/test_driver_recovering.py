"""What a failure took, against what was promised, and what follows from it."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest
from driven import Driven, counting, sender, sent

from headrace.control.recovering import Recovered, Recovering
from headrace.driver.protocol.events import Lost, QueryEnded, RestartAsked, Say
from headrace.errors import RunFailedError
from headrace.runtime.messages import Loaded, Planned
from headrace.state.copies.nearest import NOTHING_LOADED, Loading
from headrace.state.copies.placement import CopyNode

A, B, C, D = (CopyNode(name, f"tcp://{name}:1", "key") for name in "abcd")
RESTART_S = 2.0


def failing(driven: Driven, after_s: float = 0.0) -> None:
    """A worker is killed so long after a cut."""
    driven.cut()
    driven.later(after_s)
    driven.tell(QueryEnded(driven.machine.query, RunFailedError("a worker was killed")))
    driven.later(1.0)


def recovered(driven: Driven) -> Recovered:
    """It goes on after a while, and makes its next cut."""
    driven.later(RESTART_S - 1.0)
    driven.run()
    driven.cut()
    assert driven.machine.recovering.last is not None
    return driven.machine.recovering.last


def said(driven: Driven) -> list[str]:
    return [say.detail for say in driven.all(Say) if say.what == "recovery"]


def test_what_a_failure_took_is_told_against_what_was_promised() -> None:
    driven = Driven(counting(recovery="5 s")).run()
    failing(driven, 0.4)
    assert said(driven) == [] and driven.machine.recovering.last is None
    over = recovered(driven)
    assert over.stood_s == pytest.approx(RESTART_S) and over.repeated_s == pytest.approx(0.4)
    assert over.took_s == pytest.approx(RESTART_S + 1.0) and over.in_time, "one interval more"
    assert over.wanted_s == 5.0 and driven.machine.recovering.longest_s == over.took_s
    assert said(driven) == [
        "new results 3.0 s after a failure, of 5 s wanted: sources stood still for 2.0 s, and what had come in 0.4 s was "
        "repeated"
    ]
    driven.cut()
    assert len(said(driven)) == 1, "a cut like others"


def test_a_promise_that_was_missed_is_told_aloud_and_one_that_nobody_gave_is_not_missed() -> None:
    late, free = Driven(counting(recovery="2500 ms")).run(), Driven(counting()).run()
    for driven in (late, free):
        failing(driven)
    assert not recovered(late).in_time and recovered(free).in_time is None
    assert [say.loud for driven in (late, free) for say in driven.all(Say) if say.what == "recovery"] == [True, False]
    assert "wanted" not in said(free)[0]


def test_time_until_a_failure_is_noticed_counts_and_failures_that_follow_each_other_are_one() -> None:
    driven = Driven(counting()).run()
    driven.cut()
    driven.later(7.0)
    driven.tell(Lost(sender(driven.places[0])))
    failed_s = driven.now_s - driven.plan.settings.lease_s
    driven.later(1.0)
    driven.run()
    driven.tell(QueryEnded(driven.machine.query, RunFailedError("again")))
    driven.later(1.0)
    over = recovered(driven)
    assert over.took_s == pytest.approx(driven.now_s - failed_s)
    assert over.repeated_s == pytest.approx(2.0), "since the last cut, and not since the failure was noticed"


def test_a_stop_and_a_restart_that_was_asked_for_are_no_failures() -> None:
    driven = Driven(counting(recovery="5 s")).run()
    driven.cut()
    driven.tell(RestartAsked("other executors are ready"))
    driven.cut()
    driven.later(20.0)
    driven.run()
    driven.cut()
    assert driven.machine.query == 2 and driven.machine.recovering.last is None and said(driven) == []
    before_any = Recovering(5.0)
    before_any.failed(1.0)
    before_any.began(2.0)
    assert before_any.logged(1, 3.0) is None, "there was nothing to go on from"


def test_the_interval_is_what_a_restart_leaves_of_the_promise() -> None:
    driven = Driven(counting(commit="30 s", recovery="10 s")).run()
    assert driven.machine.pace.interval_s == 5.0, "half of it, before anything is known"
    failing(driven)
    recovered(driven)
    assert driven.machine.pace.interval_s == pytest.approx(0.8 * (10 - RESTART_S))
    assert said(driven)[0].endswith("cuts are at most 6.4 s apart from now on")
    hopeless = Driven(counting(commit="30 s", recovery="1 s")).run()
    failing(hopeless)
    recovered(hopeless)
    assert hopeless.machine.pace.interval_s == pytest.approx(0.1), "no interval would help: they cost too much"
    often = Driven(counting(commit="1 s", recovery="10 s")).run()
    failing(often)
    recovered(often)
    assert often.machine.pace.interval_s == 1.0, "cuts are as often as was asked for"


# chronostream fact 32, the interval: the longer it is, the longer recovery takes; its mean is linear in it (paper, figure on
# checkpoint intervals: "mean linear, minimum constant")
def test_recovery_rises_with_the_interval() -> None:
    took, repeated = [], []
    for commit_s in (1.0, 2.0, 4.0, 8.0):
        overs = []
        for phase in (0.0, 0.25, 0.5, 0.75):
            driven = Driven(counting(commit=f"{commit_s} s")).run()
            failing(driven, phase * commit_s)
            overs.append(recovered(driven))
        took.append(mean(over.took_s for over in overs))
        repeated.append([over.repeated_s for over in overs])
    assert took == pytest.approx([RESTART_S + commit_s for commit_s in (1.0, 2.0, 4.0, 8.0)])
    assert [mean(some) for some in repeated] == pytest.approx([0.375, 0.75, 1.5, 3.0]), "what is repeated, too"
    assert [min(some) for some in repeated] == pytest.approx([0.0] * 4)


def loaded_from(driven: Driven, nodes: list[CopyNode], origin: str) -> int:
    """Subtasks come to these nodes, and load from there; returns how many copies there are of each slice."""
    before = len(driven.asked)
    for place in driven.places:
        driven.hello(place, node=nodes[place[1]])
    loading = Loading({origin: 3}, {}, 0, ()) if origin else NOTHING_LOADED
    for place in driven.places:
        driven.hear(place, Loaded(*place, driven.attempt, loading))
    driven.cut()
    tickets = [planned.ticket for planned in sent(driven.asked[before:], Planned).values()]
    return max(len(nodes) for ticket in tickets for nodes in ticket.backups.values())


@pytest.mark.parametrize(
    ("origin", "more", "recovery", "copies"),
    [
        ("checkpoint", True, "2500 ms", 2), ("peer", True, "2500 ms", 1), ("checkpoint", False, "2500 ms", 1),
        ("checkpoint", True, "1 min", 1),
    ],
)  # fmt: skip
def test_there_are_more_copies_where_a_promise_was_missed_for_want_of_them(
    origin: str, more: bool, recovery: str, copies: int
) -> None:
    plan = counting(4, recovery=recovery)
    driven = Driven(replace(plan, settings=replace(plan.settings, backup=1)))
    driven.machine.members.more_copies = more
    assert loaded_from(driven, [A, B, C, D], "") == 1
    for at in range(2):
        failing(driven)
        driven.later(RESTART_S - 1.0)
        assert loaded_from(driven, [A, B, C, D], origin) == (copies if at else 1), "from the start after it on"
    assert any(f"copies are kept on {copies} executors" in one for one in said(driven)) == (copies > 1)
