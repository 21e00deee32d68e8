"""What shedding is compared with: a reduce that keeps everything."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from headrace.runtime.shedding.deadlines import Item
from headrace.runtime.shedding.shedders import ShedFigures


class InOrder:
    """No scheduling: everything in order of arrival, nothing is shed, however late."""

    def __init__(self) -> None:
        self._queue: deque[Item] = deque()
        self._received = self._processed = 0

    def release(self, items: Iterable[Item], now_us: int) -> None:
        for item in items:
            self._queue.append(item)
            self._received += item.count

    def next_to_process(self, now_us: int) -> Item | None:
        if not self._queue:
            return None
        item = self._queue.popleft()
        self._processed += item.count
        return item

    def earliest_us(self) -> int | None:
        return self._queue[0].deadline_us if self._queue else None

    def kept(self) -> list[Item]:
        return list(self._queue)

    def figures(self) -> ShedFigures:
        return ShedFigures(self._received, self._processed, 0, sum(item.count for item in self._queue))
