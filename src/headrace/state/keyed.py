"""The store behind ``process`` steps: a user's values, queues and mappings per key, and timers.

Everything is one flat set of entries ``(name, key, sub) → value``: a queue's elements and a
mapping's items are entries of their own, so an append to a long queue changes one entry, not the
queue. Values are plain data; what is read must be ``set`` again to change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import StateError
from headrace.state.changes import (
    ZERO_DIGEST,
    Change,
    Digest,
    id_batch,
    no_ids,
    plus,
    total,
    with_ids,
)
from headrace.state.grouping import Key
from headrace.state.hashing import hash_columns, row_stamps
from headrace.state.plain import pack, unpack

_SCHEMA = pa.schema([("name", pa.string()), ("key", pa.binary()), ("sub", pa.binary()), ("value", pa.binary())])
Flat = tuple[str, Key, Any]


class KeyedStore:
    """Flat entries by slice, kept as bytes: what a user changes in place cannot leak into state."""

    def __init__(self, step: str, slices_of: Callable[[list[Key]], list[int]], *, debug: bool = False) -> None:
        self._step, self._slices_of, self._debug = step, slices_of, debug
        self._entries: dict[Flat, bytes] = {}
        self._before: dict[Flat, bytes | None] = {}
        self._subs: dict[tuple[str, Key], dict[Any, None]] = {}
        self._digests: dict[int, Digest] = {}
        self._lent: dict[Flat, Any] = {}

    def get(self, name: str, key: Key, sub: Any = None, default: Any = None) -> Any:
        flat = (name, key, sub)
        packed = self._entries.get(flat)
        if packed is None:
            return default
        value = unpack(packed)
        if self._debug:
            self._lent[flat] = value
        return value

    def set(self, name: str, key: Key, sub: Any, value: Any) -> None:
        flat = (name, key, sub)
        packed = pack(value, f"step {self._step!r}, state {name!r}")
        self._before.setdefault(flat, self._entries.get(flat))
        self._entries[flat] = packed
        self._lent.pop(flat, None)
        if sub is not None:
            self._subs.setdefault((name, key), {})[sub] = None

    def delete(self, name: str, key: Key, sub: Any = None) -> bool:
        flat = (name, key, sub)
        packed = self._entries.pop(flat, None)
        if packed is None:
            return False
        self._before.setdefault(flat, packed)
        self._lent.pop(flat, None)
        if sub is not None:
            subs = self._subs[name, key]
            del subs[sub]
            if not subs:
                del self._subs[name, key]
        return True

    def subs(self, name: str, key: Key) -> list[Any]:
        """The sub-keys of a queue or mapping, oldest first."""
        return list(self._subs.get((name, key), ()))

    def count(self, name: str, key: Key) -> int:
        return len(self._subs.get((name, key), ()))

    def first_sub(self, name: str, key: Key) -> Any:
        return next(iter(self._subs.get((name, key), ())), None)

    def last_sub(self, name: str, key: Key) -> Any:
        return next(reversed(self._subs.get((name, key), {})), None)

    def all_of(self, name: str) -> Iterator[tuple[Key, Any, Any]]:
        """Every (key, sub, value) under a name; used to rebuild timers after a load."""
        for (entry, key, sub), value in self._entries.items():
            if entry == name:
                yield key, sub, unpack(value)

    def changes(self) -> list[Change]:
        self._check_unset_mutations()
        by_slice: dict[int, list[Flat]] = {}
        keys = list({flat[1]: None for flat in self._before})
        slice_of = dict(zip(keys, self._slices_of(keys))) if keys else {}
        for flat in self._before:
            by_slice.setdefault(slice_of[flat[1]], []).append(flat)
        changes = [self._change(slice, flats) for slice, flats in sorted(by_slice.items())]
        self._before.clear()
        return changes

    def load(self, slice: int, image: pa.RecordBatch, digest: Digest) -> None:
        self._digests[slice] = digest
        rows = zip(*(image.column(name).to_pylist() for name in _SCHEMA.names)) if image.num_rows else ()
        loaded = [((name, unpack(key), unpack(sub)), value) for name, key, sub, value in rows]
        for flat, value in sorted(loaded, key=lambda entry: (type(entry[0][2]).__name__, entry[0][2] or 0)):
            self._entries[flat] = value
            if flat[2] is not None:
                self._subs.setdefault((flat[0], flat[1]), {})[flat[2]] = None

    def _change(self, slice: int, flats: list[Flat]) -> Change:
        old = [(flat, value) for flat in flats if (value := self._before[flat]) is not None]
        new = [(flat, self._entries[flat]) for flat in flats if flat in self._entries]
        digest = self._digests.get(slice, ZERO_DIGEST)
        deletes, puts = no_ids(), _batch(new)
        if old:
            before = _batch(old)
            digest = plus(digest, total(row_stamps(before)), -1)
            gone = [i for i, (flat, _) in enumerate(old) if flat not in self._entries]
            taken = before.take(pa.array(gone, pa.int64()))
            deletes = id_batch((taken.column(4).to_numpy(), taken.column(5).to_numpy()))
        if new:
            digest = plus(digest, total(row_stamps(puts)))
        self._digests[slice] = digest
        return Change(slice, puts, deletes, digest)

    def _check_unset_mutations(self) -> None:
        """Debug mode: a value that was read, changed in place and not set would be lost."""
        for (name, key, sub), value in self._lent.items():
            packed = self._entries.get((name, key, sub))
            if packed is not None and pack(value) != packed:
                raise StateError(
                    f"step {self._step!r}: state {name!r} of key {key!r} was changed in place without set(); "
                    f"call state[{name!r}].set(value) after changing it"
                )
        self._lent.clear()


def _batch(entries: list[tuple[Flat, bytes]]) -> pa.RecordBatch:
    columns = [
        pa.array([flat[0] for flat, _ in entries], pa.string()),
        pa.array([pack(flat[1]) for flat, _ in entries], pa.binary()),
        pa.array([pack(flat[2]) for flat, _ in entries], pa.binary()),
        pa.array([value for _, value in entries], pa.binary()),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
    if not entries:
        empty = np.zeros(0, np.uint64)
        return with_ids(batch, (empty, empty))
    return with_ids(batch, (hash_columns(columns[:3], 0), hash_columns(columns[:3], 1)))
