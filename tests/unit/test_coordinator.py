"""The driver's side of an epoch: who may take part, what is audited and sealed, whose messages count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from workflows import out

import headrace as hr
from headrace.config import Settings
from headrace.driver.coordinator import Coordinator, Member, audit
from headrace.driver.failures import understand
from headrace.driver.planning import plan_job
from headrace.errors import CorruptionError, ProtocolError, StateError
from headrace.runtime.orders import Orders
from headrace.runtime.plan import Description
from headrace.state.durable.versions import Versions
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


def hello(stage: int, query: int = 1, epoch: int = 0, **more: Any) -> dict[str, Any]:
    return {"stage": stage, "index": 0, "query": query, "epoch": epoch, **more}


def finish(coordinator: Coordinator, *, epoch: int = 0, query: int = 1) -> None:
    """One epoch of both subtasks, up to its seal."""
    for stage, sender in enumerate((b"a", b"b")):
        coordinator.hello(sender, hello(stage, query=query, epoch=epoch))
    token = coordinator.token
    assert token is not None
    for stage, sender in enumerate((b"a", b"b")):
        coordinator.loaded(sender, {"stage": stage, "index": 0, "token": str(token)})
    for stage, sender in enumerate((b"a", b"b")):
        coordinator.described(sender, Description(stage, 0, token, (), {}, {}, (), {}, False).to_wire())


def test_an_epoch_runs_from_hello_to_seal(coordinator: Coordinator) -> None:
    assert coordinator.hello(b"b", hello(1)) == []
    replies = coordinator.hello(b"a", hello(0))
    token = str(coordinator.token)
    assert {(to, kind) for to, kind, _ in replies} == {(b"a", "plan"), (b"b", "plan")}
    assert all(body["token"] == token and body["base"] is None and body["group"] == 0 for _, _, body in replies)
    assert coordinator.loaded(b"b", {"stage": 1, "index": 0, "token": token}) == []
    assert [k for _, k, _ in coordinator.loaded(b"a", {"stage": 0, "index": 0, "token": token})] == ["go", "go"]
    wire = [Description(stage, 0, Token.parse(token), (), {}, {}, (), {}, True).to_wire() for stage in (0, 1)]
    assert coordinator.described(b"a", wire[0]) == []
    assert coordinator.described(b"b", wire[1]) == [(b"b", "sealed", {"token": token})]
    assert coordinator.versions.manifests_of(0) == [Token.parse(token)] and coordinator.sealed is not None
    assert coordinator.sealed.finished


def test_repeated_messages_seal_once(coordinator: Coordinator) -> None:
    sealed: list[Any] = []
    coordinator.on_sealed = lambda manifest, descriptions: sealed.append(manifest)
    finish(coordinator)
    again = Description(1, 0, coordinator.token, (), {}, {}, (), {}, False).to_wire()  # type: ignore[arg-type]
    assert [kind for _, kind, _ in coordinator.described(b"b", again)] == ["sealed"]
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
    old = Description(1, 0, first, (), {}, {}, (), {}, False).to_wire()
    for replies in (
        coordinator.hello(b"b", hello(1, query=1, epoch=0)),
        coordinator.hello(b"z", hello(0, query=0, epoch=7)),
        coordinator.loaded(b"b", {"stage": 1, "index": 0, "token": str(first)}),
        coordinator.described(b"b", old),
    ):
        assert [(kind, "why" in body) for _, kind, body in replies] == [("fenced", True)]
    assert before == (coordinator.token, coordinator.members, coordinator.sealed, coordinator.versions.manifests_of(0))
    coordinator.hello(b"a", hello(0, query=2, epoch=1))
    coordinator.hello(b"b", hello(1, query=2, epoch=1))
    members = dict(coordinator.members)
    assert [k for _, k, _ in coordinator.described(b"b", old)] == ["fenced"], "a token of an older attempt"
    stranger = Description(1, 0, coordinator.token, (), {}, {}, (), {}, False).to_wire()  # type: ignore[arg-type]
    assert [k for _, k, _ in coordinator.described(b"x", stranger)] == ["fenced"], "not who said HELLO"
    assert coordinator.members == members and all(m.description is None for m in members.values())


def test_a_worker_that_starts_again_begins_a_new_attempt(coordinator: Coordinator) -> None:
    coordinator.hello(b"a", hello(0))
    coordinator.hello(b"b", hello(1))
    first = coordinator.token
    coordinator.hello(b"c", hello(1))
    assert first is not None and coordinator.token == Token(first.generation, 0, first.attempt + 1)
    assert [k for _, k, _ in coordinator.loaded(b"b", {"stage": 1, "index": 0, "token": str(first)})] == ["fenced"]


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
    coordinator.orders = Orders(active={1: 2})
    assert coordinator.grows()
    coordinator.orders = Orders(active={0: 2})
    assert not coordinator.grows(), "a step without keys changes at once"


def test_subtasks_keep_the_slices_they_hold(tmp_path: Path) -> None:
    job = hr.Job("job")
    job.source("s", scripted(RECORDS)).key_by("k").reduce(name="r", n=hr.count()).sink("out", out())
    versions = Versions(tmp_path)
    plan = plan_job(job, tmp_path, Settings.of(parallelism=3), collect=True)
    coordinator = Coordinator(plan, versions, versions.open({"job": "job"}))
    coordinator.base = base = Token(1, 4, 0)
    held = {0: (str(base), 2, 3), 1: (str(Token(1, 3, 0)), 1, 3), 2: (str(base), 2, 3)}
    coordinator.members = {(1, i): Member(b"", inventory) for i, inventory in held.items()}
    assert coordinator._assign(1) == [1, 2, 0], "group 2 stays with who says so first; stale versions do not count"
    coordinator.orders = Orders(active={1: 2})
    assert coordinator._assign(1) == [0, 1], "slices are divided anew among fewer subtasks"
    versions.close()


def test_reports_tell_the_cause_from_its_consequences() -> None:
    secondary = {"kind": "ProtocolError", "detail": ["input ended"], "text": "", "stage": 2, "index": 0}
    lost = {"kind": "ChannelError", "detail": ["no plan"], "text": "", "stage": 1, "index": 0}
    user = {"kind": "UserCodeError", "detail": ["step", "record", "line", "cause"], "text": "", "stage": 1, "index": 3}
    other = {"kind": "Exception", "detail": ["boom"], "text": "ValueError: boom", "stage": 0, "index": 1}
    failure = understand([secondary, lost, other, user], RuntimeError("java"))
    assert failure.final and failure.error.step == "step" and isinstance(failure.error.__cause__, RuntimeError)  # type: ignore[attr-defined]
    failure = understand([secondary, other, lost], None)
    assert not failure.final and failure.summary == "ValueError: boom (stage 0, subtask 1)"
    assert understand([{**secondary, "kind": "CorruptionError"}], None).final
    assert not understand([secondary], None).final
    assert understand([], None).summary == "the query ended without saying why"
    spark = Exception("Job aborted\n  at x.y\njava.lang.OutOfMemoryError: heap\n\t... 3 more\nexecutor 2 lost\n")
    assert understand([], spark).summary == "java.lang.OutOfMemoryError: heap" and not understand([], spark).final
    assert understand([], Exception("[CONCURRENT_STREAM_LOG_UPDATE] Error")).final
    assert understand([], CorruptionError("block x")).final
