"""What the machine asks of the checkpoint and of sinks: each failure comes back as an event, and in order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from driven import counting, opened
from durable import CutWriter, MemoryStorage, cut_entry

from headrace.driver import hands as room
from headrace.driver.hands import Deeds, Hands
from headrace.driver.protocol.events import (
    Append,
    Appended,
    AppendFailed,
    Collected,
    CollectGarbage,
    Compact,
    Discard,
    EntryRead,
    Event,
    Instruction,
    LogRead,
    LogUnreadable,
    LookUp,
    NewestSeen,
    NumberedCut,
    Publish,
    Published,
    PublishFailed,
    ReadEntry,
    ReadLog,
    Rewritten,
)
from headrace.errors import CorruptionError, RunFailedError
from headrace.state.durable.manifest import Manifest
from headrace.state.durable.published import read_published, write_published
from headrace.state.durable.storage import Data
from headrace.state.durable.versionlog import VersionLog
from headrace.tokens import Attempt, Token

FULL = OSError(28, "No space left on device")
CUT = NumberedCut(2, Manifest(Token(1, 1, 1), None))


class Broken(MemoryStorage):
    """Whatever is asked of it fails, before it is done or afterwards."""

    def __init__(self, *, afterwards: bool = False) -> None:
        super().__init__()
        self.afterwards = afterwards

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if self.afterwards:
            super().put_if_absent(name, data)
        raise FULL

    def put(self, name: str, data: Data) -> None:
        raise FULL

    def get(self, name: str) -> bytes:
        raise FULL

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        raise FULL

    def names(self, prefix: str) -> list[str]:
        raise FULL

    def delete(self, name: str) -> None:
        raise FULL


def publishing(monkeypatch: pytest.MonkeyPatch, publish: Callable[..., None]) -> None:
    monkeypatch.setattr(room, "publish", publish)


def test_the_log_is_read_appended_to_and_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    publishing(monkeypatch, lambda plan, manifest: None)
    deeds = Deeds(counting(), MemoryStorage())
    assert deeds.perform(ReadLog()) == LogRead(0, (), 0) and deeds.perform(LookUp()) == NewestSeen(0)
    assert deeds.perform(Append(1, opened(1))) == Appended(1)
    assert isinstance(deeds.perform(Append(1, opened(1, pid=2))), AppendFailed)
    assert deeds.perform(ReadEntry(1)) == EntryRead(1, opened(1)) and deeds.perform(ReadEntry(2)) == EntryRead(2, None)
    entry = cut_entry(CUT.manifest.token)
    assert deeds.perform(Append(2, entry)) == Appended(2)
    assert deeds.perform(Publish(CUT)) == Published(2)
    assert deeds.perform(ReadLog()) == LogRead(2, (CUT,), 2), "what is published is known durably"


# every failed write is an event: an OSError while logging was swallowed
@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (Append(1, opened(1)), AppendFailed(1, str(FULL))),
        (ReadLog(), LogUnreadable(str(FULL))),
        (LookUp(), LogUnreadable(str(FULL))),
        (ReadEntry(1), LogUnreadable(str(FULL))),
        (CollectGarbage(1, None, 0, frozenset(), 0), Collected((), str(FULL))),
    ],
)
def test_a_disk_that_fails_is_told(asked: Instruction, answer: Event) -> None:
    assert Deeds(counting(), Broken()).perform(asked) == answer


def test_an_entry_whose_answer_was_lost_is_found_by_reading() -> None:
    storage = Broken(afterwards=True)
    assert isinstance(Deeds(counting(), storage).perform(Append(1, opened(1))), AppendFailed)
    healed = MemoryStorage()
    healed.objects = storage.objects
    assert Deeds(counting(), healed).perform(ReadEntry(1)) == EntryRead(1, opened(1))


@pytest.mark.parametrize("asked", [ReadLog(), ReadEntry(1)])
def test_a_damaged_log_is_no_passing_trouble(asked: Instruction) -> None:
    storage = MemoryStorage()
    VersionLog(storage).append(1, opened(1))
    storage.objects["log/0000000001"] += b"x"
    told = Deeds(counting(), storage).perform(asked)
    assert isinstance(told, LogUnreadable) and isinstance(told.error, CorruptionError)


# chronostream fact 34: who went on from the cut before would publish its rows a second time
def test_a_published_cut_that_is_gone_from_the_log_is_named() -> None:
    storage = MemoryStorage()
    for number, entry in (
        (1, opened(1)),
        (2, cut_entry(Token(1, 1, 1))),
        (3, cut_entry(Token(1, 1, 2), Token(1, 1, 1))),
    ):
        assert VersionLog(storage).append(number, entry)
    write_published(storage, 3)
    assert isinstance(Deeds(counting(), storage).perform(ReadLog()), LogRead)
    storage.delete("log/0000000003")
    told = Deeds(counting(), storage).perform(ReadLog())
    assert isinstance(told, LogUnreadable) and isinstance(told.error, CorruptionError)
    assert told.why == "entry 3 of the version log is missing, although its results are published"


# a publish that failed once lost the output for ever
@pytest.mark.parametrize(
    ("error", "final"), [(FULL, False), (KeyError("anybody's code"), False), (CorruptionError("staged file x"), True)]
)
def test_a_sink_that_fails_is_told_and_nothing_counts_as_published(
    error: Exception, final: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(plan: Any, manifest: Manifest) -> None:
        raise error

    storage = MemoryStorage()
    publishing(monkeypatch, fails)
    told = Deeds(counting(), storage).perform(Publish(CUT))
    assert isinstance(told, PublishFailed) and told.final == final and str(error) in str(told.error)
    assert read_published(storage) == 0


def test_what_is_visible_but_not_known_to_be_is_published_again(monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[Manifest] = []
    publishing(monkeypatch, lambda plan, manifest: published.append(manifest))
    assert isinstance(Deeds(counting(), Broken()).perform(Publish(CUT)), PublishFailed)
    assert Deeds(counting(), MemoryStorage()).perform(Publish(CUT)) == Published(2) and len(published) == 2


def test_rewriting_that_fails_leaves_no_rewrite() -> None:
    writer = CutWriter(MemoryStorage())
    for n in range(20):
        made = writer.cut({0: {0: n}})
    deeds = Deeds(counting(), writer.storage)
    first, second = deeds.perform(Compact(made, Attempt(1, 1))), deeds.perform(Compact(made, Attempt(1, 1)))
    assert isinstance(first, Rewritten) and isinstance(second, Rewritten) and first.trouble is None
    assert first.rewrites[0].block.file != second.rewrites[0].block.file, "no name is used twice"
    failed = Deeds(counting(), Broken()).perform(Compact(made, Attempt(1, 1)))
    assert isinstance(failed, Rewritten) and failed.rewrites == () and failed.trouble == str(FULL)


@pytest.mark.parametrize("error", [FULL, KeyError("anybody's code")])
@pytest.mark.parametrize("what", ["discard_unlogged", "settle"])
def test_what_sinks_cannot_tidy_is_told_and_keeps_nothing_else_from_it(
    what: str, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []

    def tidies(name: str) -> Callable[..., None]:
        def tidy(*_: Any) -> None:
            done.append(name)
            if name == what:
                raise error

        return tidy

    for name in ("discard_unlogged", "settle"):
        monkeypatch.setattr(room, name, tidies(name))
    assert Deeds(counting(), MemoryStorage()).perform(Discard(Attempt(1, 1), frozenset())) is None
    assert done == ["discard_unlogged", "settle"] and str(error) in caplog.text


def test_a_sink_that_hangs_delays_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, told = threading.Event(), threading.Event()
    events: list[Event] = []

    def post(event: Event) -> None:
        events.append(event)
        told.set()

    def hangs(plan: Any, manifest: Manifest) -> None:
        assert go_on.wait(20)

    publishing(monkeypatch, hangs)
    hands = Hands(counting(), MemoryStorage(), post)
    try:
        assert hands.do(Publish(CUT)) and hands.do(LookUp()) and not hands.do(object())  # type: ignore[arg-type]
        assert told.wait(20) and events == [NewestSeen(0)]
    finally:
        go_on.set()
        hands.close()
    assert events == [NewestSeen(0), Published(2)], "what was asked for is done before the hands are gone"


def test_a_translated_error_names_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(plan: Any, manifest: Manifest) -> None:
        raise KeyError("column")

    publishing(monkeypatch, fails)
    told = Deeds(counting(), MemoryStorage()).perform(Publish(CUT))
    assert isinstance(told, PublishFailed) and isinstance(told.error, RunFailedError)
    assert str(told.error) == "KeyError: 'column'"
