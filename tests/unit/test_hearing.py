"""What the driver makes of its workers' reports."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from driven import Driven, counting
from workflows import out

import headrace as hr
from headrace.driver.hearing import Hearing, RunCounts
from headrace.driver.status import Status
from headrace.errors import MessageError
from headrace.measure.backlog import Backlog
from headrace.measure.flows import figures_of
from headrace.measure.report import Report
from headrace.runtime.messages import Reported, encode, read_as_driver
from headrace.testing import LocalRun
from headrace.tokens import Attempt


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[Reported]]:
    """A run's layout, and what its workers told the driver."""
    job = hr.Job("told")
    numbers = job.source("src", hr.generate(lambda n: {"k": np.asarray(n) % 5}, rate=4000, total=2000))
    numbers.key_by("k").reduce(name="count", n=hr.count()).sink("sink", out())
    run = LocalRun(job, tmp_path_factory.mktemp("told"), report="50 ms", parallelism=2)
    try:
        run.run(seconds=10)
    finally:
        run.close()
    return run.plan.layout, run.reports


def test_the_newest_figures_of_all_workers_are_together(told: tuple[Any, list[Reported]]) -> None:
    layout, reports = told
    hearing = Hearing(layout, 10.0)
    for reported in reports:
        hearing.take(reported)
    last_s = max(reported.report.at_s for reported in hearing.history)
    status = Status("running", 0, 0).measured(hearing.summary(last_s))
    assert status.steps.keys() == {"src", "count", "sink"} and len(status.edges) == 1
    assert {(id.sender, id.receiver) for id in status.channels} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert hearing.newest.keys() == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert hearing.summary(last_s + 20).subtasks, "one report may be lost or late"
    later = Status("running", 0, 0).measured(hearing.summary(last_s + 26))
    assert (later.steps, later.edges, later.channels) == ({}, {}, {}), "nobody has measured anything lately"
    latency = figures_of(flow for reported in hearing.history for flow in reported.flows)
    assert latency.keys() == {"count", "sink"} and latency["count"].p50_ms <= latency["count"].p99_ms


def test_a_controller_sees_every_report_once(told: tuple[Any, list[Reported]]) -> None:
    layout, reports = told
    hearing, seen = Hearing(layout, 1.0), []
    for start in range(0, len(reports), 3):
        for reported in reports[start : start + 3]:
            hearing.take(reported)
        seen += hearing.unseen()
    assert hearing.unseen() == ()
    assert seen == [reported.report for reported in reports]


def test_sources_are_exhausted_when_all_said_so_in_this_attempt(told: tuple[Any, list[Reported]]) -> None:
    layout, reports = told
    hearing = Hearing(layout, 1.0)
    attempt = reports[0].attempt
    assert not hearing.exhausted(attempt)
    for reported in reports:
        hearing.take(reported)
    assert hearing.exhausted(attempt) and not hearing.exhausted(Attempt(attempt.generation, attempt.number + 1))
    hearing.forget()
    assert not hearing.exhausted(attempt) and hearing.history


def test_a_report_that_is_none_is_refused(told: tuple[Any, list[Reported]]) -> None:
    body = msgspec.msgpack.decode(encode(told[1][0]))
    with pytest.raises(MessageError, match=r"of kind 'report' was refused .*missing required field .* at `\$\.report`"):
        read_as_driver(msgspec.msgpack.encode({**body, "report": {"worker": "w"}}))


def test_reports_of_another_attempt_or_of_no_subtask_are_not_heard(told: tuple[Any, list[Reported]]) -> None:
    driven = Driven(counting(2)).run()
    report = msgspec.structs.replace(told[1][0], stage=0, index=0, attempt=driven.attempt)
    for unheard in (
        msgspec.structs.replace(report, index=2),
        msgspec.structs.replace(report, stage=2),
        msgspec.structs.replace(report, attempt=Attempt(1, 7)),
    ):
        driven.hear((0, 0), unheard)
        assert not driven.machine.hearing.newest
    driven.hear((0, 0), report)
    assert driven.machine.hearing.newest == {(0, 0): report} and driven.machine.hearing.unseen() == (report.report,)


def test_what_is_counted_follows_the_reports_and_ends_as_what_was_logged(told: tuple[Any, list[Reported]]) -> None:
    layout, reports = told
    hearing, seen = Hearing(layout, 10.0), [0]
    for reported in reports:
        hearing.take(reported)
        seen.append(hearing.counts.now().get("in:src", 0))
    assert seen == sorted(seen) and len(set(seen)) > 2 and seen[-1] == 2000, "long before a cut"
    now = hearing.counts.now()
    assert now["in:sink"] == now["out:count"] > 0 and now["late:count"] == 0
    assert hearing.counts.logged == {}


def test_what_is_logged_counts_once_and_an_attempt_that_failed_no_more() -> None:
    tally, first, second = RunCounts(), Attempt(1, 1), Attempt(1, 2)

    def report(attempt: Attempt, index: int, **counts: int) -> None:
        idle = Backlog("direct", {}, 0, 0, 0.0, 0, 0.0, {})
        empty = Report("w", 0.0, 0, (), ())
        tally.take(Reported(0, index, attempt, 1, 0, 0.0, 0, False, {}, (), empty, idle, counts))

    report(first, 0, read=5)
    report(first, 1, read=2, late=1)
    assert tally.now() == {"read": 7, "late": 1}
    tally.log(first, [{"read": 4}, {"read": 2, "late": 1}])
    assert tally.now() == {"read": 7, "late": 1} and tally.logged == {"read": 6, "late": 1}
    tally.log(first, [{"read": 9}])
    assert tally.now() == {"read": 15, "late": 1}, "more is logged than was reported"
    report(first, 0, read=20)
    assert tally.now() == {"read": 22, "late": 1}
    report(second, 0, read=1)
    assert tally.now() == {"read": 16, "late": 1}, "what the first attempt did not log will be read again"
    tally.log(second, [{"read": 3}])
    report(second, 0, read=3)
    assert tally.now() == {"read": 18, "late": 1}
