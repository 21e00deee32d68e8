"""Copies of state that executors have, for the driver: to mend a checkpoint while its job runs, and to tell how far they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from headrace.channel.keeping.keeperclient import KeeperClient
from headrace.channel.keys import Address
from headrace.state.copies.placement import CopyNode
from headrace.state.durable.manifest import SliceKey
from headrace.state.durable.segments import BlockRef

_PATIENCE_S = 2.0
_ASK_EVERY_S = 1.0


class FarCopies:
    """Asks the keepers of the executors that take part now, one after the other."""

    def __init__(self, address: Address, nodes: Callable[[], Sequence[CopyNode]]) -> None:
        self._address, self._nodes = address, nodes

    def bodies(self, block: BlockRef) -> Iterator[bytes]:
        for node in self._nodes():
            keeper = KeeperClient(node, self._address, _PATIENCE_S)
            try:
                (body,) = keeper.get([block])
            finally:
                keeper.close()
            if body is not None:
                yield body


Expected = Mapping[CopyNode, Sequence[SliceKey]]
"""The slices that each node is to have."""


class CopyWatch:
    """A thread that asks keepers how far they are, each about the slices that it is to have.

    ``cut`` is the one up to which all of them have all; None if some lack something, or there are none.
    """

    def __init__(self, connect: Callable[[CopyNode], KeeperClient], every_s: float = _ASK_EVERY_S) -> None:
        self._connect, self._every_s = connect, every_s
        self._expected: Expected = {}
        self._keepers: dict[CopyNode, KeeperClient] = {}
        self._closing, self._thread = threading.Event(), threading.Thread(target=self._watch, name="headrace-copywatch")
        self._thread.daemon = True
        self.cut: int | None = None

    def expect(self, expected: Expected) -> None:
        """From now on nodes are to have these; the first call begins to ask."""
        if expected != self._expected:
            self._expected, self.cut = expected, None
        if expected and not self._thread.is_alive() and not self._closing.is_set():
            self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(2 * _PATIENCE_S)

    def _watch(self) -> None:
        while not self._closing.wait(self._every_s):
            expected = self._expected
            cuts = [self._ask(node, slices) for node, slices in expected.items()]
            if expected is self._expected:
                self.cut = None if None in cuts else min((cut for cut in cuts if cut is not None), default=None)
            for node in self._keepers.keys() - expected.keys():
                self._keepers.pop(node).close()
        for keeper in self._keepers.values():
            keeper.close()

    def _ask(self, node: CopyNode, slices: Sequence[SliceKey]) -> int | None:
        if node not in self._keepers:
            self._keepers[node] = self._connect(node)
        return self._keepers[node].complete_to(slices)
