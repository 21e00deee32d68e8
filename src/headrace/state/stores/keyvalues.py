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
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
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
_NO_KEY = object()
_NO_SUBS: OrderedDict[bytes, None] = OrderedDict()
_ENTRY_BYTES = 300
"""What an entry takes besides its bytes, roughly: its place in the dictionary, three objects for them, two tuples."""
Entry = tuple[bytes, int]
"""A value's bytes, and its place among the entries of its name and key: the order in which they came."""
Entries = list[tuple[Flat, Entry]]


class KeyedSlice:
    """The entries of one slice. ``before`` are those that have changed, as they were."""

    __slots__ = ("before", "entries", "number", "packed_bytes", "subs")

    def __init__(self, number: int) -> None:
        self.number = number
        self.entries: dict[Flat, Entry] = {}
        self.before: dict[Flat, Entry | None] = {}
        self.subs: dict[tuple[str, bytes], OrderedDict[bytes, None]] = {}
        # An OrderedDict finds its first item at once; a dict looks at all places that items have left at its front.
        self.packed_bytes = 0


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
        self._parts: dict[int, KeyedSlice] = {}
        self._dirty_bytes = 0
        self._digests: dict[int, Digest] = {}
        self._lent: dict[Flat, tuple[KeyedSlice, Any]] = {}
        self._key: Any = _NO_KEY
        self._packed, self._part = b"", KeyedSlice(-1)
        self.expiry = Expiry(ttl_us or {})
        self._mortal = self.expiry.ttl_us

    def focus(self, key: Key, slice: int) -> None:
        """What follows is about a key, whose slice is known."""
        if key is not self._key:
            self._key, self._packed = key, pack(key, f"step {self._step!r}, key")
            self._part = self._part_of(slice)

    @property
    def slice(self) -> int:
        """That of the key that was asked for last."""
        return self._part.number

    def get(self, name: str, key: Key, sub: Any = None, default: Any = None) -> Any:
        flat, part = self._flat(name, key, sub), self._part
        entry = part.entries.get(flat)
        if entry is None or (name in self._mortal and self._forgotten(part, flat, entry)):
            return default
        value = unpack(undated(entry[0]))
        if self._debug:
            self._lent[flat] = part, value
        return value

    def set(self, name: str, key: Key, sub: Any, value: Any) -> None:
        flat, part = self._flat(name, key, sub), self._part
        packed = pack(value, f"step {self._step!r}, state {name!r}")
        old = part.entries.get(flat)
        if name in self._mortal:
            if old is not None and (sub is not None or self.expiry.over(name, old[0])):
                self._drop(part, flat, old)  # the last of its queue or mapping again: what expires first is in front
                old = None
            packed = self._dated(part, flat, packed)
        self._put(part, flat, old, packed)

    def delete(self, name: str, key: Key, sub: Any = None) -> bool:
        flat, part = self._flat(name, key, sub), self._part
        entry = part.entries.get(flat)
        if entry is None or (name in self._mortal and self._forgotten(part, flat, entry)):
            return False
        self._drop(part, flat, entry)
        return True

    def expire(self) -> bool:
        """Delete some of what has expired; whether there is more of it.

        What has no date, since the state had no time to live when it was set, counts as set by now.
        """
        for slice, flat, at_us in self.expiry.without_date():
            part = self._parts[slice]
            entry = part.entries[flat]
            self._put(part, flat, entry, dated(entry[0], at_us))
        for slice, flat in self.expiry.expired():
            part = self._parts[slice]
            self._drop(part, flat, part.entries[flat])
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

    def all_of(self, name: str) -> Iterator[tuple[int, Key, Any, Any]]:
        """Every (slice, key, sub, value) under a name; used to rebuild timers after a load."""
        return self.all_in(name, self._parts)

    def all_in(self, name: str, slices: Iterable[int]) -> Iterator[tuple[int, Key, Any, Any]]:
        """Like ``all_of``, of some slices only."""
        for slice in slices:
            for (entry, key, sub), (value, _) in self._part_of(slice).entries.items():
                if entry == name:
                    yield slice, unpack(key), unpack(sub), unpack(value)

    def changes(self) -> list[Change]:
        return list(self.swap()())

    def copy_ahead(self) -> None:
        """A swap is quick."""

    def swap(self) -> Pending:
        self._check_unset_mutations()
        self._dirty_bytes = 0
        taken = [(slice, self._parts[slice]) for slice in sorted(self._parts) if self._parts[slice].before]
        swapped = [(slice, *_swapped(part)) for slice, part in taken]
        return lambda: self._changes(swapped)

    @property
    def nbytes(self) -> int:
        return sum(_ENTRY_BYTES * len(part.entries) + part.packed_bytes for part in self._parts.values())

    def dirty_bytes(self) -> int:
        return self._dirty_bytes

    def expect(self, rows: int) -> None:
        """Room is made as rows come."""

    def load(self, slice: int, image: pa.RecordBatch, digest: Digest) -> None:
        self._digests[slice] = digest
        part = self._part_of(slice)
        rows = zip(*(image.column(name).to_pylist() for name in _SCHEMA.names)) if image.num_rows else ()
        for name, key, sub, value, place in sorted(rows, key=lambda row: row[4]):
            part.entries[name, key, sub] = (value, place)
            part.packed_bytes += _size((name, key, sub), value)
            if sub != _NO_SUB:
                part.subs.setdefault((name, key), OrderedDict())[sub] = None
            if name in self._mortal:
                self.expiry.add(slice, (name, key, sub), value)

    def give_away(self, slices: frozenset[int]) -> None:
        for slice in slices:
            self._parts.pop(slice, None)
        self.expiry.forget(slices)
        self._key = _NO_KEY  # its slice may be among them

    def _part_of(self, slice: int) -> KeyedSlice:
        part = self._parts.get(slice)
        if part is None:
            part = self._parts[slice] = KeyedSlice(slice)
        return part

    def _put(self, part: KeyedSlice, flat: Flat, old: Entry | None, stored: bytes) -> None:
        part.before.setdefault(flat, old)
        size = _size(flat, stored)
        self._dirty_bytes += size
        part.packed_bytes += size if old is None else len(stored) - len(old[0])
        self._lent.pop(flat, None)
        if flat[0] in self._mortal:
            if old is not None:
                self.expiry.change(part.number, flat, old[0], stored)
            else:
                self.expiry.add(part.number, flat, stored)
        if flat[2] == _NO_SUB:
            part.entries[flat] = (stored, 0)
            return
        subs = part.subs.setdefault(flat[:2], OrderedDict())
        if old is not None:
            place = old[1]
        else:
            place = part.entries[*flat[:2], next(reversed(subs))][1] + 1 if subs else 0
            subs[flat[2]] = None
        part.entries[flat] = (stored, place)

    def _drop(self, part: KeyedSlice, flat: Flat, entry: Entry) -> None:
        del part.entries[flat]
        part.before.setdefault(flat, entry)
        self._dirty_bytes += ID_BYTES
        part.packed_bytes -= _size(flat, entry[0])
        self._lent.pop(flat, None)
        if flat[0] in self._mortal:
            self.expiry.remove(part.number, flat, entry[0])
        if flat[2] != _NO_SUB:
            subs = part.subs[flat[:2]]
            del subs[flat[2]]
            if not subs:
                del part.subs[flat[:2]]

    def _dated(self, part: KeyedSlice, flat: Flat, packed: bytes) -> bytes:
        """A value with the date of now, or that of its queue's or mapping's last one: one that is set out of order lives as
        long as what it stands behind.
        """
        at_us = self.expiry.now_us
        if flat[2] != _NO_SUB and (subs := part.subs.get(flat[:2])):
            at_us = max(at_us, date_of(part.entries[*flat[:2], next(reversed(subs))][0]) or at_us)
        return dated(packed, at_us) if self.expiry.dates else packed

    def _forgotten(self, part: KeyedSlice, flat: Flat, entry: Entry) -> bool:
        """Whether an entry has expired; then it is deleted."""
        if over := self.expiry.over(flat[0], entry[0]):
            self._drop(part, flat, entry)
        return over

    def _forget_some(self, name: str, key: Key) -> None:
        """Delete what has expired of a queue or mapping: it is in front."""
        subs = self._subs_of(name, key) if name in self._mortal else _NO_SUBS
        while subs:
            flat = (name, self._packed, next(iter(subs)))
            if not self._forgotten(self._part, flat, self._part.entries[flat]):
                return

    def _flat(self, name: str, key: Key, sub: Any) -> Flat:
        self._look_at(key)
        return name, self._packed, _NO_SUB if sub is None else pack(sub)

    def _look_at(self, key: Key) -> None:
        """One record's key is asked for several times in a row."""
        if key is not self._key:
            self.focus(key, self._slices_of([unpack(pack(key, f"step {self._step!r}, key"))])[0])

    def _subs_of(self, name: str, key: Key) -> OrderedDict[bytes, None]:
        self._look_at(key)
        return self._part.subs.get((name, self._packed), _NO_SUBS)

    def _changes(self, swapped: list[tuple[int, Entries, Entries, list[bool]]]) -> list[Change]:
        """Entries as they were and as they are, slice by slice: put into one batch, of which a slice's are a view."""
        befores = _batch([one for _, old, _, _ in swapped for one in old])
        puts = _batch([one for _, _, new, _ in swapped for one in new])
        old_stamps, new_stamps = stamps_of(befores), stamps_of(puts)
        old_ids = befores.column(ID_COLUMNS[0]).to_numpy(), befores.column(ID_COLUMNS[1]).to_numpy()
        changes, was, now = list[Change](), 0, 0
        for slice, old, new, gone in swapped:
            parent = self._digests.get(slice, ZERO_DIGEST)
            digest = plus(parent, total(old_stamps[was : was + len(old)]), -1)
            digest = self._digests[slice] = plus(digest, total(new_stamps[now : now + len(new)]))
            dead = was + np.flatnonzero(gone)
            deletes = id_batch((old_ids[0][dead], old_ids[1][dead]))
            changes.append(Change(slice, puts.slice(now, len(new)), deletes, parent, digest))
            was, now = was + len(old), now + len(new)
        return changes

    def _check_unset_mutations(self) -> None:
        """Debug mode: a value that was read, changed in place and not set would be lost."""
        for flat, (part, value) in self._lent.items():
            entry, name = part.entries.get(flat), flat[0]
            if entry is not None and pack(value) != undated(entry[0]):
                raise StateError(
                    f"step {self._step!r}: state {name!r} of key {unpack(flat[1])!r} was changed in place without set(); "
                    f"call state[{name!r}].set(value) after changing it"
                )
        self._lent.clear()


def _swapped(part: KeyedSlice) -> tuple[Entries, Entries, list[bool]]:
    """What has changed in a slice: as it was, as it is, and what of the first is gone."""
    before, part.before, entries = part.before, {}, part.entries
    old = [(flat, entry) for flat, entry in before.items() if entry is not None]
    new = [(flat, entries[flat]) for flat in before if flat in entries]
    return old, new, [flat not in entries for flat, _ in old]


def _size(flat: Flat, stored: bytes) -> int:
    """The bytes of an entry; those of its name are shared."""
    return len(flat[1]) + len(flat[2]) + len(stored)


def _batch(entries: Entries) -> pa.RecordBatch:
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
