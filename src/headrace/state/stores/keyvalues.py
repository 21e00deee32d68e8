"""The store behind ``process`` steps: a user's values, queues and mappings per key, and timers.

Everything is one flat set of entries ``(name, key, sub) → value``: a queue's elements and a
mapping's items are entries of their own, so an append to a long queue changes one entry, not the
queue. Values are plain data; what is read must be ``set`` again to change. Keys and sub-keys are
told apart by their stored bytes, so that an entry is the same one before and after a restore.

Entries of names that have a time to live are gone for whoever finds them expired, and for all who come after
(``expiry``); those that nobody looks for are deleted by ``expire``, some at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import StateError
from headrace.state.durable.changes import (
    ID_BYTES,
    ID_COLUMNS,
    ZERO_DIGEST,
    Change,
    Digest,
    Pending,
    id_batch,
    ids_of,
    plus,
    split_by_slice,
    stamps_of,
    total,
    with_ids,
)
from headrace.state.grouping import Key
from headrace.state.plain import pack, unpack
from headrace.state.stores.expiry import Expiry, Flat, date_of, dated, undated

_SCHEMA = pa.schema(
    [("name", pa.string()), ("key", pa.binary()), ("sub", pa.binary()), ("value", pa.binary()), ("place", pa.int64())]
)
_NO_SUB = pack(None)
_NO_SUBS: OrderedDict[bytes, None] = OrderedDict()
_ENTRY_BYTES = 300
"""What an entry takes besides its bytes, roughly: its place in the dictionary, three objects for them, two tuples."""
Entry = tuple[bytes, int]
"""A value's bytes, and its place among the entries of its name and key: the order in which they came."""


class KeyedStore:
    """Flat entries by slice, kept as bytes: what a user changes in place cannot leak into state."""

    def __init__(
        self,
        step: str,
        slices_of: Callable[[list[Key]], list[int]],
        *,
        ttl_us: Mapping[str, int] | None = None,
        debug: bool = False,
    ) -> None:
        self._step, self._slices_of, self._debug = step, slices_of, debug
        self._entries: dict[Flat, Entry] = {}
        self._before: dict[Flat, Entry | None] = {}
        self._dirty_bytes = self._packed_bytes = 0
        self._subs: dict[tuple[str, bytes], OrderedDict[bytes, None]] = {}
        # An OrderedDict finds its first item at once; a dict looks at all places that items have left at its front.
        self._digests: dict[int, Digest] = {}
        self._lent: dict[Flat, Any] = {}
        self._key: tuple[Key, bytes] = (None, _NO_SUB)
        self.expiry = Expiry(ttl_us or {})
        self._mortal = self.expiry.ttl_us

    def get(self, name: str, key: Key, sub: Any = None, default: Any = None) -> Any:
        flat = self._flat(name, key, sub)
        entry = self._entries.get(flat)
        if entry is None or (name in self._mortal and self._forgotten(flat, entry)):
            return default
        value = unpack(undated(entry[0]))
        if self._debug:
            self._lent[flat] = value
        return value

    def set(self, name: str, key: Key, sub: Any, value: Any) -> None:
        flat = self._flat(name, key, sub)
        packed = pack(value, f"step {self._step!r}, state {name!r}")
        old = self._entries.get(flat)
        if name in self._mortal:
            if old is not None and (sub is not None or self.expiry.over(name, old[0])):
                self._drop(flat, old)  # the last of its queue or mapping again: what expires first is in front
                old = None
            packed = self._dated(flat, packed)
        self._put(flat, old, packed)

    def delete(self, name: str, key: Key, sub: Any = None) -> bool:
        flat = self._flat(name, key, sub)
        entry = self._entries.get(flat)
        if entry is None or (name in self._mortal and self._forgotten(flat, entry)):
            return False
        self._drop(flat, entry)
        return True

    def expire(self) -> bool:
        """Delete some of what has expired; whether there is more of it.

        What has no date, since the state had no time to live when it was set, counts as set by now.
        """
        for flat, at_us in self.expiry.without_date():
            entry = self._entries[flat]
            self._put(flat, entry, dated(entry[0], at_us))
        for flat in self.expiry.expired():
            self._drop(flat, self._entries[flat])
        return self.expiry.waiting

    def subs(self, name: str, key: Key) -> list[Any]:
        """The sub-keys of a mapping, or of what is left of a queue, oldest first."""
        self._forget_some(name, key)
        return [unpack(sub) for sub in self._subs_of(name, key)]

    def count(self, name: str, key: Key) -> int:
        self._forget_some(name, key)
        return len(self._subs_of(name, key))

    def first_sub(self, name: str, key: Key) -> Any:
        self._forget_some(name, key)
        return unpack(next(iter(self._subs_of(name, key)), _NO_SUB))

    def last_sub(self, name: str, key: Key) -> Any:
        self._forget_some(name, key)
        return unpack(next(reversed(self._subs_of(name, key)), _NO_SUB))

    def all_of(self, name: str) -> Iterator[tuple[Key, Any, Any]]:
        """Every (key, sub, value) under a name; used to rebuild timers after a load."""
        for (entry, key, sub), (value, _) in self._entries.items():
            if entry == name:
                yield unpack(key), unpack(sub), unpack(value)

    def changes(self) -> list[Change]:
        return list(self.swap()())

    def copy_ahead(self) -> None:
        """A swap is quick."""

    def swap(self) -> Pending:
        self._check_unset_mutations()
        before, self._before, self._dirty_bytes = self._before, {}, 0
        entries = self._entries
        old = [(flat, entry) for flat, entry in before.items() if entry is not None]
        new = [(flat, entries[flat]) for flat in before if flat in entries]
        gone = np.array([flat not in entries for flat, _ in old], bool)
        return lambda: self._changes(old, new, gone)

    @property
    def nbytes(self) -> int:
        return _ENTRY_BYTES * len(self._entries) + self._packed_bytes

    def dirty_bytes(self) -> int:
        return self._dirty_bytes

    def expect(self, rows: int) -> None:
        """Room is made as rows come."""

    def load(self, slice: int, image: pa.RecordBatch, digest: Digest) -> None:
        self._digests[slice] = digest
        rows = zip(*(image.column(name).to_pylist() for name in _SCHEMA.names)) if image.num_rows else ()
        for name, key, sub, value, place in sorted(rows, key=lambda row: row[4]):
            self._entries[name, key, sub] = (value, place)
            self._packed_bytes += _size((name, key, sub), value)
            if sub != _NO_SUB:
                self._subs.setdefault((name, key), OrderedDict())[sub] = None
            if name in self._mortal:
                self.expiry.add((name, key, sub), value)

    def give_away(self, slices: frozenset[int]) -> None:
        keys = list({flat[1]: None for flat in self._entries})
        gone = {key for key, slice in zip(keys, self._slices_of_packed(keys)) if slice in slices}
        for flat in [flat for flat in self._entries if flat[1] in gone]:
            stored, _ = self._entries.pop(flat)
            self._packed_bytes -= _size(flat, stored)
            if flat[0] in self._mortal:
                self.expiry.remove(flat, stored)
        for name_key in [name_key for name_key in self._subs if name_key[1] in gone]:
            del self._subs[name_key]

    def all_in(self, name: str, slices: frozenset[int]) -> Iterator[tuple[Key, Any, Any]]:
        """Like ``all_of``, of some slices only."""
        found = [(key, sub, value) for (entry, key, sub), (value, _) in self._entries.items() if entry == name]
        of = self._slices_of_packed([key for key, _, _ in found])
        for (key, sub, value), slice in zip(found, of):
            if slice in slices:
                yield unpack(key), unpack(sub), unpack(value)

    def _put(self, flat: Flat, old: Entry | None, stored: bytes) -> None:
        self._before.setdefault(flat, old)
        size = _size(flat, stored)
        self._dirty_bytes += size
        self._packed_bytes += size if old is None else len(stored) - len(old[0])
        self._lent.pop(flat, None)
        if flat[0] in self._mortal:
            if old is not None:
                self.expiry.change(flat, old[0], stored)
            else:
                self.expiry.add(flat, stored)
        if flat[2] == _NO_SUB:
            self._entries[flat] = (stored, 0)
            return
        subs = self._subs.setdefault(flat[:2], OrderedDict())
        if old is not None:
            place = old[1]
        else:
            place = self._entries[*flat[:2], next(reversed(subs))][1] + 1 if subs else 0
            subs[flat[2]] = None
        self._entries[flat] = (stored, place)

    def _drop(self, flat: Flat, entry: Entry) -> None:
        del self._entries[flat]
        self._before.setdefault(flat, entry)
        self._dirty_bytes += ID_BYTES
        self._packed_bytes -= _size(flat, entry[0])
        self._lent.pop(flat, None)
        if flat[0] in self._mortal:
            self.expiry.remove(flat, entry[0])
        if flat[2] != _NO_SUB:
            subs = self._subs[flat[:2]]
            del subs[flat[2]]
            if not subs:
                del self._subs[flat[:2]]

    def _dated(self, flat: Flat, packed: bytes) -> bytes:
        """A value with the date of now, or that of its queue's or mapping's last one: one that is set out of order lives as
        long as what it stands behind.
        """
        at_us = self.expiry.now_us
        if flat[2] != _NO_SUB and (subs := self._subs.get(flat[:2])):
            at_us = max(at_us, date_of(self._entries[*flat[:2], next(reversed(subs))][0]) or at_us)
        return dated(packed, at_us) if self.expiry.dates else packed

    def _forgotten(self, flat: Flat, entry: Entry) -> bool:
        """Whether an entry has expired; then it is deleted."""
        if over := self.expiry.over(flat[0], entry[0]):
            self._drop(flat, entry)
        return over

    def _forget_some(self, name: str, key: Key) -> None:
        """Delete what has expired of a queue or mapping: it is in front."""
        subs = self._subs_of(name, key) if name in self._mortal else _NO_SUBS
        while subs:
            flat = (name, self._packed(key), next(iter(subs)))
            if not self._forgotten(flat, self._entries[flat]):
                return

    def _flat(self, name: str, key: Key, sub: Any) -> Flat:
        return name, self._packed(key), _NO_SUB if sub is None else pack(sub)

    def _packed(self, key: Key) -> bytes:
        """The key's bytes; one record's key is asked for several times in a row."""
        if key is not self._key[0]:
            self._key = (key, pack(key, f"step {self._step!r}, key"))
        return self._key[1]

    def _subs_of(self, name: str, key: Key) -> OrderedDict[bytes, None]:
        return self._subs.get((name, self._packed(key)), _NO_SUBS)

    def _changes(
        self, old: list[tuple[Flat, Entry]], new: list[tuple[Flat, Entry]], gone: npt.NDArray[np.bool_]
    ) -> list[Change]:
        """Entries as they were and as they are, by slice: put in order once, so that a slice's are a view of all."""
        befores, puts = _batch(old), _batch(new)
        old_stamps, new_stamps = stamps_of(befores), stamps_of(puts)
        old_at, new_at = (dict(split_by_slice(self._slices(entries))) for entries in (old, new))
        changes, begin, nothing = list[Change](), 0, np.zeros(0, np.int64)
        ordered = puts.take(pa.array(np.concatenate([nothing, *new_at.values()])))
        old_ids = befores.column(ID_COLUMNS[0]).to_numpy(), befores.column(ID_COLUMNS[1]).to_numpy()
        for slice in sorted(old_at.keys() | new_at.keys()):
            was, now = old_at.get(slice, nothing), new_at.get(slice, nothing)
            parent = self._digests.get(slice, ZERO_DIGEST)
            digest = plus(parent, total(old_stamps[was]), -1)
            digest = self._digests[slice] = plus(digest, total(new_stamps[now]))
            dead = was[gone[was]]
            deletes = id_batch((old_ids[0][dead], old_ids[1][dead]))
            changes.append(Change(slice, ordered.slice(begin, len(now)), deletes, parent, digest))
            begin += len(now)
        return changes

    def _slices(self, entries: list[tuple[Flat, Entry]]) -> npt.NDArray[np.uint16]:
        keys = list({flat[1]: None for flat, _ in entries})
        slice_of = dict(zip(keys, self._slices_of_packed(keys)))
        return np.array([slice_of[flat[1]] for flat, _ in entries], np.uint16)

    def _slices_of_packed(self, keys: list[bytes]) -> list[int]:
        return self._slices_of([unpack(key) for key in keys]) if keys else []

    def _check_unset_mutations(self) -> None:
        """Debug mode: a value that was read, changed in place and not set would be lost."""
        for flat, value in self._lent.items():
            entry, name = self._entries.get(flat), flat[0]
            if entry is not None and pack(value) != undated(entry[0]):
                raise StateError(
                    f"step {self._step!r}: state {name!r} of key {unpack(flat[1])!r} was changed in place without set(); "
                    f"call state[{name!r}].set(value) after changing it"
                )
        self._lent.clear()


def _size(flat: Flat, stored: bytes) -> int:
    """The bytes of an entry; those of its name are shared."""
    return len(flat[1]) + len(flat[2]) + len(stored)


def _batch(entries: list[tuple[Flat, Entry]]) -> pa.RecordBatch:
    columns = [
        pa.array([flat[0] for flat, _ in entries], pa.string()),
        pa.array([flat[1] for flat, _ in entries], pa.binary()),
        pa.array([flat[2] for flat, _ in entries], pa.binary()),
        pa.array([value for _, (value, _) in entries], pa.binary()),
        pa.array([place for _, (_, place) in entries], pa.int64()),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
    if not entries:
        empty = np.zeros(0, np.uint64)
        return with_ids(batch, (empty, empty))
    return with_ids(batch, ids_of(columns[:3]))
