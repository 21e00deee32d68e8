"""A run's journal: what it keeps, what it drops, and that it says so."""

from __future__ import annotations

import logging
import threading

import pytest

import headrace as hr
from headrace.driver.journal import REMEMBERED, Journal
from headrace.testing import run_local, scripted


def test_events_are_kept_in_order_with_their_numbers(caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal()
    with caplog.at_level(logging.INFO, "headrace"):
        journal.say("cut", "cut 3 in 40 ms")
        journal.warn("restart", "a worker was lost")
    assert [(e.number, e.what, e.detail) for e in journal.events] == [
        (0, "cut", "cut 3 in 40 ms"),
        (1, "restart", "a worker was lost"),
    ]
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("INFO", "cut: cut 3 in 40 ms"),
        ("WARNING", "restart: a worker was lost"),
    ]
    assert journal.dropped == 0


def test_the_oldest_events_are_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(remembered=3)
    for n in range(3):
        journal.say("batch", str(n))
    assert journal.dropped == 0 and not caplog.records
    for n in range(3, 8):
        journal.say("batch", str(n))
    assert [(e.number, e.detail) for e in journal.events] == [(5, "5"), (6, "6"), (7, "7")]
    assert journal.dropped == 5
    warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert warned == ["the journal keeps the last 3 events; older ones are in this log only"], "said once"


def test_a_journal_is_generous_unless_told_otherwise() -> None:
    journal = Journal()
    for _ in range(REMEMBERED + 1):
        journal.say("batch", "again")
    assert REMEMBERED >= 10_000 and len(journal.events) == REMEMBERED and journal.dropped == 1


def test_what_was_handed_out_stays_and_threads_may_write_meanwhile() -> None:
    journal, each, writers = Journal(remembered=50), 500, 4
    threads = [
        threading.Thread(target=lambda: [journal.say("batch", "x") for _ in range(each)]) for _ in range(writers)
    ]
    for thread in threads:
        thread.start()
    seen = []
    while any(thread.is_alive() for thread in threads):
        seen.append([event.number for event in journal.events])
    for thread in threads:
        thread.join()
    seen.append([event.number for event in journal.events])
    assert all(numbers == list(range(numbers[0], numbers[0] + len(numbers))) for numbers in seen if numbers)
    assert seen[-1][-1] == writers * each - 1 and journal.dropped == writers * each - 50


def late_job(*, read: bool) -> hr.Job:
    job = hr.Job("job")
    times = [5, 50, *([1] * 7)]
    stream = job.source("s", scripted([{"k": "a", "t": t} for t in times]), event_time="t")
    counts = stream.key_by("k").window(hr.tumbling("10 ms")).reduce(name="counts", n=hr.count()).sink("out", hr.rows())
    if read:
        counts.late().sink("late", hr.rows())
    return job


def test_late_records_are_told_at_first_and_whenever_they_have_doubled(caplog: pytest.LogCaptureFixture) -> None:
    journal, graph = Journal(), late_job(read=False).graph()
    for count in (0, 1, 0, 1, 1, 1, 1, 996):
        journal.note_late({"in:counts": 10, "late:counts": count}, graph)
    told = [event.detail.split(" so far")[0] for event in journal.events]
    assert told == [
        "step 'counts': 1 record", "step 'counts': 2 records", "step 'counts': 4 records", "step 'counts': 1,001 records"
    ]  # fmt: skip
    assert {record.levelname for record in caplog.records} == {"WARNING"}


@pytest.mark.parametrize("mode", ["realtime", "microbatch", "batch"])
@pytest.mark.parametrize("read", [False, True])
def test_a_run_warns_of_late_records_that_nobody_reads(read: bool, mode: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "headrace"):
        run_local(late_job(read=read), mode=mode)
    told = [(r.levelname, r.getMessage()) for r in caplog.records if r.getMessage().startswith("late: ")]
    came = "late: step 'counts': 7 records so far came after their windows had closed"
    lost = f"{came} and are in no result; give the source a longer lateness= to wait for such, or read them with late()"
    assert told == [("INFO", f"{came}; late() has them") if read else ("WARNING", lost)]
