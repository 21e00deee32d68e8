"""A subtask's part of a cut: durable before it is described, and nobody who works on records waits for that."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from onesubtask import ATTEMPT, KEYS, Working, both, counting, totals

from headrace.runtime.cutmaking import handover
from headrace.runtime.messages import Described, Logged, Reported
from headrace.state.durable.storage import LocalStorage
from headrace.tokens import Attempt


# cuts.md rule 6: described when durable, not before; and records do not wait for that
def test_a_cut_is_described_when_it_is_durable_and_work_goes_on_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = counting(tmp_path)
    one, other = both(plan)
    may_write, put = threading.Event(), LocalStorage.put

    def slow(self: LocalStorage, name: str, data: bytes) -> None:
        assert may_write.wait(20)
        put(self, name, data)

    monkeypatch.setattr(LocalStorage, "put", slow)
    with Working(plan, 1) as working:
        working.take([*one.send(KEYS)[0], *one.mark(1), *other.mark(1)])
        working.aligned(1)
        working.take(one.send(KEYS)[0])
        counted = working.subtask._operators["count"].meter
        working.until(lambda: counted.items_in > 0, "work goes on while the disk is slow")
        working.a_while()
        assert not working.driver.heard(Described), "nothing is durable yet"
        may_write.set()
        first = working.description(1)
        working.take([*one.mark(2), *other.mark(2)])
        second = working.description(2)
    # chronostream fact 5: updates during a checkpoint are readable at once, absent from that chunk
    assert set(totals(plan, first).values()) == {1} and set(totals(plan, first, second).values()) == {2}
    assert first.written_bytes == sum(change.block.length for change in first.changes) > 0 < first.worked_ms


def test_a_description_is_told_as_soon_as_it_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.runtime.subtask._IDLE_WAIT_US", 10**9)
    plan = counting(tmp_path)
    one, other = both(plan)
    with Working(plan, 1) as working:
        working.take([*one.mark(1), *other.mark(1)])
        working.description(1)  # the writer wakes the loop: it would sleep for long otherwise


# cuts.md messages: DESC is repeated until it is answered
def test_a_description_is_told_again_until_it_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "_REPEAT_US", 30_000)
    plan = counting(tmp_path)
    one, other = both(plan)
    with Working(plan, 1) as working:
        working.take([*one.mark(1), *other.mark(1)])
        working.description(1, logged=False)
        working.driver.give(Logged(Attempt(3, 1).cut(1)))
        working.until(lambda: len(working.driver.heard(Described)) > 2)
        working.driver.give(Logged(ATTEMPT.cut(1)))
        working.until(lambda: working.subtask._cuts.handover.settled)
        told = working.driver.heard(Described)
    assert all(message == told[0] for message in told)


# a write that fails is noticed at once
@pytest.mark.parametrize("during", ["interval", "cut", "sink"])
def test_what_cannot_be_written_stops_the_subtask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, during: str) -> None:
    plan = counting(tmp_path, chunk="1 ms" if during == "interval" else "1 hour")
    one, other = both(plan)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if during != "sink":
        monkeypatch.setattr(LocalStorage, "put", full)
    with Working(plan, 1) as working:
        if during == "sink":
            monkeypatch.setattr(working.subtask._cuts._sinks[0], "hand_over", lambda: full)
        working.take(one.send(KEYS)[0])
        if during != "interval":
            working.take([*one.mark(1), *other.mark(1)])
        error = working.fails()
    assert isinstance(error, OSError) and error.errno == 28
    assert not working.driver.heard(Described)


def test_chunks_of_an_interval_and_of_its_cut_are_one_description(tmp_path: Path) -> None:
    plan = counting(tmp_path, chunk="1 ms")
    one, other = both(plan)
    with Working(plan, 1) as working:
        for _ in range(3):
            written = len(list(tmp_path.rglob("*.seg")))
            working.take(one.send(KEYS)[0])
            working.until(lambda before=written: len(list(tmp_path.rglob("*.seg"))) > before)
        working.take([*one.mark(1), *other.mark(1)])
        first = working.description(1)
    files = {change.block.file for change in first.changes}
    assert len(files) >= 3 and set(totals(plan, first).values()) == {3}
    stem = f"segments/{ATTEMPT.cut(1)}-s01-0000-"
    assert all(name.startswith(stem) for name in files)


# sinks: the rows between two cuts have a writer, and a directory, of their own
def test_every_cut_has_its_own_staged_files(tmp_path: Path) -> None:
    plan = counting(tmp_path)
    one, other = both(plan)
    with Working(plan, 1) as working:
        for number in (1, 2, 3):
            sent = one.send(KEYS)[0] if number != 2 else []
            working.take([*sent, *one.mark(number), *other.mark(number)])
            working.description(number)
        staged = [working.description(number).staged for number in (1, 2, 3)]
    assert staged[1] == (), "no rows, no file"
    for number, (piece,) in ((1, staged[0]), (3, staged[2])):
        assert piece.step == "out" and str(ATTEMPT.cut(number)) in piece.path and Path(piece.path).exists()
        assert piece.rows == staged[0][0].rows > 0


def test_what_is_counted_for_cuts_and_what_is_reported_are_the_same_records(tmp_path: Path) -> None:
    plan = counting(tmp_path, report="1 ms")
    one, other = both(plan)
    with Working(plan, 1) as working:
        for number in range(1, 6):
            working.take([*one.send(KEYS)[0], *other.send(KEYS)[0], *one.mark(number), *other.mark(number)])
            working.description(number)
        working.a_while()
        working.take([*one.mark(6, end=True), *other.mark(6, end=True)])
        working.description(6)
        working.until(lambda: working.subtask._cuts.handover.settled)
        working.ends()
    told = {message.token: message.description for message in working.driver.heard(Described)}
    cuts = sum(description.counters["in:count"] for description in told.values())
    reports = [flow.items_in for m in working.driver.heard(Reported) for flow in m.flows if flow.step == "count"]
    assert cuts == sum(reports) > 0 and len(reports) > 3
