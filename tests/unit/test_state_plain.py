"""Plain data to bytes and back: the same value and type, without pickle."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from typing import Any

import msgpack
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import StateError
from headrace.state.plain import pack, unpack

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.binary(),
    st.datetimes(timezones=st.one_of(st.none(), st.just(UTC), st.just(timezone(timedelta(hours=-5, minutes=-30))))),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.decimals(allow_nan=False),
)
KEYS = st.one_of(
    st.integers(), st.text(st.characters(exclude_categories=["Cs"])), st.tuples(st.integers(), st.text("ab"))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.frozensets(KEYS, max_size=4),
        st.sets(KEYS, max_size=4),
        st.lists(inner, max_size=3).map(deque),
        st.dictionaries(KEYS, st.integers(), max_size=3).map(Counter),
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    """Equal in value and in every type inside."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return (one == other and math.copysign(1, one) == math.copysign(1, other)) or (one != one and other != other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple, deque)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@given(VALUES)
def test_round_trip(value: Any) -> None:
    packed = pack(value)
    assert same(unpack(packed), value)
    assert pack(unpack(packed)) == packed


@pytest.mark.parametrize(
    ("value", "back"),
    [
        (np.int64(7), 7),
        (np.float64(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (bytearray(b"ab"), b"ab"),
        (OrderedDict(a=1), {"a": 1}),
        (IntEnum("Colour", {"RED": 3}).RED, 3),
        (2**200, 2**200),
        (-(2**64), -(2**64)),
    ],
)
def test_near_relatives_become_plain(value: Any, back: Any) -> None:
    assert same(unpack(pack(value)), back)


def test_a_defaultdict_of_a_builtin_still_has_its_default() -> None:
    state = unpack(pack(defaultdict(list, a=[1])))
    state["b"].append(2)
    assert state == {"a": [1], "b": [2]}


def test_times_with_nanoseconds_keep_them() -> None:
    for value in (pd.Timestamp(1, tz="Europe/Berlin"), pd.Timestamp(123), pd.Timedelta(7)):
        assert same(unpack(pack(value)), value)


class Custom:
    def __repr__(self) -> str:
        return "Custom()"


@pytest.mark.parametrize(
    "value",
    [Custom(), [1, Custom()], {"a": Custom()}, {Custom()}, np.zeros(3), defaultdict(lambda: 1), 1 + 2j, lambda: 1],
)
def test_what_cannot_be_stored_is_named(value: Any) -> None:
    with pytest.raises(StateError, match=r"the user's state holds .* cannot be stored .*keep numbers, strings"):
        pack(value, "the user's state")


def test_endless_nesting_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    deep: Any = ()
    for _ in range(2000):
        deep = (deep,)
    for value in (loop, deep):
        with pytest.raises(StateError, match="cannot be stored"):
            pack(value)


def test_bytes_choose_no_code() -> None:
    with pytest.raises(StateError, match="unknown type code 99"):
        unpack(msgpack.packb(msgpack.ExtType(99, b"import os")))
    factory = msgpack.packb(msgpack.ExtType(12, msgpack.packb(["eval", {}])))
    assert unpack(factory).default_factory is None


def test_equal_sets_have_equal_bytes() -> None:
    words = {f"w{i}" for i in range(50)}
    assert pack(words) == pack(set(sorted(words, reverse=True)))
    assert unpack(pack({time(1), datetime(2020, 1, 1), Decimal(1)})) == {time(1), datetime(2020, 1, 1), Decimal(1)}
