"""Where each partition of a source goes on, in the source's state.

An offset is one entry, written when it has changed. Sets in it are kept item by item: of the names of a thousand
files that were read, a cut writes those that are new.
"""

from __future__ import annotations

from headrace.connect.source import Offset
from headrace.graph.windowing import NEVER_US
from headrace.state.stores.keyvalues import KeyedStore

POSITION = "position"
_ITEMS = "offset."
"""Begins the names of entries that are items of a set, before the set's own."""


class Positions:
    """Offsets and newest event times, by partition."""

    def __init__(self, store: KeyedStore) -> None:
        self._store = store
        self._noted: dict[tuple[int, str], frozenset[object]] = {}

    def of(self, partition: int) -> tuple[Offset | None, int]:
        """Where a partition goes on, None at its start, and the newest event time that it has had."""
        kept = self._store.get(POSITION, partition)
        if kept is None:
            return None, NEVER_US
        offset = dict(kept["offset"])
        for name in kept.get("sets", ()):
            items = frozenset(item for (item,) in self._store.subs(_ITEMS + name, partition))
            self._noted[partition, name] = items
            offset[name] = set(items)
        return offset, kept.get("newest_us", NEVER_US)

    def note(self, partition: int, offset: Offset, newest_us: int) -> None:
        """How far a partition has come by a cut."""
        sets = {name: value for name, value in offset.items() if isinstance(value, set | frozenset)}
        position = {"offset": {name: offset[name] for name in offset.keys() - sets.keys()}, "newest_us": newest_us}
        if sets:
            position["sets"] = sorted(sets)
        if self._store.get(POSITION, partition) != position:
            self._store.set(POSITION, partition, None, position)
        for name, items in sets.items():
            known = self._noted.get((partition, name), frozenset())
            for item in items - known:
                self._store.set(_ITEMS + name, partition, (item,), True)
            for item in known - items:
                self._store.delete(_ITEMS + name, partition, (item,))
            if items != known:
                self._noted[partition, name] = frozenset(items)


def set_of(entry: str) -> str | None:
    """The set of an offset that entries of a name are items of; None of other entries."""
    return entry.removeprefix(_ITEMS) if entry.startswith(_ITEMS) else None
