"""Which waiting records a reduce operator processes next, and which it abandons to keep its deadlines.

Li 2015, section 5.4. In come items as batches arrive, out go items to process; time is an argument.
Shed records are lost: answers become approximate, and the figures say by how much.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.runtime.shedding.deadlines import Item
from headrace.runtime.shedding.deadlinetree import DeadlineTree


@dataclass(frozen=True, slots=True)
class ShedFigures:
    """Records so far, and now waiting; those handed out count as processed.

    Each is counted on its own, and always received = processed + shed + waiting.
    """

    received: int
    processed: int
    shed: int
    waiting: int


class Shedder(Protocol):
    """A policy: what to keep of what was received, and in which order to process it."""

    def release(self, items: Iterable[Item], now_us: int) -> None:
        """A batch has arrived."""

    def next_to_process(self, now_us: int) -> Item | None:
        """What to process now, no longer waiting from here on; None when nothing is worth it."""

    def earliest_us(self) -> int | None:
        """The deadline of what is next; None when nothing waits."""

    def kept(self) -> list[Item]:
        """What waits to be processed."""
        ...

    def figures(self) -> ShedFigures: ...


class EarliestDeadline:
    """Batch-level scheduling (section 5.4.1): earliest deadline first, hopeless records are skipped.

    Optimal while all records cost the same, because a part of a batch earns its part of the utility: of a
    batch that cannot be finished in time, as many records are handed out as can.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Item]] = []
        self._batches = 0
        self._received = self._processed = self._shed = 0

    def release(self, items: Iterable[Item], now_us: int) -> None:
        for item in items:
            self._received += item.count
            if _in_time(item, now_us):
                self._batches += 1
                heapq.heappush(self._heap, (item.deadline_us, self._batches, item))
            else:
                self._shed += item.count

    def next_to_process(self, now_us: int) -> Item | None:
        while self._heap:
            item = heapq.heappop(self._heap)[2]
            count = _in_time(item, now_us)
            self._shed += item.count - count
            if count:
                self._processed += count
                return replace(item, count=count)
        return None

    def earliest_us(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def kept(self) -> list[Item]:
        return [item for _, _, item in self._heap]

    def figures(self) -> ShedFigures:
        waiting = sum(item.count for _, _, item in self._heap)
        return ShedFigures(self._received, self._processed, self._shed, waiting)


class CostAware:
    """Tuple-level scheduling (section 5.4.2, algorithm 5): keep a largest schedulable subset.

    The thesis shrinks only when a batch arrives. We also look before handing out: costs are estimates, and
    when the last item took longer than expected, what has become hopeless should go and not be processed.
    """

    def __init__(self) -> None:
        self._tree = DeadlineTree()
        self._received = self._processed = self._shed = 0

    def release(self, items: Iterable[Item], now_us: int) -> None:
        for item in items:
            self._tree.insert(item)
            self._received += item.count
        self._shrink(now_us)

    def next_to_process(self, now_us: int) -> Item | None:
        self._shrink(now_us)
        item = self._tree.pop()
        if item is not None:
            self._processed += item.count
        return item

    def earliest_us(self) -> int | None:
        return self._tree.earliest_us()

    def kept(self) -> list[Item]:
        """By deadline."""
        return self._tree.items()

    def figures(self) -> ShedFigures:
        return ShedFigures(self._received, self._processed, self._shed, self._tree.records)

    def _shrink(self, now_us: int) -> None:
        while not self._tree.schedulable(now_us):
            self._shed += self._tree.shed(now_us)


def _in_time(item: Item, now_us: int) -> int:
    """How many records of an item can still be done by its deadline."""
    return min(item.count, max(0, (item.deadline_us - now_us) * 1000 // item.cost_ns))
