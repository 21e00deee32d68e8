"""Plain Python data to bytes and back, without pickle: msgpack with a few types added.

Reading never runs code that the bytes choose. Dictionary order and int/float/str types survive.
"""

from __future__ import annotations

import reprlib
from collections import Counter, defaultdict, deque
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import msgpack
import numpy as np
import pandas as pd

from headrace.errors import StateError

_TUPLE, _SET, _FROZENSET, _BIG_INT, _DATETIME, _DATE, _TIMEDELTA, _DECIMAL, _DEQUE = range(1, 10)
_TIME, _COUNTER, _DEFAULTDICT, _NANO_TIMESTAMP, _NANO_TIMEDELTA = range(10, 15)
_FACTORIES: dict[str, Any] = {kind.__name__: kind for kind in (int, float, str, list, set, dict, bool, Counter, deque)}


def pack(value: Any, what: str = "state") -> bytes:
    """Bytes of a plain value; StateError names what cannot be stored."""
    try:
        return _packed(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise StateError(
            f"{what} holds {reprlib.repr(value)}, which cannot be stored ({error}); keep numbers, strings, bytes, lists, "
            f"tuples, sets, dicts and datetimes in state"
        ) from None


def unpack(data: bytes | memoryview) -> Any:
    """The value of ``pack``."""
    return msgpack.unpackb(data, ext_hook=_decode, raw=False, strict_map_key=False)


def _packed(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, default=_encode, strict_types=True, use_bin_type=True)
    return packed


def _encode(value: Any) -> Any:
    match value:
        case tuple():
            return msgpack.ExtType(_TUPLE, _packed(list(value)))
        case set():
            return msgpack.ExtType(_SET, _packed(sorted(value, key=_packed)))
        case frozenset():
            return msgpack.ExtType(_FROZENSET, _packed(sorted(value, key=_packed)))
        case deque():
            return msgpack.ExtType(_DEQUE, _packed(list(value)))
        case int():
            return msgpack.ExtType(_BIG_INT, str(value).encode())
        case pd.Timestamp():
            return msgpack.ExtType(
                _NANO_TIMESTAMP, _packed([value.as_unit("ns").value, str(value.tz) if value.tz else None])
            )
        case datetime():
            return msgpack.ExtType(_DATETIME, value.isoformat().encode())
        case date():
            return msgpack.ExtType(_DATE, value.isoformat().encode())
        case time():
            return msgpack.ExtType(_TIME, value.isoformat().encode())
        case pd.Timedelta():
            return msgpack.ExtType(_NANO_TIMEDELTA, _packed(value.as_unit("ns").value))
        case timedelta():
            return msgpack.ExtType(_TIMEDELTA, _packed([value.days, value.seconds, value.microseconds]))
        case Decimal():
            return msgpack.ExtType(_DECIMAL, str(value).encode())
        case np.generic():
            return value.item()
        case Counter():
            return msgpack.ExtType(_COUNTER, _packed(dict(value)))
        case defaultdict():
            factory = getattr(value.default_factory, "__name__", "None")
            if _FACTORIES.get(factory) is not value.default_factory:
                raise TypeError(f"a defaultdict of {factory}: give it a built-in type")
            return msgpack.ExtType(_DEFAULTDICT, _packed([factory, dict(value)]))
        case dict():
            return dict(value)
        case list():
            return list(value)
        case str():
            return str.__str__(value)
        case _:
            raise TypeError(f"a {type(value).__name__}")


def _decode(code: int, data: bytes) -> Any:
    match code:
        case 1:
            return tuple(unpack(data))
        case 2:
            return set(unpack(data))
        case 3:
            return frozenset(unpack(data))
        case 4:
            return int(data)
        case 5:
            return datetime.fromisoformat(data.decode())
        case 6:
            return date.fromisoformat(data.decode())
        case 7:
            return timedelta(*unpack(data))
        case 8:
            return Decimal(data.decode())
        case 9:
            return deque(unpack(data))
        case 10:
            return time.fromisoformat(data.decode())
        case 11:
            return Counter(unpack(data))
        case 12:
            factory, items = unpack(data)
            return defaultdict(_FACTORIES.get(factory), items)
        case 13:
            nanoseconds, zone = unpack(data)
            return pd.Timestamp(nanoseconds, tz=zone)
        case 14:
            return pd.Timedelta(unpack(data))
        case _:
            raise StateError(f"stored value has an unknown type code {code}")
