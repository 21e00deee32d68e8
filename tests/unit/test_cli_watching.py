"""What the command shows of a run's journal while it follows the run."""

from __future__ import annotations

from typing import Any

from headrace.cli.watching import Watch, cut_words
from headrace.driver.journal import Journal
from headrace.driver.status import CutFigures, Event, Status


class Following:
    """As much of a run's handle as a watch needs to hear news."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def status(self) -> Status:
        return Status("starting", 0, 0)

    def reports(self) -> list[Any]:
        return []

    def decisions(self) -> list[Event]:
        return self._journal.events


def test_news_are_told_once_also_when_older_events_were_dropped() -> None:
    journal = Journal(remembered=3)
    watch = Watch(Following(journal))  # type: ignore[arg-type]
    assert watch.look() == []
    journal.say("restart", "a")
    journal.say("hold", "nothing to do")
    assert watch.look() == ["restart: a"], "what comes every second is not shown"
    for detail in "bcd":
        journal.say("scale", detail)
    assert watch.look() == ["scale: b", "scale: c", "scale: d"]
    assert watch.look() == []
    journal.say("scale", "e")
    assert watch.look() == ["scale: e"]


def test_news_that_were_dropped_before_they_were_told_are_counted() -> None:
    journal = Journal(remembered=2)
    watch = Watch(Following(journal))  # type: ignore[arg-type]
    for detail in "abcd":
        journal.say("scale", detail)
    assert watch.look() == ["2 events were dropped; they are in the log", "scale: c", "scale: d"]


def test_how_far_a_run_has_got_is_its_last_cut_with_its_age_and_what_waits_for_sinks() -> None:
    status = Status("running", 0, 0)
    assert cut_words(status) == "no cut yet"
    status.cut, status.cut_age_s, status.unpublished = CutFigures(17, 100.0, 12.5, 3.0, 1.5, 4096), 0.43, 1
    assert cut_words(status) == "cut 17, 0.4 s ago"
    status.unpublished = 12
    assert cut_words(status) == "cut 17, 0.4 s ago, 12 unpublished"
