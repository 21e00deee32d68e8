"""When the driver has long chains written anew and garbage removed, and what it spares."""

from __future__ import annotations

from typing import Any

import pytest
from driven import Driven, opened, ordered, sender

from headrace.driver.protocol import upkeep
from headrace.driver.protocol.events import (
    Append,
    Appended,
    Collected,
    CollectGarbage,
    Compact,
    Publish,
    QueryEnded,
    Remove,
    Rewritten,
    Say,
)
from headrace.state.durable.manifest import Manifest, Rewrite, SliceVersion
from headrace.state.durable.segments import BlockRef
from headrace.state.durable.versionlog import CutEntry, Entry
from headrace.tokens import Attempt, Token

OLD = tuple(BlockRef(f"segments/old-{n}", 0, 10, "", 1, full=n == 0) for n in range(3))
NEW = BlockRef("segments/new", 0, 10, "", 1, full=True)
KEY = ("n", 0)


def log_with_chain() -> dict[int, Entry]:
    return {1: opened(1, pid=9), 2: CutEntry(Manifest(Token(1, 1, 1), None, {KEY: SliceVersion((0, 0), OLD)}))}


def newest(driven: Driven) -> Manifest:
    entry = driven.log[max(driven.log)]
    assert isinstance(entry, CutEntry)
    return entry.manifest


def finish_append(driven: Driven) -> None:
    append = driven.all(Append)[-1]
    driven.held.discard(Append)
    driven.log[append.number] = append.entry
    driven.tell(Appended(append.number))


def compacting(monkeypatch: pytest.MonkeyPatch) -> Driven:
    """Its second cut has been made, and the slice's chain is being written anew."""
    driven = Driven(log=log_with_chain(), published=2, held=[Compact]).run()
    monkeypatch.setattr(upkeep, "needs_compaction", lambda manifest: not driven.all(Compact))
    driven.cut()
    driven.cut()
    return driven


# cuts.md rule 23: right after a cut was logged and before the next order
def test_garbage_is_collected_after_a_cut_and_before_the_next_order() -> None:
    driven = Driven().run()
    driven.held.add(CollectGarbage)
    driven.cut()
    assert driven.all(CollectGarbage) == [CollectGarbage(1, Attempt(1, 1), 1, frozenset(), 2)]
    assert ordered(driven.later(5.0)) == {}, "nothing is ordered meanwhile"
    assert ordered(driven.tell(Collected())) == {sender((0, 0)): (Token(1, 1, 2), False)}
    driven.describe_all()
    assert len(driven.all(CollectGarbage)) == 1, "not after every cut"
    driven.later(11.0)
    driven.cut()
    assert len(driven.all(CollectGarbage)) == 2


def test_entries_of_cuts_that_are_not_published_yet_stay_in_the_log() -> None:
    driven = Driven(held=[Publish]).run()
    driven.cut()
    driven.later(11.0)
    driven.cut()
    assert [collect.forget_before for collect in driven.all(CollectGarbage)] == [2, 2]


# clean-up deleted a rewrite that the next manifest names
@pytest.mark.parametrize("dies", [False, True])
def test_a_rewrite_is_spared_until_a_manifest_names_it(monkeypatch: pytest.MonkeyPatch, dies: bool) -> None:
    driven = compacting(monkeypatch)
    assert [compact.manifest.slices[KEY].blocks for compact in driven.all(Compact)] == [OLD]
    driven.later(11.0)
    driven.describe_all()
    assert len(driven.all(CollectGarbage)) == 1, "nothing is collected while chains are being rewritten"
    driven.later(1.1)
    driven.held.add(Append)
    driven.describe_all()
    driven.tell(Rewritten((Rewrite(*KEY, OLD, NEW),)))
    assert len(driven.all(CollectGarbage)) == 1
    finish_append(driven)
    assert NEW.file not in newest(driven).files, "it came too late for that one"
    assert [collect.spare for collect in driven.all(CollectGarbage)] == [frozenset(), frozenset({NEW.file})]
    if dies:
        driven.tell(QueryEnded(1, RuntimeError("boom")))
        driven.later(0.2)
        driven.run()
    driven.cut()
    assert newest(driven).slices[KEY].blocks == (NEW,) and driven.machine.upkeep.rewrites == ()


def test_a_rewrite_of_what_is_gone_by_then_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    driven = compacting(monkeypatch)
    driven.tell(Rewritten((Rewrite(*KEY, (OLD[0], OLD[2]), NEW),)))
    driven.cut()
    assert newest(driven).slices[KEY].blocks == OLD


# a job with very many slices has always some whose chain is long
def test_garbage_is_collected_where_there_is_always_something_to_compact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "needs_compaction", lambda manifest: True)
    driven = Driven().run()
    for _ in range(30):
        driven.cut()
    assert len(driven.all(CollectGarbage)) == 3 and len(driven.all(Compact)) == 27


@pytest.mark.parametrize("event", [Rewritten((), "the disk is full"), Collected((), "the disk is full")])
def test_upkeep_that_fails_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch, event: Any) -> None:
    kind = Compact if isinstance(event, Rewritten) else CollectGarbage
    monkeypatch.setattr(upkeep, "needs_compaction", lambda manifest: kind is Compact)
    driven = Driven(held=[kind]).run()
    while not driven.all(kind):
        driven.cut()
    assert Say("upkeep", "the checkpoint could not be tidied: the disk is full") in driven.tell(event)
    driven.later(1.1)
    driven.describe_all()
    assert len(driven.all(kind)) == 1, "not at once"
    began_s = driven.now_s
    while len(driven.all(kind)) < 2:
        driven.cut()
    assert 8.0 < driven.now_s - began_s < 12.0


def test_an_answer_that_nobody_asked_for_is_no_rewrite() -> None:
    driven = Driven().run()
    driven.tell(Rewritten((Rewrite(*KEY, OLD, NEW),)))
    assert driven.machine.upkeep.rewrites == ()


def test_cuts_do_not_wait_until_garbage_is_removed() -> None:
    driven = Driven(held=[CollectGarbage, Remove]).run()
    while not driven.all(CollectGarbage):
        driven.cut()
    driven.tell(Collected(("segments/old",)))
    assert driven.all(Remove) == [Remove(("segments/old",))]
    driven.cut()
    assert len(driven.cuts) > 1, "although nobody has said that it is gone"
