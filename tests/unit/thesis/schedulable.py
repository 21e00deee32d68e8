"""What shedding is compared with: a largest schedulable subset in one pass, no shedding at all.

Li 2015, algorithm 3 and proposition 5.4.1 (Moore–Hodgson with a max-heap): it sorts everything anew, and is the
meaning of ``headrace.runtime.shedding.deadlinetree``.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

from headrace.runtime.shedding.deadlines import Item
from headrace.runtime.shedding.deadlinetree import too_many
from headrace.runtime.shedding.shedders import ShedFigures


def largest_schedulable(items: Iterable[Item], now_us: int) -> list[Item]:
    """Most records that can all meet their deadlines from now on, one after the other, by deadline.

    Deadline by deadline: while what is due by then cannot be done by then, shed the record with the largest
    burden; of equals the one due first, then the one that came first. A maximum in number if all records
    are worth the same; with unequal windows a heuristic.
    """
    ordered = sorted(enumerate(items), key=lambda pair: pair[1].deadline_us)
    left = Counter({index: item.count for index, item in ordered})
    due: list[tuple[int, int, int, Item]] = []
    busy_until_ns = now_us * 1000
    for deadline_us, group in groupby(ordered, key=lambda pair: pair[1].deadline_us):
        for index, item in group:
            heapq.heappush(due, (-item.burden, deadline_us, index, item))
            busy_until_ns += item.count * item.cost_ns
        while due and busy_until_ns > deadline_us * 1000:
            _, _, index, item = due[0]
            shed = too_many(busy_until_ns - deadline_us * 1000, item.cost_ns, left[index])
            left[index] -= shed
            busy_until_ns -= shed * item.cost_ns
            if not left[index]:
                heapq.heappop(due)
    return [replace(item, count=left[index]) for index, item in ordered if left[index]]


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
