"""The driver's side of an epoch: who may take part, what is audited and sealed, whose messages count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headrace.driver.coordinator import Coordinator, Member, audit
from headrace.state.durable.versions import Versions
from msgspec import structs
from workflows import out

import headrace as hr
from headrace.config import Settings
from headrace.driver.failures import understand
from headrace.driver.planning import plan_job
from headrace.errors import ChannelError, CorruptionError, ProtocolError, RunFailedError, StateError, UserCodeError
from headrace.runtime.messages import (
    Described,
    Failed,
    Fenced,
    Go,
    Hello,
    Inventory,
    Loaded,
    Planned,
    Reply,
    Sealed,
)
from headrace.runtime.orders import NO_ORDERS
from headrace.runtime.plan import Description, Ticket
from headrace.testing import scripted
from headrace.tokens import Token

RECORDS: list[dict[str, Any]] = [{"k": "abc"[i % 3], "v": i} for i in range(20)]


def description(
    index: int, sent: dict[int, dict[int, list[int]]], consumed: dict[int, dict[int, list[int]]], stage: int = 0
) -> Description:
    return Description(stage, index, Token(1, 0, 0), (), sent, consumed, (), {}, True)


# chronostream fact 20: sent = consumed per sender, edge and slice before each manifest
def test_the_audit_finds_every_difference() -> None:
    good = [
        description(0, {7: {0: [2, 0, 1]}}, {}), description(1, {7: {1: [0, 5, 0]}}, {}),
        description(0, {}, {7: {0: [2, 0, 0], 1: [0, 0, 0]}}, 1), description(1, {}, {7: {0: [0, 0, 1], 1: [0, 5, 0]}}, 1),
    ]  # fmt: skip
    audit(good)
    audit([])
    with pytest.raises(ProtocolError, match="edge 7, sender 1: 5 items sent, 5 not consumed"):
        audit(good[1:3])
    with pytest.raises(ProtocolError, match="edge 7, sender 0: 3 items sent, 1 not consumed"):
        audit([*good[:2], good[2], description(1, {}, {7: {0: [0, 0, 0], 1: [0, 5, 0]}}, 1)])
    with pytest.raises(ProtocolError, match="edge 7, sender 1: 5 items sent, consumed in other slices"):
        audit([*good[:3], description(1, {}, {7: {0: [0, 0, 1], 1: [0, 4, 1]}}, 1)])
    with pytest.raises(ProtocolError, match="edge 7: items of sender 1 were consumed that it did not send"):
        audit([good[0], *good[2:]])


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    job = hr.Job("job")
    job.source("s", scripted(RECORDS)).key_by("k").reduce(name="r", n=hr.count()).sink("out", out())
    plan = plan_job(job, tmp_path, Settings.of(parallelism=1), collect=True)
    versions = Versions(tmp_path)
    made = Coordinator(plan, versions, versions.open({"job": "job"}))
    made.new_query()
    yield made
    versions.close()


def hello(stage: int, query: int = 1, epoch: int = 0, index: int = 0) -> Hello:
    return Hello(stage, index, query, epoch, inventory=None, host="here", daemon=1, pid=2)


def described(stage: int, token: Token | None, *, exhausted: bool = False) -> Described:
    assert token is not None
    return Described(Description(stage, 0, token, (), {}, {}, (), {}, exhausted))


def kinds(replies: list[Reply]) -> list[type]:
    return [type(message) for _, message in replies]


def finish(coordinator: Coordinator, *, epoch: int = 0, query: int = 1) -> None:
    """One epoch of both subtasks, up to its seal."""
    for stage, sender in enumerate((b"a", b"b")):
        coordinator.hello(sender, hello(stage, query=query, epoch=epoch))
    token = coordinator.token
    assert token is not None
    for stage, sender in enumerate((b"a", b"b")):
        coordinator.loaded(sender, Loaded(stage, 0, token))
    for stage, sender in enumerate((b"a", b"b")):
        coordinator.described(sender, described(stage, token))


def test_an_epoch_runs_from_hello_to_seal(coordinator: Coordinator) -> None:
    assert coordinator.hello(b"b", hello(1)) == []
    replies = coordinator.hello(b"a", hello(0))
    token = coordinator.token
    assert token is not None
    ticket = Ticket(token, None, 0, 1, (), NO_ORDERS)
    assert dict(replies) == {b"a": Planned(structs.replace(ticket, places=(0,))), b"b": Planned(ticket)}
    assert coordinator.loaded(b"b", Loaded(1, 0, token)) == []
    assert sorted(coordinator.loaded(b"a", Loaded(0, 0, token))) == [(b"a", Go(token)), (b"b", Go(token))]
    assert coordinator.described(b"a", described(0, token, exhausted=True)) == []
    assert coordinator.described(b"b", described(1, token, exhausted=True)) == [(b"b", Sealed(token))]
    assert coordinator.versions.manifests_of(0) == [token] and coordinator.sealed is not None
    assert coordinator.sealed.finished


def test_repeated_messages_seal_once(coordinator: Coordinator) -> None:
    sealed: list[Any] = []
    coordinator.on_sealed = lambda manifest, descriptions: sealed.append(manifest)
    finish(coordinator)
    assert kinds(coordinator.described(b"b", described(1, coordinator.token))) == [Sealed]
    assert len(sealed) == 1


# chronostream §6(e): a restart with other subtasks waits for the border, and no epoch begins there that it would cut short
def test_no_epoch_begins_while_the_query_is_about_to_be_replaced(coordinator: Coordinator) -> None:
    coordinator.hello(b"a", hello(0))
    coordinator.holding = True
    assert coordinator.hello(b"b", hello(1)), "the epoch that has begun goes on"
    coordinator.new_query()
    assert not coordinator.holding
    finish(coordinator, query=2)
    sealed, attempts = coordinator.token, dict(coordinator.attempts)
    coordinator.holding = True
    assert coordinator.at_border and not coordinator.held
    assert (
        coordinator.hello(b"a", hello(0, query=2, epoch=1)) == coordinator.hello(b"b", hello(1, query=2, epoch=1)) == []
    )
    assert coordinator.held and coordinator.token == sealed and coordinator.attempts == attempts
    assert sealed is not None
    coordinator.versions.pick(0, sealed)
    coordinator.new_query()
    finish(coordinator, epoch=1, query=3)
    assert coordinator.base == sealed


# chronostream fact 33: zombie messages change nothing
def test_zombies_are_fenced(coordinator: Coordinator) -> None:
    finish(coordinator)
    first = coordinator.token
    assert first is not None
    coordinator.versions.pick(0, first)
    coordinator.new_query()
    before = (coordinator.token, dict(coordinator.members), coordinator.sealed, coordinator.versions.manifests_of(0))
    old = described(1, first)
    for replies in (
        coordinator.hello(b"b", hello(1, query=1, epoch=0)),
        coordinator.hello(b"z", hello(0, query=0, epoch=7)),
        coordinator.loaded(b"b", Loaded(1, 0, first)),
        coordinator.described(b"b", old),
    ):
        ((_, reply),) = replies
        assert isinstance(reply, Fenced) and reply.why
    assert before == (coordinator.token, coordinator.members, coordinator.sealed, coordinator.versions.manifests_of(0))
    coordinator.hello(b"a", hello(0, query=2, epoch=1))
    coordinator.hello(b"b", hello(1, query=2, epoch=1))
    members = dict(coordinator.members)
    assert kinds(coordinator.described(b"b", old)) == [Fenced], "a token of an older attempt"
    stranger = described(1, coordinator.token)
    assert kinds(coordinator.described(b"x", stranger)) == [Fenced], "not who said HELLO"
    assert coordinator.members == members and all(m.description is None for m in members.values())


def test_a_worker_that_starts_again_begins_a_new_attempt(coordinator: Coordinator) -> None:
    coordinator.hello(b"a", hello(0))
    coordinator.hello(b"b", hello(1))
    first = coordinator.token
    coordinator.hello(b"c", hello(1))
    assert first is not None and coordinator.token == Token(first.generation, 0, first.attempt + 1)
    assert kinds(coordinator.loaded(b"b", Loaded(1, 0, first))) == [Fenced]


@pytest.mark.parametrize(("stage", "index"), [(2, 0), (0, 1), (-1, 0), (0, -1)])
def test_a_subtask_that_the_job_does_not_have_takes_no_part(coordinator: Coordinator, stage: int, index: int) -> None:
    coordinator.hello(b"a", hello(0))
    before = (coordinator.token, dict(coordinator.members), dict(coordinator.attempts))
    ((to, reply),) = coordinator.hello(b"x", hello(stage, index=index))
    assert to == b"x" and reply == Fenced(f"the job has no subtask {index} of stage {stage}")
    assert before == (coordinator.token, coordinator.members, coordinator.attempts)
    assert kinds(coordinator.hello(b"b", hello(1))) == [Planned, Planned], "the attempt goes on"


def test_only_the_epoch_before_is_a_base(coordinator: Coordinator) -> None:
    """It may be sealed and not picked yet: Spark's commit of it is then still being written."""
    finish(coordinator)
    sealed = coordinator.token
    with pytest.raises(StateError, match="has no state of epoch 1; it is incomplete"):
        coordinator.start(2)
    coordinator.start(1)
    assert sealed is not None and coordinator.base == sealed


def test_an_epoch_is_cut_short_only_for_a_keyed_step_that_gets_more_subtasks(coordinator: Coordinator) -> None:
    finish(coordinator)
    assert coordinator.owners == [[0], [0]] and not coordinator.grows()
    coordinator.orders = structs.replace(NO_ORDERS, active={1: 2})
    assert coordinator.grows()
    coordinator.orders = structs.replace(NO_ORDERS, active={0: 2})
    assert not coordinator.grows(), "a step without keys changes at once"


def test_subtasks_keep_the_slices_they_hold(tmp_path: Path) -> None:
    job = hr.Job("job")
    job.source("s", scripted(RECORDS)).key_by("k").reduce(name="r", n=hr.count()).sink("out", out())
    versions = Versions(tmp_path)
    plan = plan_job(job, tmp_path, Settings.of(parallelism=3), collect=True)
    coordinator = Coordinator(plan, versions, versions.open({"job": "job"}))
    coordinator.base = base = Token(1, 4, 0)
    held = {0: (base, 2, 3), 1: (Token(1, 3, 0), 1, 3), 2: (base, 2, 3)}
    coordinator.members = {(1, i): Member(b"", Inventory(*inventory)) for i, inventory in held.items()}
    assert coordinator._assign(1) == [1, 2, 0], "group 2 stays with who says so first; stale versions do not count"
    coordinator.members[1, 0] = Member(b"", Inventory(base, 3, 3))
    assert coordinator._assign(1) == [0, 1, 2], "a group that there is not is nobody's"
    coordinator.orders = structs.replace(NO_ORDERS, active={1: 2})
    assert coordinator._assign(1) == [0, 1], "slices are divided anew among fewer subtasks"
    versions.close()


def test_reports_tell_the_cause_from_its_consequences() -> None:
    secondary = Failed.of(ProtocolError("input ended"), 1, (2, 0))
    lost = Failed.of(ChannelError("no plan"), 1, (1, 0))
    user = Failed.of(UserCodeError("step", "record", "line", "cause"), 1, (1, 3))
    other = Failed.of(ValueError("boom"), 1, (0, 1))
    failure = understand([secondary, lost, other, user], RuntimeError("java"))
    assert failure.final and failure.error.step == "step" and isinstance(failure.error.__cause__, RuntimeError)  # type: ignore[attr-defined]
    failure = understand([secondary, other, lost], None)
    assert not failure.final and failure.summary == "ValueError: boom (stage 0, subtask 1)"
    assert understand([Failed.of(CorruptionError("input ended"), 1, (2, 0))], None).final
    assert not understand([secondary], None).final
    assert understand([secondary], None).summary == "input ended (stage 2, subtask 0)"
    assert isinstance(understand([secondary], None).error, ProtocolError)
    own = understand([Failed.of(ProtocolError("5 not consumed"), 1, None)], None)
    assert own.summary == "5 not consumed", "what the driver found itself has no place"
    assert understand([], None).summary == "the query ended without saying why"
    spark = Exception("Job aborted\n  at x.y\njava.lang.OutOfMemoryError: heap\n\t... 3 more\nexecutor 2 lost\n")
    assert understand([], spark).summary == "java.lang.OutOfMemoryError: heap" and not understand([], spark).final
    assert understand([], Exception("[CONCURRENT_STREAM_LOG_UPDATE] Error")).final
    assert understand([], CorruptionError("block x")).final


@pytest.mark.parametrize("error", ["annotations", "Exception", "UserCodeError", "no such", ""])
def test_a_failure_of_no_known_class_is_still_told(error: str) -> None:
    failure = understand([Failed(1, (0, 1), error, "boom", None)], None)
    assert type(failure.error) is RunFailedError and failure.summary == "boom (stage 0, subtask 1)"
