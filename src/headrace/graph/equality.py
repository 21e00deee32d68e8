"""Whether two things that users wrote do the same; in doubt they do not."""

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
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, FunctionType):
        return one.__globals__ is other.__globals__ and one.__code__ is other.__code__ and _same_parts(one, other)
    if isinstance(one, MethodType):
        return same(one.__func__, other.__func__) and same(one.__self__, other.__self__)
    if isinstance(one, functools.partial):
        keywords = same(tuple(sorted(one.keywords)), tuple(sorted(other.keywords)))
        return (
            keywords
            and same((one.func, one.args), (other.func, other.args))
            and all(same(value, other.keywords[name]) for name, value in one.keywords.items())
        )
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return one.hex() == str(other.hex())  # unlike ==, tells zeros apart
    if isinstance(one, _PLAIN):
        return bool(one == other)
    if dataclasses.is_dataclass(one) and getattr(one, "__dataclass_params__").frozen:  # noqa: B009
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    return False


def _same_parts(one: FunctionType, other: FunctionType) -> bool:
    """Defaults, attributes and closures of two functions of one code object."""
    if one.__dict__ or other.__dict__:
        return False
    defaults = (one.__defaults__, tuple(sorted((one.__kwdefaults__ or {}).items())))
    others = (other.__defaults__, tuple(sorted((other.__kwdefaults__ or {}).items())))
    try:
        cells, other_cells = (tuple(c.cell_contents for c in f.__closure__ or ()) for f in (one, other))
    except ValueError:  # a variable that has no value yet
        return False
    return same(defaults, others) and same(cells, other_cells)
