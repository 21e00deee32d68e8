"""Copies of state that executors have, for the driver: to mend a checkpoint while its job runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from headrace.channel.keeping.keeperclient import KeeperClient
from headrace.channel.keys import Address
from headrace.state.copies.placement import CopyNode
from headrace.state.durable.segments import BlockRef

_PATIENCE_S = 2.0


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
