"""A subtask and the copies of its state: where it loads from, and where what it writes is copied to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from headrace.errors import CorruptionError
from headrace.runtime.cutmaking.arrivals import Image
from headrace.runtime.plan import Ticket
from headrace.state.copies.feeding import Copier, Feeder, Holder, by_node
from headrace.state.copies.nearest import Decode, Loading, NearestStorage, Peer
from headrace.state.copies.nodestore import NodeStore
from headrace.state.copies.placement import CopyNode
from headrace.state.durable.changes import Store
from headrace.state.durable.loading import load_slices, read_manifest, read_slice, read_slice_from
from headrace.state.durable.manifest import Manifest, SliceKey, SliceVersion
from headrace.state.durable.storage import Storage
from headrace.tokens import Token


class Keeper(Holder, Peer, Protocol):
    """A connection to a node's keeper, to be used by one thread."""


class Near(Protocol):
    """The node that a subtask is on, and the way to others."""

    @property
    def node(self) -> CopyNode: ...

    @property
    def store(self) -> NodeStore: ...

    def connect(self, node: CopyNode) -> Keeper: ...


class NearReader:
    """Reads slices of a ticket's base, each block from the nearest copy. ``decode`` makes rows of blocks."""

    def __init__(self, storage: Storage, ticket: Ticket, near: Near | None, decode: Decode = read_slice) -> None:
        self._ticket, self._near = ticket, near
        self._nearest = NearestStorage(storage, near.store if near is not None else None, decode)
        self._keepers = dict[int, Keeper]()

    def __call__(self, step: str, slice: int, version: SliceVersion) -> Any:
        peers = self._connected(self._ticket.holders.get(slice, ()))
        return self._nearest.read(step, slice, version, peers, lambda: self._connected(range(len(self._ticket.nodes))))

    def close(self) -> Loading:
        """That is all; returns where it came from."""
        for keeper in self._keepers.values():
            keeper.close()
        return self._nearest.loading

    def _connected(self, numbers: Iterable[int]) -> list[Keeper]:
        near = self._near
        if near is None:
            return []
        wanted = [at for at in numbers if self._ticket.nodes[at] != near.node]
        for at in wanted:
            if at not in self._keepers:
                self._keepers[at] = near.connect(self._ticket.nodes[at])
        return [self._keepers[at] for at in wanted]


class NearSlices:
    """Reads slices that a cut gives to a subtask: from the own node if it has them, else from the checkpoint, and what that
    has not as it was written from any node. ``decode`` makes rows of blocks, ``add`` of rows and the blocks since.
    """

    def __init__(
        self, storage: Storage, near: Near | None = None, nodes: Sequence[CopyNode] = (),
        decode: Decode = read_slice, add: Callable[..., Any] = read_slice_from,
    ) -> None:  # fmt: skip
        self._storage, self._near, self._nodes, self._decode, self._add = storage, near, nodes, decode, add

    def manifest(self, entry: int, version: Token) -> Manifest:
        return read_manifest(self._storage, entry, version)

    def slice(self, step: str, slice: int, version: SliceVersion, known: Image[Any] | None) -> Any:
        if known is not None:
            with suppress(CorruptionError):  # who has it as it should be is found out below
                return self._add(self._storage, step, slice, known.version, known.rows, version)
        near = self._near
        keepers = list[Keeper]()

        def others() -> list[Keeper]:
            if near is not None:
                keepers.extend(near.connect(node) for node in self._nodes if node != near.node)
            return keepers

        try:
            own = near.store if near is not None else None
            return NearestStorage(self._storage, own, self._decode).read(step, slice, version, (), others)
        finally:
            for keeper in keepers:
                keeper.close()


def load_nearest(
    storage: Storage, ticket: Ticket, near: Near | None, stores: Mapping[str, tuple[Store, Sequence[int]]]
) -> Loading:
    """Fill stores with the slices of a ticket's base, each block from the nearest copy, and say where they came from."""
    reader = NearReader(storage, ticket, near)
    try:
        load_slices(storage, ticket.entry, ticket.base, stores, reader)
    finally:
        loading = reader.close()
    return loading


def copier_of(storage: Storage, ticket: Ticket, near: Near, keys: Sequence[SliceKey]) -> Copier:
    """Copies what a subtask with these slices writes to its own node and to those that keep copies of them."""
    standbys = [
        (partial(near.connect, ticket.nodes[at]), copied) for at, copied in sorted(by_node(ticket.backups).items())
    ]
    return Copier(ticket.attempt, storage, near.store, partial(near.connect, near.node), standbys, keys)


def feeder_of(
    storage: Storage, ticket: Ticket, near: Near | None, slices: Mapping[str, Sequence[int]]
) -> Feeder | None:
    """The same in a thread; None without a node. ``slices`` are the subtask's, by the names of its stores in manifests."""
    if near is None:
        return None
    keys = [(store, slice) for store, its in slices.items() for slice in its]
    return Feeder(lambda: copier_of(storage, ticket, near, keys), keys)
