"""Executors asked for, waited for and let go, with a cluster of plain numbers; the real one is in tests/spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Event, Thread

import pytest
from pyspark import SparkConf

import headrace as hr
from headrace.config import Settings
from headrace.control.executors import PATIENCE_S, ExecutorPolicy
from headrace.driver import provisioning as executors
from headrace.driver.journal import Journal
from headrace.driver.planning import plan_job
from headrace.driver.provisioning import Executors
from headrace.errors import ConfigError, EnvironmentMissingError
from headrace.graph.slots import elastic_legs
from headrace.runtime.plan import JobPlan
from headrace.spark.fleet import refusal
from headrace.spark.worker import executor_id
from headrace.testing import scripted

POLICY = ExecutorPolicy(1, 3, 4, calm_cycles=3)


class Numbers:
    """A cluster on which executors register when ``come`` says so."""

    def __init__(self, there: int) -> None:
        self.there = [str(i) for i in range(there)]
        self.requested: list[int] = []
        self.killed: list[str] = []
        self.refuses = False

    def ids(self) -> tuple[str, ...]:
        return tuple(self.there)

    def request(self, total: int) -> bool:
        self.requested.append(total)
        return not self.refuses

    def kill(self, ids: Sequence[str]) -> bool:
        self.killed += ids
        return True  # they are listed for some seconds more

    def come(self) -> None:
        self.there.append(str(100 + len(self.there)))


@pytest.fixture
def plan(tmp_path: Path) -> JobPlan:
    """2 source subtasks, 1 to 8 at work, 1 at the sink's side: 4 slots at least, 5 at the start."""
    job = hr.Job("job")
    s = job.source("s", scripted([{"k": 1}]), parallelism=2)
    work = s.map(dict, name="work", parallelism=(1, 2, 8))
    work.key_by("k").window(hr.whole_input()).reduce(name="n", n=hr.count(), parallelism=1).sink("out", hr.rows())
    job.constrain(s >> work, mean="50 ms", over="5 s")
    return plan_job(job, tmp_path, Settings.of(executors=(1, 3)), collect=True)


def managed(fleet: Numbers, **options: object) -> tuple[Executors, Journal]:
    journal = Journal()
    return Executors(journal, fleet, POLICY, **options), journal  # type: ignore[arg-type]


def work(plan: JobPlan) -> tuple[int, int]:
    (leg,) = elastic_legs(plan.layout)
    return leg.active, leg.subtasks


def said(journal: Journal) -> str:
    return "\n".join(f"{event.what}: {event.detail}" for event in journal.events)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_QUIET_S", 0.0)


def test_a_job_begins_with_the_executors_that_its_start_needs(plan: JobPlan) -> None:
    fleet = Numbers(3)
    begun = managed(fleet)[0].begin(plan)
    assert fleet.killed == ["2"] and fleet.requested[-1] == 2, "5 slots are 2 executors of 4"
    assert work(begun) == (2, 5) and begun.layout.slots == 8, "and spare slots are given away"
    assert begun.run != plan.run, "no worker takes subtasks of another layout for these"


def test_more_executors_register_warm_up_and_are_used_at_the_border(plan: JobPlan) -> None:
    fleet, warmed, slots = Numbers(2), Event(), []

    def warm(free: int) -> Thread:
        slots.append(free)
        thread = Thread(target=warmed.wait, name="headrace-warming")
        thread.start()
        return thread

    run, journal = managed(fleet, warm=warm)
    plan = run.begin(plan)
    wanted = {1: 7}
    run.turn(0.0, plan.layout, wanted, 0)
    assert fleet.requested[-1] == 3 and not run.ready
    run.turn(1.0, plan.layout, wanted, 0)
    assert not run.ready and not slots, "none has registered"
    fleet.come()
    run.turn(6.0, plan.layout, wanted, 0)
    run.turn(7.0, plan.layout, wanted, 0)
    assert slots == [4] and not run.ready, "the new one starts Python first"
    warmed.set()
    while not run.ready:
        run.turn(8.0, plan.layout, wanted, 0)
    plan = run.laid_out(plan, wanted)
    assert work(plan) == (7, 8) and not run.ready and not fleet.killed
    run.began(10.0, 2.5)
    for event in ("2 → 3", "all 3 executors are there after 6.0 s", "went from 2 to 3", "the restart took 2.5 s"):
        assert event in said(journal)
    for cycle in range(POLICY.rest_cycles + POLICY.calm_cycles - 1):
        run.turn(11.0 + cycle, plan.layout, {1: 1}, 0)
        assert not run.ready, "the calm is counted after the rest, and the rest from when they were there"
    run.turn(20.0, plan.layout, {1: 1}, 0)
    run.turn(21.0, plan.layout, {1: 1}, 0)
    assert run.ready


def test_fewer_executors_leave_between_two_queries(plan: JobPlan) -> None:
    fleet = Numbers(2)
    run, journal = managed(fleet)
    plan = run.begin(plan)
    for cycle in range(4):
        assert not run.ready
        run.turn(cycle, plan.layout, {1: 1}, 0)
    assert run.ready and not fleet.killed, "tasks still run there"
    plan = run.laid_out(plan, {1: 1})
    assert fleet.killed == ["1"] and fleet.requested[-1] == 1 and work(plan) == (1, 1)
    run.began(4.0, 1.5)
    assert "effective: executors of the job went from 2 to 1" in said(journal), "although Spark still lists it"
    assert run.laid_out(plan, {1: 1}) is plan, "a restart for another reason changes nothing"


_EXECUTOR = "import subprocess; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"


def test_workers_know_what_spark_calls_their_executor() -> None:
    command = [sys.executable, "-c", _EXECUTOR, "--cores", "2", "--executor-id", "17"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as executor:
        assert executor.stdout is not None
        daemon = int(executor.stdout.readline())
        try:
            assert executor_id(daemon) == "17"
            assert executor_id(executor.pid) is None, "local mode, or another cluster's way"
        finally:
            os.kill(daemon, signal.SIGKILL)
    assert executor_id(daemon) is None, "it is gone"


def emptying(plan: JobPlan) -> tuple[Executors, Numbers, Journal, JobPlan]:
    """A job that could do with one of its two executors; the other one has slices."""
    fleet = Numbers(2)
    run, journal = managed(fleet)
    plan = run.begin(plan)
    for cycle in range(3):
        assert run.leaving == frozenset()
        run.turn(cycle, plan.layout, {1: 1}, None)
    assert run.leaving == {"1"} and not run.ready
    return run, fleet, journal, plan


# chronostream: an executor is emptied by moves before it is let go
def test_an_executor_is_emptied_before_it_is_let_go(plan: JobPlan) -> None:
    run, fleet, journal, plan = emptying(plan)
    run.turn(4.0, plan.layout, {1: 1}, 1)
    assert not run.ready
    run.turn(5.5, plan.layout, {1: 1}, 0)
    assert run.ready and "executors 1 have no slices to give away after 3.5 s" in said(journal)
    fleet.there.insert(0, "9")  # another one has come meanwhile, and the emptied one goes all the same
    run.laid_out(plan, {1: 1})
    assert "1" in fleet.killed and "9" not in fleet.killed and run.leaving == frozenset()
    assert "are let go" in said(journal)


def test_an_executor_that_cannot_be_emptied_in_time_is_let_go_nevertheless(plan: JobPlan) -> None:
    run, _, journal, plan = emptying(plan)
    run.turn(31.9, plan.layout, {1: 1}, 2)
    assert not run.ready
    run.turn(32.0, plan.layout, {1: 1}, 2)
    assert run.ready and "still have 2 slices after 30.0 s: others load them after the restart" in said(journal)


def test_an_executor_gets_its_slices_back_if_it_is_needed_again(plan: JobPlan) -> None:
    run, _, journal, plan = emptying(plan)
    run.turn(4.0, plan.layout, {1: 4}, 1)
    assert run.leaving == frozenset() and not run.ready and "more are needed again" in said(journal)


def test_executors_are_let_go_and_fetched_by_hand(plan: JobPlan) -> None:
    fleet = Numbers(2)
    run, journal = managed(fleet)
    plan = run.begin(plan)
    for wrong in (0, 4):
        with pytest.raises(ConfigError, match=rf"executors=\(1, 3\) does not allow {wrong} executors"):
            run.ask(wrong)
    run.ask(1)
    run.turn(0.0, plan.layout, {1: 4}, 3)
    run.turn(1.0, plan.layout, {1: 4}, 3)
    assert run.leaving == {"1"} and not run.ready, "although the load wants more"
    run.turn(2.0, plan.layout, {1: 4}, 0)
    plan = run.laid_out(plan, {1: 4})
    assert fleet.killed == ["1"] and "2 → 1, because it was asked for" in said(journal)
    run.began(3.0, 1.0)
    run.ask(3)
    run.turn(4.0, plan.layout, {1: 1}, 0)
    assert fleet.requested[-1] == 3 and run.leaving == frozenset()
    unmanaged = Executors(Journal(), fleet)
    with pytest.raises(ConfigError, match=r"give it executors=\(min, max\), on a cluster"):
        unmanaged.ask(1)


def test_a_release_is_withdrawn_if_the_load_comes_back_before_the_border(plan: JobPlan) -> None:
    run, journal = managed(Numbers(2))
    plan = run.begin(plan)
    for cycle in range(4):
        run.turn(cycle, plan.layout, {1: 1}, 0)
    assert run.ready
    run.turn(4.0, plan.layout, {1: 4}, 0)
    assert not run.ready and "more are needed again" in said(journal)


@pytest.mark.parametrize(("came", "total"), [(0, 1), (1, 2)])
def test_executors_that_do_not_come_are_no_longer_waited_for(plan: JobPlan, came: int, total: int) -> None:
    fleet = Numbers(2)
    run, journal = managed(fleet)
    plan = run.laid_out(run.begin(plan), {1: 1})
    for cycle in range(4):
        run.turn(cycle, plan.layout, {1: 1}, 0)
    plan = run.laid_out(plan, {1: 1})  # one is left
    fleet.there.remove("1")
    run.began(3.0, 1.0)
    run.turn(4.0, plan.layout, {1: 8}, 0)
    assert fleet.requested[-1] == 3
    for _ in range(came):
        fleet.come()
    run.turn(4.0 + PATIENCE_S, plan.layout, {1: 8}, 0)
    assert fleet.requested[-1] == total and "did not register within 60 s: the cluster may be full" in said(journal)
    assert run.ready == bool(came), "those that came are used"


def test_a_refused_request_is_held(plan: JobPlan) -> None:
    fleet = Numbers(2)
    run, journal = managed(fleet)
    plan = run.begin(plan)
    fleet.refuses = True
    run.turn(0.0, plan.layout, {1: 8}, 0)
    asked = len(fleet.requested)
    for cycle in range(POLICY.calm_cycles):
        run.turn(1.0 + cycle, plan.layout, {1: 8}, 0)
    assert "the cluster manager refused" in said(journal) and len(fleet.requested) == asked, "not asked again at once"


def test_a_lost_executor_leaves_a_smaller_job(plan: JobPlan) -> None:
    fleet = Numbers(2)
    run, _ = managed(fleet)
    plan = run.begin(plan)
    fleet.there.remove("0")
    plan = run.laid_out(plan, {1: 2})
    assert work(plan) == (1, 1) and plan.layout.slots == 4
    fleet.there.clear()
    run._wait_for = lambda *arguments, **options: None  # type: ignore[method-assign]
    with pytest.raises(EnvironmentMissingError, match="needs 4 task slots at least, but only 0 executors of 4 came"):
        run.laid_out(plan, {1: 2})


def test_observing_only_says_what_it_would_do(plan: JobPlan) -> None:
    fleet = Numbers(3)
    run, journal = managed(fleet, observe_only=True)
    assert run.begin(plan) is plan
    for cycle in range(3):
        run.turn(cycle, plan.layout, {1: 1}, 0)
    assert "3 → 1" in said(journal) and "withheld: observing only" in said(journal)
    assert not fleet.requested and not fleet.killed and not run.ready


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"spark.dynamicAllocation.enabled": "true"}, "dynamic allocation is on, and would undo it"),
        ({}, None),
    ],
)
def test_dynamic_allocation_is_left_alone(plan: JobPlan, changed: dict[str, str], why: str | None) -> None:
    refused = refusal(SparkConf(loadDefaults=False).setAll(list(changed.items())), plan)
    assert refused is None if why is None else why in str(refused)


def test_a_job_that_cannot_use_other_executors_is_told(tmp_path: Path) -> None:
    job = hr.Job("job")
    s = job.source("s", scripted([{"k": 1}]))
    work = s.map(dict, name="work")
    work.sink("out", hr.rows())
    conf = SparkConf(loadDefaults=False)
    rigid = plan_job(job, tmp_path / "a", Settings.of(executors=(1, 3)), collect=True)
    assert "only latency constraints in realtime mode" in str(refusal(conf, rigid))
    job.constrain(s >> work, mean="50 ms", over="5 s")
    rigid = plan_job(job, tmp_path / "b", Settings.of(executors=(1, 3)), collect=True)
    assert "no step is elastic" in str(refusal(conf, rigid))


def test_a_session_that_goes_on_gets_its_executors_back(plan: JobPlan) -> None:
    fleet = Numbers(3)
    run, _ = managed(fleet)
    run.begin(plan)
    run.give_back()
    assert fleet.requested[-1] == 3


def test_executor_seconds_count_what_is_there_and_not_released(plan: JobPlan) -> None:
    fleet = Numbers(3)
    run, _ = managed(fleet)
    run.begin(plan)  # one of three is let go
    for at_s in (0.0, 0.5, 2.0, 5.0):
        run.count(at_s, every_s=1.0)
    assert run.executor_s() == 2 * 5.0
    assert Executors(Journal()).executor_s() is None, "local mode has no executors"


@pytest.mark.parametrize("wrong", [3, (0, 2), (3, 2), (1, 2, 3), ("a", "b"), (1.0, 2.0)])
def test_limits_that_cannot_be(wrong: object) -> None:
    with pytest.raises(ConfigError, match=r"executors must be \(min, max\) such as \(1, 4\)"):
        Settings.of(executors=wrong)


def test_executors_that_come_later_are_given_subtasks_once_they_are_warm() -> None:
    fleet, journal, warm, threads = Numbers(1), Journal(), Event(), list[Thread]()

    def warming(slots: int) -> Thread:
        threads.append(Thread(target=warm.wait))
        threads[-1].start()
        return threads[-1]

    spread = Executors(journal, fleet, None, warming).should_spread
    assert not spread(0.0, 1, 4) and not spread(10.0, 1, 4), "the one there is has them all"
    fleet.come()
    assert not spread(11.0, 1, 4) and not threads, "more may follow"
    assert not spread(14.0, 1, 4) and not spread(15.0, 1, 4), "it is warming up"
    warm.set()
    threads[0].join()
    assert spread(16.0, 1, 4) and len(threads) == 1
    assert "1 of 2 executors have no subtask" in said(journal)
    assert not spread(20.0, 1, 4), "Spark had its choice"
    fleet.there.pop(0)
    fleet.come()
    assert not spread(21.0, 1, 4)
    assert spread(24.0, 1, 4) and not spread(25.0, 2, 4), "another set of executors"


def test_executors_beyond_the_jobs_subtasks_stay_without() -> None:
    fleet = Numbers(3)
    spread = Executors(Journal(), fleet).should_spread
    assert not spread(0.0, 2, 2) and not spread(10.0, 2, 2)
    assert not Executors(Journal()).should_spread(10.0, 1, 4), "there are none"
    observing = Executors(Journal(), fleet, observe_only=True).should_spread
    assert not observing(0.0, 1, 4) and not observing(10.0, 1, 4)
