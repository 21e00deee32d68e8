"""Faults that simulated worlds have found in the driver, each as it shows without the world around it."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest
from durable import MemoryStorage, cut_entry, opened
from simulated.job import Shape, laid_out, planned

from headrace.channel.client import ChannelClient
from headrace.channel.server import ChannelServer
from headrace.driver.hands import Hands
from headrace.driver.protocol.events import (
    Appended,
    Collected,
    CollectGarbage,
    Compact,
    Event,
    Heard,
    Instruction,
    LogRead,
    LogUnreadable,
    NewestSeen,
    NumberedCut,
    Publish,
    Rewritten,
    Send,
    StopQuery,
)
from headrace.driver.protocol.machine import Machine
from headrace.driver.protocol.members import Members
from headrace.driver.protocol.publications import Publications
from headrace.driver.protocol.upkeep import Upkeep
from headrace.errors import ProtocolError
from headrace.runtime.messages import Fenced, Go, Hello, Loaded, Planned
from headrace.runtime.orders import NO_ORDERS, Orders
from headrace.runtime.ownership import owners
from headrace.runtime.plan import JobPlan
from headrace.state.copies.nearest import NOTHING_LOADED
from headrace.state.durable.garbage import garbage
from headrace.state.durable.manifest import Manifest, SliceVersion
from headrace.state.durable.segments import BlockRef, read_block
from headrace.state.durable.versionlog import VersionLog
from headrace.tokens import Attempt, Token


def plan(*subtasks: int) -> JobPlan:
    return laid_out(planned(len(subtasks), backup=0), Shape(subtasks, subtasks, 1, None))


def hello(stage: int, index: int = 0, batch: int = 0) -> Hello:
    return Hello(stage, index, 1, batch, None, "host", 1, 2, None, None)


def of_type(instructions: list[Instruction], kind: type[Any]) -> list[Any]:
    return [one for one in instructions if isinstance(one, kind)]


def told(instructions: list[Instruction], kind: type[Any]) -> list[bytes]:
    return [one.to for one in of_type(instructions, Send) if isinstance(one.message, kind)]


def opened_machine(job: JobPlan) -> Machine:
    """One whose query has started."""
    machine = Machine(job, opened)
    machine.start(0.0)
    for event in (LogRead(0, (), 0), Appended(1), NewestSeen(1)):
        machine.on(event, 0.0)
    assert machine.phase == "joining"
    return machine


# a driver that slept in the middle of its listing found that nothing was needed, and removed all of its generation
def test_garbage_is_not_collected_by_a_listing_that_is_out_of_date() -> None:
    class Forgetting(MemoryStorage):
        """Others go on with the log right after it was listed for the first time."""

        listed = False

        def names(self, prefix: str) -> list[str]:
            names = super().names(prefix)
            if prefix == "log" and not self.listed:
                self.listed = True
                for number, cut in ((5, 3), (6, 4)):
                    log.append(number, cut_entry(Token(4, 1, cut), Token(4, 1, cut - 1), slices=needed))
                for number in (1, 2, 3, 4):
                    self.delete(f"log/{number:010d}")
            return names

    needed = {
        ("n", 0): SliceVersion((1, 0), (BlockRef("segments/c0000000001-g000001-a0001-s00.seg", 0, 1, "", 1, False),))
    }
    storage = Forgetting()
    storage.listed = True
    log = VersionLog(storage)
    storage.put("segments/c0000000001-g000001-a0001-s00.seg", b"rows")
    log.append(1, opened(1))
    log.append(2, cut_entry(Token(1, 1, 1), None, slices=needed))
    log.append(3, cut_entry(Token(1, 1, 2), Token(1, 1, 1), slices=needed))
    log.append(4, opened(4))
    storage.listed = False
    assert garbage(storage, log, 1, Attempt(1, 1), 2) == []
    assert [number for number, _ in log.cuts()] == [5, 6]


# orders for a layout with more subtasks came before fewer executors did: an IndexError ended the driver
def test_a_stage_with_fewer_subtasks_than_were_ordered_has_as_many_groups_as_it_can() -> None:
    members = Members(plan(1, 2))
    orders = Orders(0, {}, {}, {1: 3}, None, None)
    members.gather(0)
    for place in ((0, 0), (1, 0), (1, 1)):
        members.join(f"{place}".encode(), hello(*place))
    members.plan_all(Attempt(1, 1), None, 0, orders)
    assert [owners(table) for table in members.tables] == [(0,), (0, 1)]


def test_nothing_is_published_before_the_log_is_opened() -> None:
    machine = Machine(plan(1, 1), opened)
    machine.start(0.0)
    cut = NumberedCut(2, Manifest(Token(1, 1, 1), None))
    assert not of_type(machine.on(LogRead(2, (cut,), 0), 0.0), Publish)
    assert not of_type(machine.on(Appended(3), 0.0), Publish)
    assert of_type(machine.on(NewestSeen(3), 0.0), Publish) == [Publish(cut)]


def test_a_driver_that_was_fenced_while_it_opened_publishes_nothing() -> None:
    machine = Machine(plan(1, 1), opened)
    machine.start(0.0)
    machine.on(LogRead(2, (NumberedCut(2, Manifest(Token(1, 1, 1), None)),), 0), 0.0)
    machine.on(Appended(3), 0.0)
    assert not of_type(machine.on(NewestSeen(4), 0.0), Publish)


# processes are used again: a late word of the attempt before fenced those who had begun the next one, again and again
def test_a_late_message_fences_nobody_who_takes_part() -> None:
    machine = opened_machine(plan(1, 1))
    late = Loaded(0, 0, Attempt(1, 0), NOTHING_LOADED)
    assert not told(machine.on(Heard(b"a", late), 0.0), Fenced), "its HELLO may be on its way"
    machine.on(Heard(b"a", hello(0)), 0.0)
    assert not told(machine.on(Heard(b"a", late), 0.0), Fenced)
    assert sorted(told(machine.on(Heard(b"b", hello(1)), 0.0), Planned)) == [b"a", b"b"]
    assert not told(machine.on(Heard(b"a", late), 0.0), Fenced)
    assert told(machine.on(Heard(b"c", late), 0.0), Fenced) == [b"c"], "who takes no part is told so"


def test_who_loaded_in_an_earlier_attempt_has_not_loaded_in_this_one() -> None:
    machine = opened_machine(plan(1, 1))
    for sender, stage in ((b"a", 0), (b"b", 1)):
        machine.on(Heard(sender, hello(stage)), 0.0)
    assert machine.attempt is not None
    machine.members.by_place[1, 0].loaded = True
    machine.members.plan_all(machine.attempt, None, 0, NO_ORDERS)
    assert not told(machine.on(Heard(b"a", Loaded(0, 0, machine.attempt, NOTHING_LOADED)), 0.0), Go)
    assert told(machine.on(Heard(b"b", Loaded(1, 0, machine.attempt, NOTHING_LOADED)), 0.0), Go) == [b"a", b"b"]


# others had their ticket already and waited for a GO that could not come, until their time was out
def test_who_begins_anew_while_others_load_ends_the_attempt() -> None:
    machine = opened_machine(plan(1, 1))
    for sender, stage in ((b"a", 0), (b"b", 1)):
        machine.on(Heard(sender, hello(stage)), 0.0)
    assert of_type(machine.on(Heard(b"c", hello(1)), 0.0), StopQuery)
    assert machine._failure is not None and isinstance(machine._failure.error, ProtocolError)


# a thread's result is looked at by nobody: without an answer no cut was ordered any more
def test_a_fault_that_nobody_thought_of_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Event] = []
    answered = threading.Event()

    def post(event: Event) -> None:
        heard.append(event)
        answered.set()

    def broken(*arguments: object) -> None:
        raise KeyError("slice")

    hands = Hands(plan(1, 1), MemoryStorage(), post)
    monkeypatch.setattr("headrace.driver.hands.garbage", broken)
    assert hands.do(CollectGarbage(1, None, 0, frozenset(), 0))
    assert answered.wait(10)
    hands.close()
    assert isinstance(heard[0], LogUnreadable) and heard[0].error is not None


# what a restart mends is no corruption, which ends a run for good
def test_a_disk_that_does_not_answer_for_a_moment_has_not_lost_a_block() -> None:
    class Away(MemoryStorage):
        def get_range(self, name: str, offset: int, length: int) -> bytes:
            raise TimeoutError("the server does not answer")

    with pytest.raises(TimeoutError):
        read_block(Away(), BlockRef("segments/x.seg", 0, 1, "", 1, False), "step", 0)


# garbage came first where it was due, and with cuts far apart it always was: chains of blocks grew without end
def test_chains_are_merged_also_where_cuts_are_far_apart() -> None:
    blocks = tuple(BlockRef(f"segments/{n}.seg", 0, 100, "", 1, False) for n in range(20))
    long = Manifest(Token(1, 1, 20), Token(1, 1, 19), {("n", 0): SliceVersion((1, 0), blocks)})
    upkeep, asked = Upkeep(), []
    for turn in range(6):
        (one,) = upkeep.after(NumberedCut(20, long), Attempt(1, 1), Publications(), 60.0 * turn)
        upkeep.on(Rewritten(()) if isinstance(one, Compact) else Collected(), 60.0 * turn)
        asked.append(type(one))
    assert asked.count(Compact) == asked.count(CollectGarbage) == 3


# a process that Spark uses again found there what its task before was told, and gave up; so did the next one, and the next
def test_a_task_is_not_fenced_by_what_the_one_before_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    senders: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def on_message(sender: bytes, message: Any) -> list[Any]:
        senders.put(sender)
        return []

    server = ChannelServer("127.0.0.1", on_message)
    client = ChannelClient(server.address)
    try:
        client.tell(hello(0))
        sender = senders.get(timeout=10)
        read, receive = [], client._receive
        monkeypatch.setattr(client, "_receive", lambda: read.append(receive()))
        server.send(sender, Fenced(0, "this worker belongs to a query that was replaced"))
        while not any(isinstance(message, Fenced) for message in read):  # there are pings too
            client.begin(1)
        monkeypatch.undo()
        server.send(sender, Go(Attempt(1, 1)))
        assert client.wait(Go, 10).attempt == Attempt(1, 1)
    finally:
        client.close()
        server.close()
