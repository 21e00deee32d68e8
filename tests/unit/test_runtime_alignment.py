"""Alignment of senders at a cut: any interleaving, on disk or not, keeps order and lets nothing through early."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ProtocolError
from headrace.runtime.wire.alignment import Alignment
from headrace.runtime.wire.inbox import Row
from headrace.runtime.wire.rowshelf import RowShelf

Item = tuple[int, int, int]
"""Sender, number, and which cut it marks (0: none)."""


class Shelf:
    """Items put away, by place; each may be taken once."""

    def __init__(self) -> None:
        self.items: dict[int, Item] = {}
        self.puts = 0

    def put(self, item: Item) -> int:
        self.puts += 1
        self.items[self.puts] = item
        return self.puts

    def take(self, place: int) -> Item:
        return self.items.pop(place)

    def clear(self) -> None:
        self.items.clear()


class Receiver:
    """What a subtask does with an alignment, and what it has seen by then."""

    def __init__(self, senders: int, limit_bytes: int) -> None:
        self.shelf = Shelf()
        self.alignment: Alignment[Item, int] = Alignment(self.shelf, limit_bytes)
        self.alignment.begin(range(senders))
        self.served: dict[int, list[int]] = {sender: [] for sender in range(senders)}
        self.cut = 0
        self.at_cut: list[dict[int, int]] = []

    def arrive(self, item: Item) -> None:
        if item[0] in self.alignment.held:
            self.alignment.hold(item[0], item, 10)
        else:
            self.serve(item)

    def serve(self, item: Item) -> None:
        sender, number, mark = item
        if mark:
            assert mark == self.cut + 1, "what is behind a cut was served before it"
            self.alignment.mark(sender, mark)
        else:
            self.served[sender].append(number)

    def work(self) -> bool:
        """Make the cut if it can be made, else serve one item that was held; False if there is nothing to do."""
        if self.alignment.aligned:
            assert self.alignment.agreed == self.cut + 1
            assert set(self.alignment.made().values()) == {self.cut + 1}
            self.cut += 1
            self.at_cut.append({sender: len(numbers) for sender, numbers in self.served.items()})
            return True
        item = self.alignment.take()
        if item is not None:
            self.serve(item)
        return item is not None


SCRIPTS = st.integers(1, 4).flatmap(
    lambda cuts: st.lists(
        st.lists(st.integers(0, 4), min_size=cuts + 1, max_size=cuts + 1), min_size=1, max_size=4
    )
)  # fmt: skip
"""For each sender how many items it sends before each cut and after the last one."""


def items_of(sender: int, counts: list[int]) -> list[Item]:
    items: list[Item] = []
    for cut, count in enumerate(counts):
        items += [(sender, len(items) + i, 0) for i in range(count)]
        items += [(sender, len(items), cut + 1)] if cut < len(counts) - 1 else []
    return items


# cuts.md rules 3 and 4: nothing early, nothing lost, order kept; senders may even be several cuts ahead
@given(SCRIPTS, st.data(), st.sampled_from([0, 25, 10**9]))
def test_any_interleaving(script: list[list[int]], data: st.DataObject, limit_bytes: int) -> None:
    receiver = Receiver(len(script), limit_bytes)
    coming = {sender: items_of(sender, counts) for sender, counts in enumerate(script)}
    sent = {sender: [number for _, number, mark in items if not mark] for sender, items in coming.items()}
    while any(coming.values()):
        choice = data.draw(st.integers(-1, len(script) - 1))
        if choice < 0:
            receiver.work()
        elif coming[choice]:
            receiver.arrive(coming[choice].pop(0))  # reading never stops, whatever is held
    while receiver.work():
        pass
    assert receiver.cut == len(script[0]) - 1, "every cut is made"
    assert receiver.served == sent, "each sender's items once and in order"
    for cut, counts in enumerate(receiver.at_cut):
        assert counts == {sender: sum(script[sender][: cut + 1]) for sender in counts}
    assert not receiver.alignment.held and not receiver.shelf.items and receiver.alignment.held_bytes == 0
    if limit_bytes == 0:
        assert receiver.alignment.shelved_bytes == 10 * receiver.shelf.puts
    elif limit_bytes > 25:
        assert receiver.shelf.puts == 0


def test_a_sender_that_owns_nothing_is_waited_for_too() -> None:
    receiver = Receiver(3, 100)
    for item in ((0, 0, 1), (1, 0, 1), (0, 1, 0)):
        receiver.arrive(item)
    assert not receiver.work() and receiver.served[0] == [], "the third has not marked"
    assert receiver.alignment.missing == [2] and receiver.alignment.under_way
    receiver.arrive((2, 0, 1))
    while receiver.work():
        pass
    assert receiver.cut == 1 and receiver.served[0] == [1]


def test_senders_take_turns_when_what_was_held_is_served() -> None:
    receiver = Receiver(2, 100)
    for item in ((0, 0, 1), (0, 1, 0), (0, 2, 0), (1, 0, 1), (1, 1, 0), (1, 2, 0)):
        receiver.arrive(item)
    assert receiver.work(), "the cut"
    taken = [receiver.alignment.take() for _ in range(4)]
    assert taken == [(0, 1, 0), (1, 1, 0), (0, 2, 0), (1, 2, 0)] and receiver.alignment.take() is None


def test_what_nobody_should_do_is_refused() -> None:
    receiver = Receiver(2, 100)
    receiver.arrive((0, 0, 1))
    with pytest.raises(ProtocolError, match="sender 0 marked a cut twice"):
        receiver.alignment.mark(0, 2)
    with pytest.raises(ProtocolError, match="sender 7 marked a cut, but is none of"):
        receiver.alignment.mark(7, 1)
    with pytest.raises(ProtocolError, match=r"before senders \[1\] had marked it"):
        receiver.alignment.made()


def test_a_new_attempt_forgets_what_was_held() -> None:
    receiver = Receiver(2, 15)
    for item in ((0, 0, 1), (0, 1, 0), (0, 2, 0)):
        receiver.arrive(item)
    assert receiver.shelf.items and receiver.alignment.held_bytes == 10
    receiver.alignment.begin(range(2))
    assert not receiver.shelf.items and not receiver.alignment.held and receiver.alignment.take() is None
    assert receiver.alignment.missing == [0, 1]


def test_without_senders_there_is_nothing_to_align() -> None:
    assert not Receiver(0, 0).alignment.aligned


@given(st.lists(st.binary(max_size=300), max_size=12), st.data())
def test_rows_come_back_from_disk_as_they_were(payloads: list[bytes], data: st.DataObject) -> None:
    shelf = RowShelf(lambda: Path("/tmp"))
    try:
        places: dict[int, int] = {}
        for at, payload in enumerate(payloads):
            places[at] = shelf.put(Row(memoryview(payload), at))
            if data.draw(st.booleans()):
                taken = data.draw(st.sampled_from(sorted(places)))
                row = shelf.take(places.pop(taken))
                assert (bytes(row.payload), row.queued_us) == (payloads[taken], taken)
        for at, place in places.items():
            assert bytes(shelf.take(place).payload) == payloads[at]
        assert shelf.put(Row(memoryview(b"again"), 1)) == 0, "the file is empty again when all was taken"
        shelf.clear()
        assert shelf.put(Row(memoryview(b"once more"), 1)) == 0
    finally:
        shelf.close()


def test_the_shelf_leaves_no_file(tmp_path: Path) -> None:
    shelf = RowShelf(lambda: tmp_path / "spill")
    assert not (tmp_path / "spill").exists(), "nothing is made before it is needed"
    shelf.put(Row(memoryview(b"x" * 1000), 1))
    assert list((tmp_path / "spill").iterdir()) == []
    shelf.close()
    assert shelf.put(Row(memoryview(b"y"), 1)) == 0
    shelf.close()
