"""Whether two things behave the same; when in doubt, no."""

from __future__ import annotations

import dataclasses
import functools
from datetime import datetime, timedelta
from pathlib import PurePath
from types import FunctionType, MethodType
from typing import Any

import pyarrow as pa

_PLAIN = (bool, int, str, bytes, type(None), datetime, timedelta, PurePath, pa.Schema, pa.DataType)


def same(one: Any, other: Any) -> bool:
    """True if two functions, descriptions or values cannot be told apart by what they do.

    That is: the same object; functions of one code object with the same globals, defaults and closure; methods,
    partial functions, tuples and frozen dataclasses of the same parts; equal plain values of one type. Equal lists,
    dicts and other objects that can change are not the same unless they are one object.

    >>> def power(n):
    ...     return lambda x: x**n
    >>> same(power(2), power(2)), same(power(2), power(3)), same([], [])
    (True, False, False)
    """
    return _same(one, other, ())


def _same(one: Any, other: Any, within: tuple[FunctionType, ...]) -> bool:
    """``within`` are the functions whose parts are being compared; one that is part of itself is not followed."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return one.hex() == str(other.hex())  # unlike ==, tells zeros apart
    if isinstance(one, _PLAIN):
        return bool(one == other)
    if isinstance(one, FunctionType):
        if one in within or one.__code__ is not other.__code__ or one.__globals__ is not other.__globals__:
            return False
        within = (*within, one)
    parts, others = _parts(one), _parts(other)
    if parts is None or others is None or len(parts) != len(others):
        return False
    return all(_same(part, another, within) for part, another in zip(parts, others))


def _parts(thing: Any) -> tuple[Any, ...] | None:
    """What decides what a thing of its type does; None if that cannot be told, or can change."""
    match thing:
        case tuple():
            return thing
        case FunctionType():
            try:
                cells = tuple(cell.cell_contents for cell in thing.__closure__ or ())
            except ValueError:  # a variable that has no value yet
                return None
            return None if thing.__dict__ else (thing.__defaults__, _items(thing.__kwdefaults__ or {}), cells)
        case MethodType():
            return thing.__func__, thing.__self__
        case functools.partial():
            return thing.func, thing.args, _items(thing.keywords)
    if dataclasses.is_dataclass(thing) and getattr(thing, "__dataclass_params__").frozen:  # noqa: B009
        return tuple(getattr(thing, field.name) for field in dataclasses.fields(thing))
    return None


def _items(named: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, named[name]) for name in sorted(named))
