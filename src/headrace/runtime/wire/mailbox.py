"""A queue that one thread waits on, for as short a time as it likes.

``queue.SimpleQueue`` is not used for it: before Python 3.13 its ``get`` waits for ever if the time is over by the moment
that it begins to wait, as happens to a thread that is set aside just then.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from threading import Lock
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Mailbox(Generic[Item]):
    """Any thread puts, one gets."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._news = Lock()
        self._news.acquire()

    def put(self, item: Item) -> None:
        self._items.append(item)
        with suppress(RuntimeError):  # nobody has looked since the last time
            self._news.release()

    def get(self, wait_s: float) -> Item:
        """The next item; IndexError if none came in time."""
        if self._items or wait_s <= 0:
            return self._items.popleft()
        until_s = time.monotonic() + wait_s
        while not self._items and (left_s := until_s - time.monotonic()) > 0:
            self._news.acquire(timeout=left_s)
        return self._items.popleft()
