"""Nodes of the deadline tree: groups of waiting records, what a subtree knows of itself, and its balance.

Li 2015, equation 5.5, kept up to date through the rotations of an AVL tree.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.runtime.shedding.deadlines import Item


@dataclass(slots=True)
class WaitingGroup:
    item: Item
    left: int


@dataclass(slots=True)
class Group:
    """Γ_i: what is due at one deadline. Heap entries with nothing left are dropped when they come up."""

    total_ns: int = 0
    cheap: list[tuple[int, int, WaitingGroup]] = field(default_factory=list)
    dear: list[tuple[int, int, WaitingGroup]] = field(default_factory=list)

    def add(self, item: Item, order: int) -> None:
        waiting = WaitingGroup(item, item.count)
        heapq.heappush(self.cheap, (item.burden, order, waiting))
        heapq.heappush(self.dear, (-item.burden, order, waiting))
        self.total_ns += item.count * item.cost_ns

    def take(self, waiting: WaitingGroup, count: int) -> None:
        waiting.left -= count
        self.total_ns -= count * waiting.item.cost_ns

    def dearest(self) -> WaitingGroup | None:
        return _live_top(self.dear)

    def cheapest(self) -> WaitingGroup | None:
        return _live_top(self.cheap)


def _live_top(heap: list[tuple[int, int, WaitingGroup]]) -> WaitingGroup | None:
    while heap and not heap[0][2].left:
        heapq.heappop(heap)
    return heap[0][2] if heap else None


class Node:
    """A deadline with its group, and of its subtree: cΣ, c_max and φ (equation 5.5)."""

    __slots__ = ("deadline_ns", "dearest", "group", "height", "latest_ns", "left", "right", "total_ns")

    def __init__(self, deadline_ns: int) -> None:
        self.deadline_ns, self.group = deadline_ns, Group()
        self.left: Node | None = None
        self.right: Node | None = None
        self.height, self.total_ns, self.dearest, self.latest_ns = 1, 0, 0, math.inf

    def own_dearest(self) -> int:
        waiting = self.group.dearest()
        return waiting.item.burden if waiting else 0

    def refresh(self) -> None:
        left, right = self.left, self.right
        before_ns = (left.total_ns if left else 0) + self.group.total_ns
        self.height = 1 + max(_height(left), _height(right))
        self.total_ns = before_ns + (right.total_ns if right else 0)
        self.dearest = max(self.own_dearest(), left.dearest if left else 0, right.dearest if right else 0)
        self.latest_ns = min(
            left.latest_ns if left else math.inf,
            self.deadline_ns - before_ns,
            (right.latest_ns if right else math.inf) - before_ns,
        )


def _height(node: Node | None) -> int:
    return node.height if node else 0


def in_order(node: Node | None) -> Iterator[Node]:
    if node is not None:
        yield from in_order(node.left)
        yield node
        yield from in_order(node.right)


def arrivals(group: Group) -> list[WaitingGroup]:
    return [waiting for _, _, waiting in sorted(group.cheap, key=lambda entry: entry[1]) if waiting.left]


def inserted(node: Node | None, item: Item, order: int) -> Node:
    deadline_ns = item.deadline_us * 1000
    if node is None:
        node = Node(deadline_ns)
    if deadline_ns < node.deadline_ns:
        node.left = inserted(node.left, item, order)
    elif deadline_ns > node.deadline_ns:
        node.right = inserted(node.right, item, order)
    else:
        node.group.add(item, order)
    return _balanced(node)


def pruned(node: Node | None, deadline_ns: int) -> Node | None:
    """The tree after the group of a deadline has changed: its node goes when nothing is left in it."""
    if node is None:
        return None
    if deadline_ns < node.deadline_ns:
        node.left = pruned(node.left, deadline_ns)
    elif deadline_ns > node.deadline_ns:
        node.right = pruned(node.right, deadline_ns)
    elif not node.group.total_ns:
        return _joined(node.left, node.right)
    return _balanced(node)


def _joined(left: Node | None, right: Node | None) -> Node | None:
    """Two neighbouring subtrees as one, under the first node of the right one."""
    if right is None:
        return left
    first, rest = _without_first(right)
    first.left, first.right = left, rest
    return _balanced(first)


def _without_first(node: Node) -> tuple[Node, Node | None]:
    if node.left is None:
        return node, node.right
    first, node.left = _without_first(node.left)
    return first, _balanced(node)


def _balanced(node: Node) -> Node:
    """AVL: rotate when one side is two higher; heights and sums of the children are up to date."""
    lean = _height(node.left) - _height(node.right)
    if lean > 1 and node.left is not None:
        if _height(node.left.left) < _height(node.left.right):
            node.left = _rotated_left(node.left)
        return _rotated_right(node)
    if lean < -1 and node.right is not None:
        if _height(node.right.right) < _height(node.right.left):
            node.right = _rotated_right(node.right)
        return _rotated_left(node)
    node.refresh()
    return node


def _rotated_left(node: Node) -> Node:
    top = node.right
    assert top is not None
    node.right, top.left = top.left, node
    node.refresh()
    top.refresh()
    return top


def _rotated_right(node: Node) -> Node:
    top = node.left
    assert top is not None
    node.left, top.right = top.right, node
    node.refresh()
    top.refresh()
    return top
