"""Waiting records by deadline, in a balanced tree that knows at its root whether all can still be done.

Li 2015, section 5.4.2, table 5.6 and algorithm 4. Departures: a group has a heap at both ends, because
among records of one deadline we hand out the cheapest first, so that the dearest can still be shed; the
dearest up to a deadline is found without writing to the tree.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.runtime.shedding.deadlinenodes import Node, WaitingGroup, arrivals, in_order, inserted, pruned
from headrace.runtime.shedding.deadlines import Item


class DeadlineTree:
    """Items in order of deadline; insert, shed and hand out in O(log m) amortised per item."""

    def __init__(self) -> None:
        self._root: Node | None = None
        self._orders = 0
        self.records = 0

    def insert(self, item: Item) -> None:
        self._orders += 1
        self._root = inserted(self._root, item, self._orders)
        self.records += item.count

    def schedulable(self, now_us: int) -> bool:
        """Whether everything waiting can meet its deadline when started now: now ≤ φ of the root."""
        return self._root is None or now_us * 1000 <= self._root.latest_ns

    def shed(self, now_us: int) -> int:
        """Drop records of the dearest item that is in the way of the first late deadline; how many."""
        late = self._first_late(now_us * 1000)
        if late is None:
            return 0
        deadline_ns, excess_ns = late
        node = self._dearest_up_to(deadline_ns)
        waiting = node.group.dearest()
        assert waiting is not None, "a node without records is removed at once"
        return self._take(node, waiting, too_many(excess_ns, waiting.item.cost_ns, waiting.left))

    def pop(self) -> Item | None:
        """The cheapest item of the earliest deadline, with as many records as are left of it."""
        node = self._earliest()
        if node is None:
            return None
        waiting = node.group.cheapest()
        assert waiting is not None, "a node without records is removed at once"
        item = replace(waiting.item, count=waiting.left)
        self._take(node, waiting, waiting.left)
        return item

    def earliest_us(self) -> int | None:
        """The first deadline."""
        node = self._earliest()
        return None if node is None else node.deadline_ns // 1000

    def items(self) -> list[Item]:
        """What waits, by deadline and then in order of arrival."""
        return [replace(w.item, count=w.left) for node in in_order(self._root) for w in arrivals(node.group)]

    def _earliest(self) -> Node | None:
        node = self._root
        while node is not None and node.left is not None:
            node = node.left
        return node

    def _take(self, node: Node, waiting: WaitingGroup, count: int) -> int:
        node.group.take(waiting, count)
        self._root = pruned(self._root, node.deadline_ns)
        self.records -= count
        return count

    def _first_late(self, start_ns: int) -> tuple[int, int] | None:
        """Algorithm 4: the earliest deadline that cannot be met, and by how much it is missed."""
        node = self._root
        while node is not None:
            if node.left is not None and start_ns > node.left.latest_ns:
                node = node.left
                continue
            start_ns += (node.left.total_ns if node.left else 0) + node.group.total_ns
            if start_ns > node.deadline_ns:
                return node.deadline_ns, start_ns - node.deadline_ns
            node = node.right
        return None

    def _dearest_up_to(self, deadline_ns: int) -> Node:
        """The first node up to a deadline that holds the dearest record up to there."""
        maximum, top, node = 0, self._root, self._root
        while node is not None:
            if deadline_ns < node.deadline_ns:
                node = node.left
                continue
            if node.left is not None and node.left.dearest > maximum:
                maximum, top = node.left.dearest, node.left
            if node.own_dearest() > maximum:
                maximum, top = node.own_dearest(), node
            node = node.right
        assert top is not None, "only asked for a deadline in the tree"
        while top.own_dearest() != maximum or (top.left is not None and top.left.dearest == maximum):
            child = top.left if top.left is not None and top.left.dearest == maximum else top.right
            assert child is not None, "a subtree's dearest is in it"
            top = child
        return top


def too_many(excess_ns: int, cost_ns: int, count: int) -> int:
    """How many of ``count`` equal records must go to save ``excess_ns``; what one by one would shed."""
    return min(count, -(-excess_ns // cost_ns))
