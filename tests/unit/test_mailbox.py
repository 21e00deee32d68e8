"""What a subtask and the driver's loop wait on."""

from __future__ import annotations

import threading

import pytest

from headrace.runtime.wire.inbox import End, Inbox
from headrace.runtime.wire.mailbox import Mailbox


# A source stood still until its cut was given up, two minutes later: queue.SimpleQueue.get(timeout) can wait for ever.
def test_a_short_wait_ends_although_somebody_has_woken_the_waiter_before() -> None:
    inbox = Inbox(1000)

    def work() -> None:
        for _ in range(50_000):
            inbox.wake()
            assert inbox.get(0.0) is None and inbox.get(1e-6) is None

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(120)
    assert not thread.is_alive()


def test_items_come_in_their_order_and_an_empty_box_says_so_in_time() -> None:
    box: Mailbox[int] = Mailbox()
    for i in range(3):
        box.put(i)
    assert [box.get(0.0), box.get(5.0), box.get(0.0)] == [0, 1, 2]
    for wait_s in (-1.0, 0.0, 1e-6, 0.01):
        with pytest.raises(IndexError):
            box.get(wait_s)


def test_who_waits_is_woken_by_the_next_item() -> None:
    box: Mailbox[int] = Mailbox()
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.extend(box.get(60.0) for _ in range(1000)))
    thread.start()
    for i in range(1000):
        box.put(i)
    thread.join(60)
    assert got == list(range(1000))


def test_an_inbox_gives_rows_then_its_end() -> None:
    inbox = Inbox(1000)
    inbox.put_row(memoryview(b"row"))
    inbox.put_end(End())
    row = inbox.get(1.0)
    assert row is not None and not isinstance(row, End) and row.payload == b"row"
    assert inbox.get(1.0) == End() and inbox.get(0.001) is None
