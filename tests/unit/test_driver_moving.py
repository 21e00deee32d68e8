"""What the driver decides about slices that change hands: which, when, and what it tells those who get them."""

from __future__ import annotations

from dataclasses import replace as replace_field
from typing import Any

import pytest
from driven import Driven, counting, nothing_done, ordered, sender, sent
from msgspec.structs import replace

from headrace.driver.protocol import moving as moving_module
from headrace.driver.protocol.events import Finish, MovesAsked, NumberedCut, QueryEnded, Say, StopAsked
from headrace.driver.protocol.moving import PATIENCE_S, HandedOver, Moving
from headrace.errors import RunFailedError
from headrace.runtime.messages import Adopted, CutOrdered, Described, Final, Place, Prepare, Prepared
from headrace.state.durable.manifest import Manifest, SliceVersion
from headrace.state.durable.segments import BlockRef, StoredChange
from headrace.tokens import Attempt, Token

SLICES = 4
BY = Attempt(1, 1)
V1, V2 = BY.cut(1), BY.cut(2)
GIVER, TAKER = (1, 0), (1, 1)
BEFORE = (0, 0, 0, 0)


def block(file: str, length: int = 10) -> BlockRef:
    return BlockRef(file, 0, length, "", 1, full=False)


def change(slice: int, parent: int, digest: int, file: str = "later") -> StoredChange:
    return StoredChange("n", slice, (parent, 0), (digest, 0), block(file))


def version(*lengths: int) -> NumberedCut:
    """A version that has so many bytes of each slice; slice i has the digest i + 1."""
    slices = {
        ("n", slice): SliceVersion((slice + 1, 0), (block(f"base-{slice}", length),))
        for slice, length in enumerate(lengths)
    }
    return NumberedCut(2, Manifest(V1, None, slices))


def moving(**wanted: Any) -> Moving:
    return Moving({"s": 0, "n": 1}, {0: 1}, frozenset({1}), {1: (1, 1, 1, 1)}, **wanted)


def chosen(of: Moving) -> list[int]:
    return [move.slice for move in of.moves]


# Before the cut.


def test_the_busiest_slices_move_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving_module, "AT_ONCE_BYTES", 10)
    some = moving()
    some.see([replace(nothing_done(TAKER, V1), consumed={0: {0: [1, 2, 9, 4], 1: [0, 3, 0, 0]}})])
    some.begin([(), BEFORE], version(10, 10, 10, 10), BY, 0.0)
    assert chosen(some) == [2] and some.tables == {1: (0, 0, 1, 0)}


def test_loads_of_long_ago_count_less() -> None:
    some = moving()
    some.see([replace(nothing_done(TAKER, V1), consumed={0: {0: [9, 0, 0, 0]}})])
    for _ in range(4):
        some.see([replace(nothing_done(TAKER, V1), consumed={0: {0: [0, 2, 0, 0]}})])
    some.begin([(), BEFORE], version(1, 1, 1, 1), BY, 0.0)
    assert chosen(some)[:2] == [1, 0]


def test_no_more_at_once_than_a_subtask_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving_module, "AT_ONCE_BYTES", 30)
    some = moving()
    some.begin([(), BEFORE], version(20, 10, 10, 5), BY, 0.0)
    assert chosen(some) == [0, 1], "the third would be too much, and so would the fourth"
    assert some.prepares(0.0) == [(TAKER, Prepare(BY, 2, V1, (0, 1)))]


def test_one_slice_may_always_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving_module, "AT_ONCE_BYTES", 30)
    some = moving()
    some.begin([(), BEFORE], version(1000, 1000, 1, 1), BY, 0.0)
    assert chosen(some) == [0]


def test_nothing_moves_where_all_is_as_wanted() -> None:
    some = moving()
    some.begin([(), (1, 1, 1, 1)], version(1, 1, 1, 1), BY, 0.0)
    assert some.moves == () and some.prepares(0.0) == [] and some.take_tables(V2) == {}


def test_a_cut_carries_no_tables_before_all_are_ready() -> None:
    some = Moving({"s": 0, "n": 1}, {0: 1}, frozenset({1}), {1: (1, 2, 0, 0)})
    some.begin([(), BEFORE], version(1, 1, 1, 1), BY, 0.0)
    assert [place for place, _ in some.prepares(0.0)] == [(1, 1), (1, 2)]
    some.ready((1, 1), V1)
    some.ready((1, 2), V2)
    assert some.take_tables(V2) == {} and not some.open, "that was another version"
    some.ready((1, 2), V1)
    assert some.take_tables(V2) == {1: (1, 2, 0, 0)} and some.open


def test_who_is_to_load_is_told_again_and_again_until_it_is_ready() -> None:
    some = Moving({"s": 0, "n": 1}, {0: 1}, frozenset({1}), {1: (1, 2, 0, 0)})
    some.begin([(), BEFORE], version(1, 1, 1, 1), BY, 0.0)
    first = some.prepares(0.0)
    assert len(first) == 2 and some.prepares(0.1) == [] and some.prepares(0.6) == first
    some.ready((1, 1), V1)
    assert some.prepares(1.2) == [((1, 2), Prepare(BY, 2, V1, (1,)))], "the same version: what is being loaded goes on"
    some.ready((1, 2), V1)
    assert some.prepares(2.0) == []


# chronostream fact 28: a move that cannot keep up is cancelled, and nothing has happened
def test_who_is_not_ready_in_time_is_left_alone() -> None:
    some = moving()
    some.begin([(), BEFORE], version(1, 1, 1, 1), BY, 0.0)
    assert some.given_up(PATIENCE_S - 1) == ()
    assert [move.slice for move in some.given_up(PATIENCE_S)] == [0, 1, 2, 3]
    assert some.moves == () and some.take_tables(V2) == {} and not some.open
    some.ready(TAKER, V1)
    some.begin([(), BEFORE], version(1, 1, 1, 1), BY, PATIENCE_S)
    assert some.moves == () and some.prepares(PATIENCE_S) == [], "nor is it tried again by itself"


def test_what_a_cut_carries_is_not_given_up() -> None:
    some = moving()
    some.begin([(), BEFORE], version(1, 1, 1, 1), BY, 0.0)
    some.ready(TAKER, V1)
    some.take_tables(V2)
    assert some.given_up(10 * PATIENCE_S) == () and some.open


# After it.


def given(base: NumberedCut | None) -> Moving:
    """Slices 0 and 1 are given to one subtask, 2 to another, at the second cut."""
    some = Moving({"s": 0, "n": 1}, {0: 1}, frozenset({1}), {1: (1, 1, 2, 3)})
    some.begin([(), (0, 0, 3, 3)], base, BY, 0.0)
    some.ready((1, 1), V1)
    some.ready((1, 2), V1)
    assert some.take_tables(V2) == {1: (1, 1, 2, 3)}
    return some


def describe(of: Moving, place: Place, *changes: StoredChange, token: Token = V2) -> None:
    of.describe(replace(nothing_done(place, token), changes=changes))


def test_final_is_the_version_before_and_what_its_giver_describes() -> None:
    base = version(10, 10, 10, 10)
    some = given(base)
    describe(some, (1, 0), change(1, 2, 77), token=V1)
    assert some.finals(base, 1.0) == [], "that was another cut"
    describe(some, (1, 0), change(1, 2, 22), change(1, 22, 23), change(3, 4, 5))
    ((place, final),) = some.finals(base, 1.0)
    before = base.manifest.slices
    assert place == (1, 1) and final.token == V2
    assert sorted(final.slices) == [
        ("n", 0, before["n", 0]),
        ("n", 1, SliceVersion((23, 0), (*before["n", 1].blocks, block("later"), block("later")))),
    ]


def test_final_of_a_first_cut_is_what_its_giver_describes() -> None:
    some = Moving({"s": 0, "n": 1}, {0: 1}, frozenset({1}), {1: (1, 1, 0, 0)})
    some.begin([(), BEFORE], None, BY, 0.0)
    assert some.prepares(0.0) == [], "there is nothing to load ahead"
    assert some.take_tables(V1) == {1: (1, 1, 0, 0)}
    describe(some, GIVER, change(1, 0, 5), token=V1)
    assert some.finals(None, 1.0) == [(TAKER, Final(V1, (("n", 1, SliceVersion((5, 0), (block("later"),))),)))]


def test_final_of_a_logged_cut_is_what_the_log_has() -> None:
    some = given(version(10, 10, 10, 10))
    after = {("n", 2): SliceVersion((9, 0), (block("rewritten"),))}
    logged = NumberedCut(3, Manifest(V2, V1, after))
    assert some.finals(logged, 1.0) == [((1, 1), Final(V2, ())), ((1, 2), Final(V2, (("n", 2, after["n", 2]),)))]


def test_finals_are_told_again_and_again_until_they_are_adopted() -> None:
    base = version(10, 10, 10, 10)
    some = given(base)
    describe(some, (1, 0))
    describe(some, (1, 3))
    assert [place for place, _ in some.finals(base, 1.0)] == [(1, 1), (1, 2)]
    assert some.finals(base, 1.1) == [] and len(some.finals(base, 1.6)) == 2
    assert [some.adopt((1, 1), token, 7.0, 2.0) for token in (V1, V2, V2)] == [None, None, None]
    assert [place for place, _ in some.finals(base, 2.2)] == [(1, 2)] and some.open
    assert some.adopt((1, 2), V2, 5.0, 3.0) == HandedOver(V2.cut, 1, 3, 7.0, 3.0)
    assert not some.open and some.moves == () and some.finals(base, 9.0) == []


def test_who_was_told_is_not_told_at_every_turn_while_another_giver_is_slow() -> None:
    base = version(10, 10, 10, 10)
    some = given(base)
    describe(some, (1, 0))
    assert [place for place, _ in some.finals(base, 1.0)] == [(1, 1)]
    assert some.finals(base, 1.1) == []
    describe(some, (1, 3))
    assert [place for place, _ in some.finals(base, 1.2)] == [(1, 2)], "who can be told is told at once"


# With the machine.


def running(**more: Any) -> Driven:
    plan = counting(slices=SLICES, **more)
    stages = tuple(replace_field(stage, subtasks=2 if stage.index else 1, active=1) for stage in plan.layout.stages)
    driven = Driven(replace_field(plan, layout=replace_field(plan.layout, stages=stages)))
    return driven.run()


def ordered_tables(driven: Driven) -> dict[int, Any]:
    """Of the last order."""
    return sent(driven.asked, CutOrdered)[sender((0, 0))].tables


def asked_to_move(table: tuple[int, ...] = (1, 1, 1, 1)) -> Driven:
    """A job whose second cut, described by nobody yet, gives slices away."""
    driven = running()
    driven.cut()
    asked = driven.tell(MovesAsked(1, table, "because"))
    for to, prepare in sent(asked, Prepare).items():
        assert to == sender(TAKER)
        driven.hear(TAKER, Prepared(*TAKER, prepare.attempt, prepare.version))
    driven.now_s = driven.machine.pace.due_s
    driven.later(0.0)
    assert ordered_tables(driven) == {1: table}
    return driven


def test_slices_change_hands_at_the_next_cut_and_no_other_one_follows_before_they_are_adopted() -> None:
    driven = asked_to_move()
    token = driven.token
    told = driven.describe(GIVER)
    assert sent(told, Final) == {sender(TAKER): Final(token, ())}
    driven.describe_all()
    assert driven.machine.members.tables[1] == (1, 1, 1, 1) and driven.cuts[-1] == token
    assert ordered(driven.later(60.0)) == {}
    moved = driven.hear(TAKER, Adopted(*TAKER, token, 12.0))
    assert [say.detail for say in moved if isinstance(say, Say)] == [
        "4 slices changed hands at cut 2; records waited 12 ms"
    ]
    assert set(ordered(moved)) == {sender((0, 0))} and ordered_tables(driven) == {}


def test_the_last_cut_of_a_batch_gives_nothing_away() -> None:
    driven = running()
    driven.cut()
    prepare = sent(driven.tell(MovesAsked(1, (1, 1, 1, 1), "because")), Prepare)[sender(TAKER)]
    driven.hear(TAKER, Prepared(*TAKER, prepare.attempt, prepare.version))
    driven.tell(StopAsked())
    assert driven.machine.cut is not None and driven.machine.cut.end and ordered_tables(driven) == {}


def test_moves_end_with_their_attempt() -> None:
    driven = asked_to_move()
    old = driven.token
    driven.tell(QueryEnded(driven.machine.query, RunFailedError("a worker was killed")))
    driven.later(1.0)
    driven.later(20.0)
    driven.run(batch=1)
    assert not driven.machine.moving.open and not driven.machine.moving.moves
    assert driven.hear(TAKER, Adopted(*TAKER, old, 1.0)) == []
    driven.cut()
    assert driven.cuts[-1] == driven.attempt.cut(2) and ordered_tables(driven) == {}


def test_a_description_that_does_not_follow_ends_the_attempt_and_not_the_driver() -> None:
    driven = asked_to_move()
    wrong = replace(nothing_done(GIVER, driven.token), changes=(change(1, 99, 100),))
    driven.hear(GIVER, Described(wrong))
    assert driven.machine.phase == "stopping" or driven.machine.query == 2
    assert driven.all(Finish) == []


@pytest.mark.parametrize("table", [(1, 1, 1), (1, 1, 1, 2), (0, 0, 0, -1)])
def test_tables_that_do_not_fit_are_not_wanted(table: tuple[int, ...]) -> None:
    driven = running()
    driven.cut()
    assert driven.tell(MovesAsked(1, table, "for another layout")) == []
    assert not driven.machine.moving.wanted
    driven.cut()
    assert ordered_tables(driven) == {}
