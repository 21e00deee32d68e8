"""The one parser of durations, sizes and rates that users write."""

from __future__ import annotations

import re
from datetime import timedelta

from headrace.errors import UnitError

_DURATIONS_S = {
    "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "m": 60.0, "min": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hour": 3600.0, "hours": 3600.0, "d": 86400.0, "day": 86400.0, "days": 86400.0,
}  # fmt: skip
_SIZES = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)

Duration = str | float | int | timedelta
"""Time as users write it: ``"200 ms"``, seconds as a number, or a timedelta."""
Size = str | int
"""Memory as users write it: ``"64 MB"``, or a number of bytes."""


def duration_s(value: Duration, what: str = "duration") -> float:
    """Seconds in ``"200 ms"``, ``"5 s"``, a number of seconds or a timedelta.

    >>> duration_s("200 ms"), duration_s(2), duration_s("1.5 min")
    (0.2, 2.0, 90.0)
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(value)
    else:
        match = _QUANTITY.fullmatch(str(value))
        unit = match.group(2).lower() if match else ""
        if match is None or unit not in _DURATIONS_S:
            raise UnitError(f"{what} {value!r} is not a duration; write for example '200 ms' or '5 s'")
        seconds = float(match.group(1)) * _DURATIONS_S[unit]
    if not 0 <= seconds < float("inf"):
        raise UnitError(f"{what} {value!r} must be a finite duration of zero or more")
    return seconds


def duration_us(value: Duration, what: str = "duration") -> int:
    """The same, in whole microseconds, the runtime's unit of time."""
    return round(duration_s(value, what) * 1_000_000)


def size_bytes(value: str | int, what: str = "size") -> int:
    """Bytes in ``"64 MB"`` or a plain number.

    >>> size_bytes("64 MB"), size_bytes("1 KiB")
    (64000000, 1024)
    """
    size: float
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        match = _QUANTITY.fullmatch(str(value))
        unit = match.group(2).lower() if match else ""
        if match is None or unit not in _SIZES:
            raise UnitError(f"{what} {value!r} is not a size; write for example '64 MB'")
        size = float(match.group(1)) * _SIZES[unit]
    if not 1 <= size < float("inf"):
        raise UnitError(f"{what} {value!r} must be at least one byte, and finite")
    return int(size)


def rate_per_s(value: str | float | int, what: str = "rate") -> float:
    """Items per second in ``"5000/s"``, ``"2/min"`` or a plain number.

    >>> rate_per_s("5000/s"), rate_per_s("120/min")
    (5000.0, 2.0)
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        rate = float(value)
    else:
        number, slash, unit = str(value).partition("/")
        seconds = _DURATIONS_S.get(unit.strip().lower())
        try:
            rate = float(number.replace("_", "").replace(",", "")) / (seconds or 0.0)
        except (ValueError, ZeroDivisionError):
            raise UnitError(f"{what} {value!r} is not a rate; write for example '5000/s'") from None
        if not slash:
            raise UnitError(f"{what} {value!r} is not a rate; write for example '5000/s'")
    if not 0 < rate < float("inf"):
        raise UnitError(f"{what} {value!r} must be more than zero")
    return rate


def number_of(count: int, what: str) -> str:
    """How many there are, for people.

    >>> number_of(1, "cut"), number_of(0, "cut"), number_of(12_000, "record")
    ('1 cut', '0 cuts', '12,000 records')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def in_words(seconds: float) -> str:
    """A duration for people.

    >>> in_words(0.0042), in_words(12), in_words(90)
    ('4.2 ms', '12 s', '1.5 min')
    """
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 3600 else f"{seconds / 3600:.3g} h"


def size_in_words(size: int) -> str:
    """Bytes for people, exactly where they are a whole number of a unit.

    >>> size_in_words(64_000_000), size_in_words(1536)
    ('64 MB', '1.54 KB')
    """
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} B"
