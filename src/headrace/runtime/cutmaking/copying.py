"""A subtask and the copies of its state: where it loads from, and where what it writes is copied to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

import pyarrow as pa

from headrace.runtime.plan import Ticket
from headrace.state.copies.feeding import Feeder, Holder, by_node
from headrace.state.copies.nearest import Loading, NearestStorage, Peer
from headrace.state.copies.nodestore import NodeStore
from headrace.state.copies.placement import CopyNode
from headrace.state.durable.changes import Store
from headrace.state.durable.loading import load_slices
from headrace.state.durable.manifest import SliceVersion
from headrace.state.durable.storage import Storage


class Keeper(Holder, Peer, Protocol):
    """A connection to a node's keeper, to be used by one thread."""


class Near(Protocol):
    """The node that a subtask is on, and the way to others."""

    @property
    def node(self) -> CopyNode: ...

    @property
    def store(self) -> NodeStore: ...

    def connect(self, node: CopyNode) -> Keeper: ...


def load_nearest(
    storage: Storage, ticket: Ticket, near: Near | None, stores: Mapping[str, tuple[Store, Sequence[int]]]
) -> Loading:
    """Fill stores with the slices of a ticket's base, each block from the nearest copy, and say where they came from."""
    nearest, keepers = NearestStorage(storage, near.store if near is not None else None), dict[int, Keeper]()

    def connected(numbers: Iterable[int]) -> list[Keeper]:
        if near is None:
            return []
        wanted = [at for at in numbers if ticket.nodes[at] != near.node]
        for at in wanted:
            if at not in keepers:
                keepers[at] = near.connect(ticket.nodes[at])
        return [keepers[at] for at in wanted]

    def read(step: str, slice: int, version: SliceVersion) -> pa.RecordBatch:
        peers = connected(ticket.holders.get(slice, ()))
        return nearest.read(step, slice, version, peers, lambda: connected(range(len(ticket.nodes))))

    try:
        load_slices(storage, ticket.entry, ticket.base, stores, read)
    finally:
        for keeper in keepers.values():
            keeper.close()
    return nearest.loading


def feeder_of(
    storage: Storage, ticket: Ticket, near: Near | None, slices: Mapping[str, Sequence[int]]
) -> Feeder | None:
    """Copies what a subtask writes to its own node and to those that keep copies of its slices; None without a node.

    ``slices`` are the subtask's, by the names of its stores in manifests.
    """
    if near is None:
        return None
    keys = [(store, slice) for store, its in slices.items() for slice in its]
    standbys = [
        (partial(near.connect, ticket.nodes[at]), copied) for at, copied in sorted(by_node(ticket.backups).items())
    ]
    return Feeder(ticket.attempt, storage, near.store, partial(near.connect, near.node), standbys, keys)
