"""What the command shows of a run's journal while it follows the run."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import headrace as hr
from headrace.cli.run import Lines, places, progress, summary
from headrace.cli.watching import Watch, cut_words
from headrace.config import Settings
from headrace.driver.journal import Journal
from headrace.driver.planning import plan_job
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


def untimed(news: Iterable[str]) -> list[str]:
    """Without the date and the time."""
    return [line.split(" ", 2)[2] for line in news]


def test_news_are_told_once_also_when_older_events_were_dropped() -> None:
    journal = Journal(remembered=3)
    watch = Watch(Following(journal))  # type: ignore[arg-type]
    assert watch.look() == []
    journal.say("restart", "a")
    journal.say("hold", "nothing to do")
    assert untimed(watch.look()) == ["restart: a"], "what comes every second is not shown"
    for detail in "bcd":
        journal.say("scale", detail)
    assert untimed(watch.look()) == ["scale: b", "scale: c", "scale: d"]
    assert watch.look() == []
    journal.say("scale", "e")
    assert untimed(watch.look()) == ["scale: e"]


def test_news_that_were_dropped_before_they_were_told_are_counted() -> None:
    journal = Journal(remembered=2)
    watch = Watch(Following(journal))  # type: ignore[arg-type]
    for detail in "abcd":
        journal.say("scale", detail)
    missed, *told = watch.look()
    assert missed == "2 events were dropped; they are in the log" and untimed(told) == ["scale: c", "scale: d"]


def test_an_event_is_printed_with_a_time_that_people_read() -> None:
    event = Event(1_700_000_000.25, "scale", "count: 2 → 3 subtasks")
    assert str(event) == f"{datetime.fromtimestamp(1_700_000_000):%Y-%m-%d %H:%M:%S} scale: count: 2 → 3 subtasks"
    assert event.at.timestamp() == event.at_s and event.at.tzinfo is not None


class Reading(Following):
    """A run whose source has read some of its input."""

    def __init__(self, source: Any, read: int, **counters: int) -> None:
        super().__init__(Journal())
        job = hr.Job("reading")
        job.source("src", source).sink("out", hr.jsonl("out"))
        self.plan = SimpleNamespace(graph=job.graph())
        self._status = Status("running", 0, 0, counters={"in:src": read, "in:out": read - 1, **counters})

    def status(self) -> Status:
        return self._status


def watching(run: Reading, *, seconds: float) -> Watch:
    watch = Watch(run)  # type: ignore[arg-type]
    watch.items = {"src": run.status().counters["in:src"]}
    watch.began_s = time.monotonic() - seconds
    return watch


def test_progress_tells_what_was_read_written_lost_and_when_it_will_end() -> None:
    lost = {"late:out": 3, "skipped:src": 2, "shed:src": 0}
    run = Reading(hr.generate(lambda n: {"n": n}, total=4000), 1000, **lost)
    watch = watching(run, seconds=100_000)  # so long that a busy machine changes nothing
    share, left_s = watch.left(run.status()) or (0.0, 0.0)
    assert share == 0.25 and left_s == pytest.approx(300_000, rel=0.01)
    told = str(progress(watch))
    assert told.startswith("reading running · no cut yet · 1,000 read, 0/s · 999 written · 25% done, about 83.3 h left")
    assert told.endswith(" · 3 late · 2 skipped")
    endless = watching(Reading(hr.generate(lambda n: {"n": n}), 1000), seconds=100)
    assert endless.left(run.status()) is None and "done" not in str(progress(endless))
    run.status().loaded = {"checkpoint": 4}
    assert watch.left(run.status()) is None, "what was read before the run is not known"


def test_files_say_about_how_many_records_they_have(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n' * 70)
    (tmp_path / "b.jsonl").write_text('{"n": 1}\n' * 30)
    pq.write_table(pa.table({"n": range(50)}), tmp_path / "c.parquet")
    assert hr.replay(tmp_path / "*.jsonl").expected_rows() == 100
    assert hr.replay(tmp_path / "c.parquet").expected_rows() == 50
    assert hr.replay(tmp_path / "none.jsonl").expected_rows() is None
    (tmp_path / "large.log").write_bytes(b"x" * 99 + b"\n" + (b"y" * 199 + b"\n") * 20_000)
    assert hr.replay(tmp_path / "large.log").expected_rows() == pytest.approx(20_000, rel=0.01)


def test_where_no_line_can_change_there_is_one_every_ten_seconds() -> None:
    out = StringIO()
    watch = watching(Reading(hr.generate(lambda n: {"n": n}), 10), seconds=5)
    lines = Lines(Console(file=out, width=200), watch)
    for now_s in (100.0, 101.0, 109.9, 110.0, 112.0, 120.5, 121.0):
        lines.tick(now_s)
    lines.news(["restart: a"])
    assert [line.split(" · ")[0] for line in out.getvalue().splitlines()] == [
        "reading running", "reading running", "restart: a",
    ]  # fmt: skip


def test_what_a_run_leaves_is_told_with_its_places(tmp_path: Path) -> None:
    job = hr.Job("places", dead_letter=hr.jsonl(tmp_path / "bad"))
    job.source("src", hr.generate(lambda n: {"n": n}, total=3)).sink("out", hr.jsonl(tmp_path / "out"))
    plan = plan_job(job, tmp_path / "state", Settings())
    told = places(plan, temporary=True, journal=tmp_path / "journal.log")
    assert told[0] == f"results of out: JSON lines in {tmp_path / 'out'}, on_commit, a file every 1 h"
    assert str(tmp_path / "bad") in told[1]
    assert told[2:] == [
        f"checkpoint: {tmp_path / 'state'} (temporary: deleted at the end, as no --checkpoint was given)",
        f"journal: {tmp_path / 'journal.log'}",
    ]
    assert places(plan, temporary=False, journal=None)[2:] == [
        f"checkpoint: {tmp_path / 'state'}", "journal: what matters is told here; --journal FILE keeps all",
    ]  # fmt: skip


def test_how_far_a_run_has_got_is_its_last_cut_with_its_age_and_what_waits_for_sinks() -> None:
    status = Status("running", 0, 0)
    assert cut_words(status) == "no cut yet"
    status.cut, status.cut_age_s, status.unpublished = CutFigures(17, 100.0, 12.5, 3.0, 1.5, 4096), 0.43, 1
    assert cut_words(status) == "cut 17, 0.4 s ago"
    status.unpublished = 12
    assert cut_words(status) == "cut 17, 0.4 s ago, 12 unpublished"


@pytest.mark.parametrize(
    ("took_s", "wanted_s", "words"),
    [(None, 5.0, ""), (3.21, 5.0, ", recovered in 3.2 s at most, of 5 s wanted"), (3.21, None, ", recovered in 3.2 s at most")],
)  # fmt: skip
def test_the_end_says_what_recovery_took(took_s: float | None, wanted_s: float | None, words: str) -> None:
    unknown = dict.fromkeys(("cut_ms", "p50_ms", "late", "shed", "skipped"))
    answer = {"job": "j", "state": "finished", "items": 7, "seconds": 2.0, "cuts": 3, "restarts": 1} | unknown
    said = summary(answer | {"recovery_s": took_s, "recovery_wanted_s": wanted_s}).plain
    assert said == f"j finished: 7 records in 2.0 s, 3 cuts, 1 restart{words}"
