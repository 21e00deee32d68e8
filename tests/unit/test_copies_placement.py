"""Chained backup: where copies go, and that they stay there (ChronoStream, C5)."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace.state.copies.placement import Standbys, chained, ring

SLICES = [f"S{i}" for i in range(4, 8)]


# chronostream fact 10: the paper's figure 8
def test_peers_are_numbered_from_0() -> None:
    placed = chained(SLICES, ["node1", "node3"], 1)
    assert [placed[slice] for slice in SLICES] == [("node1",), ("node3",), ("node1",), ("node3",)]


# chronostream facts 11 and 12
@given(st.integers(0, 40), st.integers(1, 11), st.integers(0, 14))
def test_copies_are_distinct_elsewhere_and_even(slices: int, nodes: int, factor: int) -> None:
    roster = [f"node{i}" for i in range(nodes)]
    for owner in roster:
        placed = chained(range(slices), ring(roster, owner), factor)
        assert all(len(set(copies)) == min(factor, nodes - 1) == len(copies) for copies in placed.values())
        assert all(owner not in copies for copies in placed.values())
        per_peer = Counter(dict.fromkeys(ring(roster, owner), 0))
        per_peer.update(peer for copies in placed.values() for peer in copies)
        assert not per_peer or max(per_peer.values()) - min(per_peer.values()) <= factor


# chronostream fact 31: all survivors have part of what a dead executor had
def test_one_owners_slices_have_copies_on_as_many_nodes_as_can_be() -> None:
    for nodes in range(2, 9):
        roster = [f"node{i}" for i in range(nodes)]
        for slices in range(1, 20):
            placed = Standbys().place({(1, number): "node0" for number in range(slices)}, roster, 1)
            assert len({node for copies in placed.values() for node in copies}) == min(slices, nodes - 1)


# chronostream fact 32, survivors: the more there are, the less each has to load (how long it takes is for bench recovery)
def test_the_more_survive_the_less_the_busiest_has_to_load() -> None:
    slices, shares = 40, list[int]()
    for survivors in range(1, 9):
        roster = [f"node{i}" for i in range(survivors + 1)]
        placed = Standbys().place({(1, number): "node0" for number in range(slices)}, roster, 1)
        shares.append(max(Counter(node for copies in placed.values() for node in copies).values()))
    assert shares == [-(-slices // survivors) for survivors in range(1, 9)]


def test_the_ring_gives_every_node_the_same_share() -> None:
    roster = [f"node{i}" for i in range(7)]
    owners = {(0, number): roster[number % 7] for number in range(70)}
    placed = Standbys().place(owners, roster, 2)
    assert set(Counter(peer for copies in placed.values() for peer in copies).values()) == {20}


def test_copies_stay_where_they_are_while_their_node_does() -> None:
    roster, standbys = ["a", "b", "c", "d"], Standbys()
    owners: dict[tuple[int, int], str | None] = {(1, number): roster[number % 4] for number in range(24)}
    before = standbys.place(owners, roster, 1)
    moved = owners | {(1, 0): "b", (1, 5): "c"}
    after = standbys.place(moved, roster, 1)
    assert [key for key in owners if before[key] != after[key]] == [key for key in moved if moved[key] in before[key]]
    survivors = ["a", "b", "d", "e"]
    again = standbys.place({key: owner if owner != "c" else "e" for key, owner in moved.items()}, survivors, 1)
    assert all(again[key] == after[key] for key in owners if after[key][0] in survivors and again[key] != ("e",))
    assert all(copies[0] in survivors for copies in again.values())


# chronostream fact 13
def test_who_gives_a_slice_to_its_standby_stands_by_for_it() -> None:
    standbys = Standbys()
    (standby,) = standbys.place({(1, 0): "a"}, ["a", "b", "c"], 1)[1, 0]
    assert standbys.holders() == {(1, 0): ("a", standby)}
    assert standbys.place({(1, 0): standby}, ["a", "b", "c"], 1)[1, 0] == ("a",)


def test_one_node_has_no_peers_and_gets_them_when_others_come() -> None:
    standbys = Standbys()
    assert standbys.place({(1, 0): "a", (1, 1): None}, ["a"], 1) == {(1, 0): (), (1, 1): ("a",)}
    assert standbys.place({(1, 0): "a", (1, 1): None}, ["a", "b"], 1) == {(1, 0): ("b",), (1, 1): ("a",)}
