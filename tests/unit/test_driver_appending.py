"""The driver's hand on the version log: one entry at a time, each with a certain outcome."""

from __future__ import annotations

import pytest
from driven import opened
from durable import MemoryStorage
from hypothesis import given
from hypothesis import strategies as st

from headrace.driver.protocol.appending import Appending, LogEvent, Outcome
from headrace.driver.protocol.events import (
    Append,
    Appended,
    AppendFailed,
    EntryRead,
    Instruction,
    LogUnreadable,
    LookUp,
    NewestSeen,
    ReadEntry,
    ReadLog,
)
from headrace.state.durable.versionlog import VersionLog

MINE, OTHERS = opened(4, pid=1), opened(4, pid=2)
AWAY = LogUnreadable("the disk is away")


def begun() -> Appending:
    log = Appending(number=3)
    assert log.append(MINE) == [Append(4, MINE)]
    return log


def told(log: Appending, *events: LogEvent) -> tuple[list[Instruction], Outcome | None]:
    for event in events[:-1]:
        log.on(event, 0.0)
    return log.on(events[-1], 0.0)


# cuts.md rule 18: after a successful create look for a higher number
def test_an_entry_counts_when_nobody_has_come_since() -> None:
    log = begun()
    assert told(log, Appended(4)) == ([LookUp()], None) and log.busy and log.number == 3
    assert told(log, NewestSeen(4)) == ([], "appended")
    assert (log.number, log.entry, log.busy) == (4, None, False)


def test_a_higher_number_fences() -> None:
    log = begun()
    assert told(log, Appended(4), NewestSeen(5)) == ([], "fenced") and not log.busy


# cuts.md rule 17: conflict, time-out, lost answer: read it
@pytest.mark.parametrize("why", ["the number is taken", "timed out"])
def test_an_append_without_a_good_answer_is_looked_at(why: str) -> None:
    log = begun()
    assert told(log, AppendFailed(4, why)) == ([ReadEntry(4)], None)
    assert told(log, EntryRead(4, MINE)) == ([LookUp()], None), "my own entry: success"
    assert told(log, NewestSeen(4)) == ([], "appended")


def test_anothers_entry_has_taken_the_number() -> None:
    log = begun()
    assert told(log, AppendFailed(4, "taken"), EntryRead(4, OTHERS)) == ([], "taken")
    assert not log.busy and log.entry is None and log.number == 3


def test_what_is_not_there_is_created_again_as_the_same_entry_after_a_while() -> None:
    log = begun()
    for wait_s in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0):
        assert told(log, AppendFailed(4, "no space left"), EntryRead(4, None)) == ([], None)
        assert log.busy and log.trouble == "no space left"
        assert log.due(wait_s - 0.01) == [] and log.due(wait_s) == [Append(4, MINE)]
        assert log.due(100.0) == [], "asked once"
    assert told(log, Appended(4), NewestSeen(4)) == ([], "appended") and log.trouble is None
    log.append(opened(5))
    told(log, AppendFailed(5, "no space left"), EntryRead(5, None))
    assert log.due(0.1), "the next trouble is a new one"


@pytest.mark.parametrize("asked", [ReadEntry(4), LookUp()])
def test_a_question_without_an_answer_is_asked_again(asked: Instruction) -> None:
    log = begun()
    told(log, AppendFailed(4, "timed out") if isinstance(asked, ReadEntry) else Appended(4))
    for wait_s in (0.1, 0.2, 0.4):
        assert told(log, AWAY) == ([], None) and log.trouble == AWAY.why
        assert log.due(wait_s) == [asked]


def test_the_whole_log_is_read_again_too() -> None:
    log = Appending()
    assert log.read() == [ReadLog()] and log.busy
    assert told(log, AWAY) == ([], None) and log.due(0.09) == [] and log.due(0.1) == [ReadLog()]
    assert log.take_read() and not log.busy
    assert not log.take_read(), "nobody has asked"


# cuts.md rule 22: the log is looked at before a new attempt
@pytest.mark.parametrize(("newest", "outcome"), [(3, "looked"), (4, "fenced"), (9, "fenced")])
def test_the_log_is_looked_at_without_an_entry_too(newest: int, outcome: Outcome) -> None:
    log = Appending(number=3)
    assert log.look() == [LookUp()]
    assert told(log, NewestSeen(newest)) == ([], outcome) and log.number == 3


UNASKED: dict[str, tuple[LogEvent, ...]] = {
    "append": (Appended(3), Appended(5), AppendFailed(5, ""), EntryRead(4, MINE), NewestSeen(4)),
    "read": (Appended(4), AppendFailed(4, ""), EntryRead(3, MINE), EntryRead(5, None), NewestSeen(4)),
    "look": (Appended(4), AppendFailed(4, ""), EntryRead(4, OTHERS)),
    "nothing": (Appended(4), AppendFailed(4, ""), EntryRead(4, OTHERS), NewestSeen(9), AWAY),
}


@pytest.mark.parametrize("asked", UNASKED)
def test_answers_to_what_was_not_asked_change_nothing(asked: str) -> None:
    log = Appending(number=3) if asked == "nothing" else begun()
    if asked == "read":
        told(log, AppendFailed(4, "timed out"))
    if asked == "look":
        told(log, Appended(4))
    before = repr(log)
    for event in UNASKED[asked]:
        assert log.on(event, 0.0) == ([], None)
    assert repr(log) == before


def test_who_gives_up_does_not_know_what_became_of_its_entry() -> None:
    log = begun()
    told(log, AppendFailed(4, "timed out"))
    log.give_up()
    assert not log.busy and log.entry == MINE and log.due(100.0) == []
    assert told(log, EntryRead(4, MINE)) == ([], None)


class Flaky:
    """Two drivers' calls to one log: each is done or not done, and answered or not."""

    def __init__(self, dice: st.DataObject) -> None:
        self.log, self._dice = VersionLog(MemoryStorage()), dice

    def answer(self, asked: Instruction) -> LogEvent:
        fate = self._dice.draw(st.sampled_from(["well", "well", "well", "lost before", "lost after"]))
        done = fate != "lost before"
        match asked:
            case Append(number, entry):
                created = self.log.append(number, entry) if done else False
                return Appended(number) if created and fate == "well" else AppendFailed(number, fate)
            case ReadEntry(number) if fate == "well":
                return EntryRead(number, self.log.read(number) if number in self.log.numbers() else None)
            case LookUp() if fate == "well":
                return NewestSeen(self.log.newest())
        return AWAY


# chronostream fact 18, rules 16 to 18: whatever is lost, a number is one driver's, and only the last one goes on
@given(st.data())
def test_of_two_drivers_only_the_newest_goes_on(dice: st.DataObject) -> None:
    flaky = Flaky(dice)
    drivers = {pid: Appending() for pid in (1, 2)}
    questions: dict[int, list[Instruction]] = {pid: [] for pid in drivers}
    counted: list[tuple[int, int]] = []
    now_s = 0.0
    for _ in range(dice.draw(st.integers(5, 60))):
        now_s += 10.0
        pid = dice.draw(st.sampled_from(sorted(drivers)))
        log = drivers[pid]
        if not log.busy and not questions[pid]:
            questions[pid] = log.append(opened(log.number + 1, pid))
        questions[pid] += log.due(now_s)
        if not questions[pid]:
            continue
        asked, outcome = log.on(flaky.answer(questions[pid].pop(0)), now_s)
        questions[pid] += asked
        if outcome == "appended":
            counted.append((log.number, pid))
            assert flaky.log.newest() == log.number
        elif outcome is not None:
            drivers[pid] = Appending(number=flaky.log.newest())  # it is fenced, and another one starts
    entries = [flaky.log.read(number) for number in flaky.log.numbers()]
    assert flaky.log.numbers() == list(range(1, len(entries) + 1))
    assert all(entries[number - 1] == opened(number, pid) for number, pid in counted)
