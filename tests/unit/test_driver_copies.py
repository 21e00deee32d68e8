"""The driver and copies of state: who keeps which, what it is told of them, and mending a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from driven import Driven, counting, sender, sent
from durable import CutWriter, MemoryStorage
from msgspec.structs import replace as with_values

from headrace.driver.farcopies import CopyWatch
from headrace.driver.hands import Deeds
from headrace.driver.origins import Origins
from headrace.driver.protocol.events import (
    Compact,
    LeavingGiven,
    Mend,
    Mended,
    MovesAsked,
    QueryEnded,
    Rewritten,
    Say,
)
from headrace.runtime.messages import Adopted, Loaded, Planned, Prepare, Prepared
from headrace.runtime.plan import JobPlan, Ticket
from headrace.state.copies.nearest import NOTHING_LOADED, Loading
from headrace.state.copies.placement import CopyNode
from headrace.state.durable.manifest import SliceKey
from headrace.state.durable.segments import BlockRef
from headrace.tokens import Attempt

A, B, C = (CopyNode(name, f"tcp://{name}:1", "key") for name in "abc")
BLOCK = BlockRef("segments/x", 7, 10, "", 1, False)


def copying(subtasks: int, backup: int = 1) -> JobPlan:
    plan = counting(subtasks)
    return replace(plan, settings=replace(plan.settings, backup=backup))


def joined(driven: Driven, nodes: list[CopyNode | None], batch: int = 0) -> dict[tuple[int, int], Ticket]:
    """Subtask i of each stage is on node i; returns everybody's ticket."""
    before = len(driven.asked)
    for place in driven.places:
        driven.hello(place, node=nodes[place[1]], batch=batch)
    planned = sent(driven.asked[before:], Planned)
    return {place: planned[sender(place)].ticket for place in driven.places}


def test_tickets_say_who_keeps_copies_of_which_slices() -> None:
    tickets = joined(Driven(copying(3)), [A, B, C])
    for (stage, index), ticket in tickets.items():
        assert ticket.nodes == (A, B, C)
        assert tuple(ticket.backups) == ticket.mine and (stage == 0 or len(ticket.mine) > 20), "its own slices"
        assert {len(copies) for copies in ticket.backups.values()} == {1}
        on = {copy for (copy,) in ticket.backups.values()}
        assert on == {0, 1, 2} - {index} or (stage == 0 and index not in on), "on all others"


def test_copies_stay_where_they_are_after_a_failure() -> None:
    driven = Driven(copying(2))
    before = joined(driven, [A, B])
    driven.load()
    again(driven)
    after = joined(driven, [B, A])
    assert all(set(t.backups.values()) == {(1,)} for t in (before[1, 0], after[1, 1])), "the owners have changed places"
    assert all(set(t.backups.values()) == {(0,)} for t in (before[1, 1], after[1, 0]))


def test_slices_are_loaded_from_who_had_them_also_if_no_subtask_is_there_any_more() -> None:
    driven = Driven(copying(2))
    first = joined(driven, [A, B])
    assert {ticket.holders.get(0) for ticket in first.values()} == {None}, "nobody has anything yet"
    driven.load()
    again(driven)
    after = joined(driven, [C, C])
    assert after[1, 0].nodes == (A, B, C) and set(after[1, 0].holders.values()) == {(0, 1)}, "its owner's, and the copy"
    assert set(after[1, 1].holders.values()) == {(1, 0)} and after[1, 1].backups == {}, "there is one node now"
    again(driven)
    after = joined(driven, [C, C])
    assert after[1, 0].nodes == (A, B, C) and set(after[1, 0].holders.values()) == {(0, 1, 2)}, (
        "C has loaded nothing yet"
    )
    driven.load()
    again(driven)
    assert joined(driven, [C, C])[1, 0].nodes == (C,), "what nobody counts on is forgotten"


def owned_by(driven: Driven) -> list[list[int]]:
    """The slices of each subtask of the keyed stage."""
    table = driven.machine.members.tables[1]
    places = [index for stage, index in driven.places if stage == 1]
    return [[slice for slice, owner in enumerate(table) if owner == index] for index in places]


def hand_over(driven: Driven) -> None:
    """Slices that are to move do, at the cuts that follow."""
    while sent(driven.later(0.0), Prepare) or driven.machine.moving.moves:
        for to, wanted in sent(driven.asked, Prepare).items():
            place = next(place for place in driven.places if sender(place) == to)
            driven.hear(place, Prepared(*place, wanted.attempt, wanted.version))
        driven.cut()
        for place in driven.machine.moving.unadopted:
            driven.hear(place, Adopted(*place, driven.cuts[-1], 1.0))


# chronostream fact 13: after X→Y, X's executor is standby without transfer
def test_after_a_move_the_owner_before_stands_by_and_slices_stay_where_they_went() -> None:
    driven = Driven(copying(2))
    first = joined(driven, [A, B])
    driven.load()
    driven.cut()
    (moved, *_), _ = owned_by(driven)
    table = driven.machine.members.tables[1]
    driven.tell(MovesAsked(1, (*table[:moved], 1, *table[moved + 1 :]), "because"))
    hand_over(driven)
    assert moved in owned_by(driven)[1]
    assert driven.machine.members.backups(1)[moved] == ("a",), "B had the copy, and is the owner's now"
    driven.cut()
    again(driven)
    after = joined(driven, [B, A])
    assert moved in after[1, 0].mine and moved not in after[1, 1].mine, "subtask 0 is on B now"
    at = {node.name: number for number, node in enumerate(after[1, 0].nodes)}
    assert after[1, 0].holders[moved] == (at["b"], at["a"]) and after[1, 0].backups[moved] == (at["a"],)
    assert set(first[1, 0].mine) - {moved} <= set(after[1, 1].mine)


# chronostream 6(e): leave slices near copies, then move live
def test_an_executor_that_is_new_gets_slices_while_the_job_runs() -> None:
    driven = Driven(copying(2))
    joined(driven, [A, A])
    driven.load()
    driven.cut()
    again(driven)
    after = joined(driven, [A, B])
    assert after[1, 1].mine == () and len(after[1, 0].mine) == driven.plan.slices, "all has been on A"
    assert after[0, 1].mine != (), "partitions do not move, so they are dealt at once"
    driven.load()
    driven.cut()
    hand_over(driven)
    assert [len(some) for some in owned_by(driven)] == [driven.plan.slices // 2] * 2
    assert any("changed hands" in say.detail for say in driven.all(Say))


def test_executors_that_are_leaving_are_emptied_and_own_nothing_afterwards() -> None:
    driven = Driven(copying(3))
    for place in driven.places:
        driven.hello(place, node=(A, B, C)[place[1]], executor=f"{place[1]}")
    driven.load()
    driven.cut()
    members, slices = driven.machine.members, driven.plan.slices
    driven.tell(LeavingGiven(frozenset({"1"})))
    assert members.left([1]) == len(owned_by(driven)[1]) > 0
    hand_over(driven)
    assert owned_by(driven)[1] == [] and members.left([1]) == 0
    again(driven)
    for place in driven.places:
        driven.hello(place, node=(A, B, C)[place[1]], executor=f"{place[1]}")
    assert owned_by(driven)[1] == [], "nor does it after a failure"
    driven.load()
    driven.cut()
    driven.tell(LeavingGiven(frozenset()))
    hand_over(driven)
    assert len(owned_by(driven)[1]) in (slices // 3, slices // 3 + 1), "it is needed again"
    driven.tell(LeavingGiven(frozenset({"0", "1", "2"})))
    hand_over(driven)
    assert min(len(some) for some in owned_by(driven)) > 0 and members.left([1]) == 0, "somebody has to"


def again(driven: Driven) -> None:
    """The query ends, and the next one is started after a pause."""
    driven.tell(QueryEnded(driven.machine.query, None))
    for _ in range(3):
        driven.later(60)


class Far:
    """A keeper that is so far."""

    def __init__(self, cuts: dict[str, int | None], node: CopyNode) -> None:
        self._cuts, self._name = cuts, node.name

    def complete_to(self, slices: Sequence[SliceKey]) -> int | None:
        return self._cuts[self._name] if slices == [("n", 0)] else None

    def close(self) -> None: ...


def test_copies_are_complete_up_to_where_all_are_that_should_have_them() -> None:
    cuts: dict[str, int | None] = {"a": 7, "b": 9, "c": 3}
    watch = CopyWatch(lambda node: Far(cuts, node), 0.001)  # type: ignore[arg-type,return-value]
    assert watch.cut is None
    watch.expect({A: [("n", 0)], B: [("n", 0)]})
    until(lambda: watch.cut == 7)
    cuts["b"] = None
    until(lambda: watch.cut is None)
    watch.expect({C: [("n", 0)]})
    until(lambda: watch.cut == 3)
    watch.expect({A: [("n", 0)], B: [("n", 0), ("n", 1)]})
    assert watch.cut is None, "others should have them now"
    watch.close()
    CopyWatch(lambda node: Far(cuts, node)).close()  # type: ignore[arg-type,return-value]


def until(happened: Callable[[], bool]) -> None:
    while not happened():
        time.sleep(0.001)


def test_each_slice_is_expected_where_its_owner_and_its_copies_are() -> None:
    driven = Driven(copying(2))
    joined(driven, [A, B])
    members, keys = driven.machine.members, [("n", 0), ("n#marks", 1)]
    homes = [(A, B)[members.tables[1][slice]] for slice in (0, 1)]
    assert members.keepers(keys) == {A: keys, B: keys} and len(set(homes)) == 2, "one's own, and the other's copy"
    alone = Driven(copying(2, 0))
    joined(alone, [A, B])
    expected = {node: [key] for node, key in zip(homes, keys)}
    assert alone.machine.members.keepers(keys) == expected, "without copies, one's own alone"


def test_without_keepers_or_backups_there_are_no_copies() -> None:
    for plan, nodes in ((copying(2), [None, None]), (copying(2, 0), [A, B]), (copying(2), [A, A])):
        tickets = joined(Driven(plan), nodes)
        assert {len(ticket.backups) for ticket in tickets.values()} == {0}
    half = joined(Driven(copying(2)), [A, None])
    assert half[1, 0].backups == {} and set(half[1, 1].backups.values()) == {(0,)}, "who has no keeper uses others'"


def test_damage_that_loading_finds_is_mended_and_told() -> None:
    driven = Driven(copying(1))
    driven.join()
    found = with_values(NOTHING_LOADED, broken=(BLOCK,))
    asked = driven.hear((0, 0), Loaded(0, 0, driven.attempt, found))
    assert asked == [Mend((BLOCK,))]
    (said,) = driven.tell(Mended((BLOCK,), ()))
    assert isinstance(said, Say) and said.loud and "segments/x at 7" in said.detail and said.what == "mended"
    (said,) = driven.tell(Mended((), (BLOCK,)))
    assert isinstance(said, Say) and said.loud and "in no copy" in said.detail


class AllOf:
    """Copies of everything that a storage had."""

    def __init__(self, storage: MemoryStorage) -> None:
        self._objects = dict(storage.objects)

    def bodies(self, block: BlockRef) -> Iterator[bytes]:
        yield b"a damaged copy"
        yield self._objects[block.file][block.offset : block.offset + block.length]


# chronostream fact 34: found by compaction in the running job
def test_compaction_mends_what_it_cannot_read() -> None:
    storage = MemoryStorage()
    writer = CutWriter(storage)
    for n in range(20):
        made = writer.cut({0: {0: n}})
    copies, block = AllOf(storage), made.slices["step", 0].blocks[-3]
    whole = storage.objects[block.file]
    storage.objects[block.file] = whole[:-5] + b"other"
    alone = Deeds(counting(), storage).perform(Compact(made, Attempt(1, 1)))
    assert isinstance(alone, Rewritten) and alone.trouble is not None and block.file in alone.trouble
    mended = Deeds(counting(), storage, [copies]).perform(Compact(made, Attempt(1, 1)))
    assert isinstance(mended, Rewritten) and mended.trouble is None
    assert mended.mended == (block,) and len(mended.rewrites) == 1 and storage.objects[block.file] == whole
    storage.delete(block.file)
    assert Deeds(counting(), storage, [copies]).perform(Mend((block,))) == Mended((block,), ())
    assert Deeds(counting(), storage).perform(Mend((block,))) == Mended((), (block,))
    writer.check(made)


def test_where_an_attempts_slices_came_from_is_added_up() -> None:
    origins = Origins()
    assert origins.sentence() is None and origins.slices == {}
    origins.take(Loaded(0, 0, Attempt(1, 1), Loading({"checkpoint": 9}, {}, 0, ())))
    origins.take(Loaded(1, 0, Attempt(1, 2), Loading({"peer": 2, "memory": 3}, {}, 1, ())))
    origins.take(Loaded(1, 1, Attempt(1, 2), Loading({"memory": 4}, {}, 0, ())))
    assert origins.slices == {"memory": 7, "peer": 2}
    assert origins.sentence() == (
        "slices loaded: 7 from memory, 2 from a peer; 1 copies of blocks were damaged and passed over"
    )
