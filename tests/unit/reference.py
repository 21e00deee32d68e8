"""What a job means, in plain Python: the oracle that every mode is compared with.

Nothing here is incremental, parallel or vectorised. Records come as scripts, one list per source
partition in the order in which the partition hands them over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

Record = dict[str, Any]
Row = dict[str, Any]
Key = tuple[Any, ...]
NEVER_US = -(2**62)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Seen:
    """A record as it enters the job: its time, and the watermark of its own partition before it.

    ``late_us`` is NEVER_US for a record that is on time. A window that ended by then is closed for it.
    """

    record: Record
    time_us: int
    late_us: int = NEVER_US


def at(time_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=time_us)


def enter(parts: Sequence[Sequence[Record]], lateness_us: int = 0, time: str = "t", unit_us: int = 1000) -> list[Seen]:
    """All records of a source; each is late against its own partition only."""
    seen = []
    for part in parts:
        newest = NEVER_US
        for record in part:
            time_us = record[time] * unit_us
            expecting = newest - lateness_us
            seen.append(Seen(record, time_us, expecting if time_us < expecting else NEVER_US))
            newest = max(newest, time_us)
    return seen


def flat_mapped(seen: Iterable[Seen], fn: Callable[[Record], Iterable[Record]]) -> list[Seen]:
    return [replace(one, record=made) for one in seen for made in fn(one.record)]


def window_ends(time_us: int, size_us: int, every_us: int) -> list[int]:
    """Ends of all windows ``[end - size, end)`` that contain a time; ends are multiples of the slide."""
    end = (time_us // every_us + 1) * every_us
    ends = []
    while end - size_us <= time_us:
        ends.append(end)
        end += every_us
    return ends


def key_of(record: Record, keys: Sequence[str]) -> Key:
    """Keys as groups see them: all NaNs are one key, and so are the two zeros."""
    return tuple("NaN" if isinstance(record[k], float) and math.isnan(record[k]) else record[k] for k in keys)


Reducers = dict[str, Callable[[list[Seen]], Any]]


def _rows(groups: dict[Any, list[Seen]], keys: Sequence[str], reducers: Reducers) -> list[tuple[Any, Row]]:
    return [
        (group, {k: members[0].record[k] for k in keys} | {name: fn(members) for name, fn in reducers.items()})
        for group, members in groups.items()
    ]


def time_windows(
    seen: Iterable[Seen], keys: Sequence[str], size_us: int, every_us: int, reducers: Reducers
) -> list[Row]:
    groups: dict[tuple[Key, int], list[Seen]] = {}
    for one in seen:
        for end in window_ends(one.time_us, size_us, every_us):
            if end > one.late_us:
                groups.setdefault((key_of(one.record, keys), end), []).append(one)
    return [
        row | {"window_start": at(end - size_us), "window_end": at(end)}
        for (_, end), row in _rows(groups, keys, reducers)
    ]


def dropped_late(seen: Iterable[Seen], size_us: int, every_us: int) -> int:
    """How many records are too late for all their windows."""
    return sum(window_ends(one.time_us, size_us, every_us)[-1] <= one.late_us for one in seen)


def emitted(rows: Iterable[Row]) -> list[Seen]:
    """Results of a windowed step as the next step sees them: at the last instant of their window."""
    return [Seen(row, (row["window_end"] - _EPOCH) // timedelta(microseconds=1) - 1) for row in rows]


def sessions(seen: Iterable[Seen], keys: Sequence[str], gap_us: int, reducers: Reducers) -> list[Row]:
    """Connected records of a key.

    Two records belong together if less than the gap lies between them, and neither came so late that
    the other's session had ended by then: the answer does not depend on the order of arrival.
    """
    kept = [one for one in seen if one.time_us + gap_us > one.late_us]
    by_key: dict[Key, list[Seen]] = {}
    for one in kept:
        by_key.setdefault(key_of(one.record, keys), []).append(one)
    rows = []
    for members in by_key.values():
        parent = list(range(len(members)))

        def root(i: int, parent: list[int] = parent) -> int:
            while parent[i] != i:
                i = parent[i]
            return i

        for i, a in enumerate(members):
            for j, b in enumerate(members[:i]):
                near = abs(a.time_us - b.time_us) < gap_us
                if near and b.time_us + gap_us > a.late_us and a.time_us + gap_us > b.late_us:
                    parent[root(i)] = root(j)
        groups: dict[int, list[Seen]] = {}
        for i, one in enumerate(members):
            groups.setdefault(root(i), []).append(one)
        for group, row in _rows(groups, keys, reducers):
            times = [one.time_us for one in groups[group]]
            rows.append(row | {"window_start": at(min(times)), "window_end": at(max(times) + gap_us)})
    return rows


def count_windows(seen: Iterable[Seen], keys: Sequence[str], n: int, reducers: Reducers) -> list[Row]:
    """Only for one partition: windows of n records are in order of arrival."""
    rows = []
    for members in by_key(seen, keys).values():
        for start in range(0, len(members) - n + 1, n):
            rows += [row for _, row in _rows({0: members[start : start + n]}, keys, reducers)]
    return rows


def whole(seen: Iterable[Seen], keys: Sequence[str], reducers: Reducers) -> list[Row]:
    """Everything, also late records: the whole input, and the last word of a running reduce."""
    return [row for _, row in _rows(by_key(seen, keys), keys, reducers)]


def by_key(seen: Iterable[Seen], keys: Sequence[str]) -> dict[Key, list[Seen]]:
    groups: dict[Key, list[Seen]] = {}
    for one in seen:
        groups.setdefault(key_of(one.record, keys), []).append(one)
    return groups


def join(
    left: Iterable[Seen], right: Iterable[Seen], keys: Sequence[str], how: str, size_us: int, every_us: int,
    columns: tuple[Sequence[str], Sequence[str]],
) -> list[Row]:  # fmt: skip
    """Equal keys in equal windows; null keys meet nobody. A record too late for its first window is out.

    Columns ``window_start`` and ``window_end`` that a side brings along are kept.
    """
    sides: list[dict[int, list[Record]]] = [{}, {}]
    for side, records in zip(sides, (left, right)):
        for one in records:
            ends = window_ends(one.time_us, size_us, every_us)
            if ends[0] > one.late_us:
                for end in ends:
                    side.setdefault(end, []).append(one.record)
    rows = []
    for end in sorted({*sides[0], *sides[1]}):
        lefts, rights = sides[0].get(end, []), sides[1].get(end, [])
        matched: set[int] = set()
        bounds = {"window_start": at(end - size_us), "window_end": at(end)}
        for one in lefts:
            hits = [i for i, other in enumerate(rights) if all(one[k] == other[k] and one[k] is not None for k in keys)]
            matched |= {*hits}
            rows += [bounds | joined(one, rights[i], keys, columns) for i in hits]
            if not hits and how in ("left", "outer"):
                rows.append(bounds | joined(one, None, keys, columns))
        if how in ("right", "outer"):
            rows += [bounds | joined(None, other, keys, columns) for i, other in enumerate(rights) if i not in matched]
    return rows


def interval_join(
    left: Sequence[Seen], right: Sequence[Seen], keys: Sequence[str], how: str, before_us: int, after_us: int,
    columns: tuple[Sequence[str], Sequence[str]],
) -> list[Row]:  # fmt: skip
    """Equal keys, the right one's time from ``before_us`` before to ``after_us`` after the left one's; null keys meet nobody.

    By its own watermark no record comes when its time to meet others has passed, nor meets one whose time had.
    """
    lefts = [one for one in left if one.late_us <= one.time_us + after_us]
    rights = [one for one in right if one.late_us <= one.time_us + before_us]
    rows, matched = [], set[int]()
    for one in lefts:
        hits = [
            i for i, other in enumerate(rights)
            if all(one.record[k] == other.record[k] and one.record[k] is not None for k in keys)
            and -before_us <= other.time_us - one.time_us <= after_us
            and one.late_us <= other.time_us + before_us and other.late_us <= one.time_us + after_us
        ]  # fmt: skip
        matched |= {*hits}
        rows += [joined(one.record, rights[i].record, keys, columns) for i in hits]
        if not hits and how in ("left", "outer"):
            rows.append(joined(one.record, None, keys, columns))
    if how in ("right", "outer"):
        rows += [joined(None, other.record, keys, columns) for i, other in enumerate(rights) if i not in matched]
    return rows


def joined(
    left: Record | None, right: Record | None, keys: Sequence[str], columns: tuple[Sequence[str], Sequence[str]]
) -> Row:
    row: Row = {c: left[c] if left is not None else None for c in columns[0]}
    for key in keys:
        row[key] = (left or right or {})[key]
    for c in columns[1]:
        if c not in keys:
            row[f"{c}_right" if c in columns[0] else c] = right[c] if right is not None else None
    return row


def values(column: str) -> Callable[[list[Seen]], list[Any]]:
    return lambda members: [one.record[column] for one in members if one.record[column] is not None]


def count() -> Callable[[list[Seen]], int]:
    return len


def total(column: str) -> Callable[[list[Seen]], Any]:
    return lambda members: math.fsum(got) if (got := values(column)(members)) and isinstance(got[0], float) else (
        sum(got) if got else None
    )  # fmt: skip


def mean(column: str) -> Callable[[list[Seen]], float | None]:
    return lambda members: math.fsum(got) / len(got) if (got := values(column)(members)) else None


def smallest(column: str) -> Callable[[list[Seen]], Any]:
    return _extreme(column, min)


def largest(column: str) -> Callable[[list[Seen]], Any]:
    return _extreme(column, max)


def _extreme(column: str, pick: Callable[[list[Any]], Any]) -> Callable[[list[Seen]], Any]:
    """A NaN among the numbers makes the answer NaN, as in SQL engines that compare with it."""

    def extreme(members: list[Seen]) -> Any:
        got = values(column)(members)
        nan = [v for v in got if _is_nan(v)]
        return nan[0] if nan else pick(got) if got else None

    return extreme


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _ranked(got: list[Any], *, descending: bool) -> list[Any]:
    """NaNs rank last either way."""
    return sorted((v for v in got if not _is_nan(v)), reverse=descending) + [v for v in got if _is_nan(v)]


def top_k(column: str, k: int) -> Callable[[list[Seen]], list[Any]]:
    return lambda members: _ranked(values(column)(members), descending=True)[:k]


def top_k_by(column: str, k: int, by: str) -> Callable[[list[Seen]], list[Any]]:
    """Only for a ``by`` without NaN."""

    def top(members: list[Seen]) -> list[Any]:
        pairs = [
            (one.record[by], one.record[column])
            for one in members
            if one.record[by] is not None and one.record[column] is not None
        ]
        return [value for _, value in sorted(pairs, reverse=True)[:k]]

    return top


def distinct(column: str) -> Callable[[list[Seen]], int]:
    return lambda members: len({"NaN" if _is_nan(v) else v for v in values(column)(members)})


def quantile(column: str, q: float) -> Callable[[list[Seen]], float | None]:
    """The exact value; ours may be 1 % off."""

    def exact(members: list[Seen]) -> float | None:
        got = sorted(float(v) for v in values(column)(members) if not _is_nan(v))
        return got[math.floor(q * (len(got) - 1))] if got else None

    return exact


def _by_time(column: str, members: list[Seen], *, descending: bool) -> list[Any]:
    at_time: dict[int, list[Any]] = {}
    for one in members:
        if one.record[column] is not None:
            at_time.setdefault(one.time_us, []).append(one.record[column])
    return [v for t in sorted(at_time, reverse=descending) for v in _ranked(at_time[t], descending=descending)]


def first(column: str) -> Callable[[list[Seen]], Any]:
    return lambda members: next(iter(_by_time(column, members, descending=False)), None)


def last(column: str) -> Callable[[list[Seen]], Any]:
    return lambda members: next(iter(_by_time(column, members, descending=True)), None)


def collected(column: str) -> Callable[[list[Seen]], list[Any]]:
    return lambda members: _by_time(column, members, descending=False)


def comparable(value: Any) -> Any:
    """A value that can be compared and sorted with others: NaN equal to itself, floats to 12 digits."""
    if isinstance(value, dict):
        return tuple((name, comparable(value[name])) for name in sorted(value))
    if isinstance(value, (list, tuple)):
        return tuple(comparable(v) for v in value)
    if isinstance(value, float):
        return ("float", "nan") if math.isnan(value) else ("float", f"{value + 0.0:.12g}")
    return (type(value).__name__, value if isinstance(value, (int, str, bytes)) else str(value))


def bag(rows: Iterable[Row]) -> list[Any]:
    """Rows in an order of their own, for comparing sets with repetition."""
    return sorted((comparable(row) for row in rows), key=repr)


def last_per(rows: Iterable[Row], *columns: str) -> list[Row]:
    """The last row for each key, as a running result leaves it."""
    latest = {comparable([row[c] for c in columns]): row for row in rows}
    return list(latest.values())
