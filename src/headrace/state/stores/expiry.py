"""When entries of keyed state expire: a time to live, counted from when an entry was last set.

An entry carries its date in front of its bytes, so that whoever restores it, or gets its slice, knows when it goes; and
since it is the date and not the end that is kept, another time to live holds for what is there already. Entries that go
at about the same time lie in one bucket: setting one again moves it, and nothing is left behind of those that are
deleted. A bucket keeps them by slice, and there are some hundred buckets at most, however many entries: slices that are
given away are forgotten at once. (Flink and Spark count wall time here. This is the time of records, as for windows and timers, so that the
answers are the same in every mode and after every restart.)
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterator, Mapping

from headrace.graph.windowing import FOREVER_US, IDLE_US, NEVER_US

Flat = tuple[str, bytes, bytes]
"""The name, key and sub-key of an entry, the last two as stored bytes."""
BySlice = dict[int, dict[Flat, None]]
"""Some entries, in the order in which they came; no slice is without any."""
_DATE = struct.Struct(">Bq")
_MARK = 0xC1
"""The one byte that no packed value begins with."""
_BUCKETS_PER_TTL = 64
"""An entry may stay that share of its time to live too long, unseen."""
_EXPIRED_AT_ONCE = 500
"""What one turn takes away of what has expired, some 1 ms of work, beside twice as much as was set since the last."""


def dated(packed: bytes, at_us: int) -> bytes:
    """A packed value with its date."""
    return _DATE.pack(_MARK, at_us) + packed


def date_of(stored: bytes) -> int | None:
    """When a stored value was set; None if that was not noted."""
    return int(_DATE.unpack_from(stored)[1]) if stored[0] == _MARK else None


def undated(stored: bytes) -> bytes:
    """The packed value alone."""
    return stored[_DATE.size :] if stored[0] == _MARK else stored


class Expiry:
    """The dates of a store's entries, of those states that have a time to live.

    ``now_us`` is the time of the record or timer that is at work; it is never before what was ``reached``, so nobody
    misses an entry that is gone already, and nobody sees one that is merely not yet deleted.
    """

    def __init__(self, ttl_us: Mapping[str, int]) -> None:
        self.ttl_us = dict(ttl_us)
        self.now_us = self._reached_us = NEVER_US
        self._width_us = {name: max(ttl // _BUCKETS_PER_TTL, 1) for name, ttl in self.ttl_us.items()}
        self._buckets: dict[tuple[str, int], BySlice] = {}
        self._due: list[tuple[int, str, int]] = []
        self._undated: BySlice = {}
        self._found_us: int | None = None
        self._set = 0

    def at(self, time_us: int) -> None:
        """A record or timer of this time is at work from now on."""
        self.now_us = max(time_us, self._reached_us)

    def reach(self, time_us: int) -> None:
        """No record before this time will come, or it counts as one of this time."""
        if IDLE_US < time_us < FOREVER_US:
            self._reached_us = max(time_us, self._reached_us)
            if self._undated and self._found_us is None:
                self._found_us = self._reached_us

    @property
    def dates(self) -> bool:
        """Whether it is known what time it is. It is not before the first record, or watermark."""
        return self.now_us > IDLE_US

    def over(self, name: str, stored: bytes) -> bool:
        """Whether an entry has expired for the record or timer at work."""
        at_us = date_of(stored)
        return at_us is not None and self.now_us >= at_us + self.ttl_us[name]

    def change(self, slice: int, flat: Flat, before: bytes, stored: bytes) -> None:
        """An entry was set again: mostly at about the same time as before."""
        width_us, was_us, at_us = self._width_us[flat[0]], date_of(before), date_of(stored)
        if was_us is None or at_us is None or was_us // width_us != at_us // width_us:
            self.remove(slice, flat, before)
            self.add(slice, flat, stored)

    def add(self, slice: int, flat: Flat, stored: bytes) -> None:
        """An entry was set, or loaded."""
        at_us = date_of(stored)
        if at_us is None:
            self._undated.setdefault(slice, {})[flat] = None
            return
        self._set += 1
        name, number = flat[0], at_us // self._width_us[flat[0]]
        bucket = self._buckets.get((name, number))
        if bucket is None:
            bucket = self._buckets[name, number] = {}
            heapq.heappush(self._due, ((number + 1) * self._width_us[name] + self.ttl_us[name], name, number))
        bucket.setdefault(slice, {})[flat] = None

    def remove(self, slice: int, flat: Flat, stored: bytes) -> None:
        """An entry is no longer what it was."""
        at_us = date_of(stored)
        if at_us is None:
            _remove(self._undated, slice, flat)
        elif (bucket := self._buckets.get((flat[0], at_us // self._width_us[flat[0]]))) is not None:
            _remove(bucket, slice, flat)

    def forget(self, slices: frozenset[int]) -> None:
        """All entries of some slices are another's from now on."""
        for some in (self._undated, *self._buckets.values()):
            for slice in slices:
                some.pop(slice, None)

    def without_date(self) -> Iterator[tuple[int, Flat, int]]:
        """Some entries whose date was not noted, with the date to give them: when the first of them was found."""
        if self._found_us is None:
            return
        left = _EXPIRED_AT_ONCE
        while self._undated and left > 0:
            left -= 1
            yield *_taken(self._undated), self._found_us
        if not self._undated:
            self._found_us = None

    def expired(self) -> Iterator[tuple[int, Flat]]:
        """Some entries that nobody may see any more, for the caller to delete: more than are set in the same time."""
        left, self._set = _EXPIRED_AT_ONCE + 2 * self._set, 0
        while self.behind and left > 0:
            _, name, number = self._due[0]
            bucket = self._buckets[name, number]
            while bucket and left > 0:
                left -= 1
                yield _taken(bucket)
            if not bucket:
                del self._buckets[name, number]
                heapq.heappop(self._due)

    @property
    def behind(self) -> bool:
        """Whether entries are to be deleted that have expired for good."""
        return bool(self._due) and self._due[0][0] <= self._reached_us

    @property
    def waiting(self) -> bool:
        """Whether there is something to do."""
        return self.behind or self._found_us is not None


def _taken(some: BySlice) -> tuple[int, Flat]:
    """The last entry of the last slice, which is taken out."""
    slice, flats = some.popitem()
    flat, _ = flats.popitem()
    if flats:
        some[slice] = flats
    return slice, flat


def _remove(some: BySlice, slice: int, flat: Flat) -> None:
    flats = some.get(slice)
    if flats is not None:
        flats.pop(flat, None)
        if not flats:
            del some[slice]
