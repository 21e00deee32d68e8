"""Messages on the control channel: whole ones survive, all else is refused with its kind and changes nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from driven import Driven, nothing_done
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import inspect
from msgspec.msgpack import Ext

from headrace.channel.server import ChannelServer
from headrace.driver.protocol.events import Heard, Send
from headrace.errors import MessageError
from headrace.measure.sketches import Latencies
from headrace.runtime.messages import (
    Aligned,
    Described,
    Hello,
    Loaded,
    Logged,
    Reply,
    Reported,
    RowsShown,
    ToDriver,
    ToWorker,
    encode,
    kind_of,
    read_as_driver,
    read_as_worker,
)
from headrace.runtime.orders import NO_ORDERS
from headrace.state.copies.nearest import NOTHING_LOADED
from headrace.tokens import Attempt, Token

FROM_WORKER, FROM_DRIVER = get_args(ToDriver), get_args(ToWorker)
KINDS = [*FROM_WORKER, *FROM_DRIVER]
INTS = st.integers(-(2**63), 2**64 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | INTS | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)


def values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Whatever a field may hold, from its type: a field that is added to a message is tried too."""
    match kind:
        case inspect.StructType(cls=cls) if cls is Latencies:
            return st.lists(st.floats(0, 1e6), min_size=1, max_size=3).map(Latencies.of)
        case inspect.IntType():
            return INTS
        case inspect.FloatType():
            return st.floats(allow_nan=False)
        case inspect.UnionType():
            return st.one_of(*map(values, kind.types))
        case inspect.ListType():
            return st.lists(values(kind.item_type), max_size=3)
        case inspect.VarTupleType():
            return st.lists(values(kind.item_type), max_size=3).map(tuple)
        case inspect.FrozenSetType():
            return st.frozensets(values(kind.item_type), max_size=3)
        case inspect.TupleType():
            return st.tuples(*map(values, kind.item_types))
        case inspect.DictType():
            return st.dictionaries(values(kind.key_type), values(kind.value_type), max_size=3)
        case inspect.StructType():
            return st.builds(kind.cls, **{field.name: values(field.type) for field in kind.fields})
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case _:
            plain: dict[type, st.SearchStrategy[Any]] = {
                inspect.StrType: st.text(max_size=8), inspect.BytesType: st.binary(max_size=8),
                inspect.BoolType: st.booleans(), inspect.NoneType: st.none(), inspect.AnyType: JSON,
            }  # fmt: skip
            return plain[type(kind)]


NO_ORDER = msgspec.to_builtins(NO_ORDERS)
ONE = Latencies.of([1.5])


def read(kind: type, data: bytes) -> ToDriver | ToWorker:
    return read_as_driver(data) if kind in FROM_WORKER else read_as_worker(data)


def tag(kind: Any) -> str:
    return str(kind.__struct_config__.tag)


def entries(message: Any) -> dict[str, Any]:
    """A message as it is on the wire."""
    found: dict[str, Any] = msgspec.msgpack.decode(encode(message), strict=False)
    return found


VALUES = {kind: values(inspect.type_info(kind)) for kind in KINDS}
SOME = st.sampled_from(KINDS).flatmap(VALUES.__getitem__)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_every_message_survives(kind: Any, data: st.DataObject) -> None:
    message = data.draw(VALUES[kind])
    there = read(kind, encode(message))
    assert there == message and type(there) is kind
    assert kind_of(encode(message)) == tag(kind)


WRONG = (Ext(5, b""), [Ext(5, b"")])


def spoiled_parts(kind: inspect.Type, wire: Any) -> Iterator[Any]:
    """The same data with one struct, at any depth, spoiled: a field missing, added or of a wrong type."""
    match kind:
        case inspect.UnionType():
            for one in kind.types:
                yield from () if wire is None else spoiled_parts(one, wire)
        case inspect.ListType() | inspect.VarTupleType() if wire:
            for spoiled in spoiled_parts(kind.item_type, wire[0]):
                yield [spoiled, *wire[1:]]
        case inspect.StructType(array_like=True):
            yield from (wire[:-1], [*wire, None])
            for at, field in enumerate(kind.fields):
                for spoiled in (*WRONG, *spoiled_parts(field.type, wire[at])):
                    yield [*wire[:at], spoiled, *wire[at + 1 :]]
        case inspect.StructType():
            yield {**wire, "more": 1}
            for field in kind.fields:
                name = field.encode_name
                yield {other: value for other, value in wire.items() if other != name}
                for spoiled in (*WRONG, *spoiled_parts(field.type, wire[name])):
                    yield {**wire, name: spoiled}


def malformed(message: Any) -> st.SearchStrategy[bytes]:
    """The message spoiled: cut off, continued, of another kind, or with a part of it spoiled."""
    whole, parts = encode(message), entries(message)
    changed: list[dict[str, Any]] = [
        {**parts, "kind": "plam"},
        {**parts, "kind": 7},
        {name: value for name, value in parts.items() if name != "kind"},
        *spoiled_parts(inspect.type_info(type(message)), parts),
    ]
    cut = st.integers(0, len(whole) - 1).map(lambda size: whole[:size])
    return cut | st.just(whole + b"\xc0") | st.sampled_from(changed).map(msgspec.msgpack.encode)


SPOILED = SOME.flatmap(lambda message: st.tuples(st.just(type(message)), malformed(message)))


@given(SPOILED)
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_not_wholly_of_its_kind_is_refused_with_it(spoiled: tuple[type, bytes]) -> None:
    kind, data = spoiled
    with pytest.raises(MessageError) as caught:
        read(kind, data)
    if len(data) < 7 + len(tag(kind)):  # the head of a map, "kind" and its length, the length of the kind, the kind
        assert "of no kind that can be read" in str(caught.value)
    elif data[7:].startswith(tag(kind).encode()):
        assert f"of kind '{tag(kind)}' was refused ({len(data)} bytes)" in str(caught.value)
    else:
        assert "of kind 'plam'" in str(caught.value) or "of no kind" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "field", "wrong", "why"),
    [
        ("hello", "stage", "1", "Expected `int`, got `str`"),
        ("hello", "inventory", [None, 0, 1], "Expected `object | null`, got `array`"),
        ("loaded", "attempt", "g000001-a0001", "Expected `object`, got `str`"),
        ("loaded", "index", 1.5, "Expected `int`, got `float`"),
        ("report", "exhausted", 1, "Expected `bool`, got `int`"),
        ("failed", "place", [1, 2, 3], "Expected `array` of length 2"),
        ("rows", "rows", [1], "Expected `object`, got `int`"),
        ("orders", "orders", {**NO_ORDER, "schedule": "by dice"}, "Invalid enum value 'by dice'"),
        ("orders", "orders", {**NO_ORDER, "deadlines_us": {3: 4}}, "Expected `array`, got `int`"),
        ("orders", "orders", {**NO_ORDER, "versoin": 3}, "unknown field `versoin`"),
        ("orders", "orders", {"version": 3}, "missing required field `deadlines_us`"),
        ("report", "flows", [["s", 1, 1, 0, [[1, 2.0, 0.0], b"no sketch"]]], "9 bytes that are no sketch"),
        (
            "report",
            "flows",
            [["s", 1, 1, 0, [[2, 1.5, 0.5], ONE.sketch]]],
            "a sketch of 1 values with the moments of 2",
        ),
        ("desc", "description", {}, "missing required field"),
        ("cut", "token", {"generation": 1, "attempt": 1}, "missing required field `cut`"),
        ("logged", "token", "c0000000001-g000001-a0001", "Expected `object`, got `str`"),
    ],
)
@given(data=st.data())
@settings(max_examples=3, suppress_health_check=[HealthCheck.too_slow])
def test_a_refusal_says_what_was_got(kind: str, field: str, wrong: Any, why: str, data: st.DataObject) -> None:
    made = next(one for one in KINDS if tag(one) == kind)
    parts = entries(data.draw(VALUES[made]))
    with pytest.raises(MessageError) as caught:
        read(made, msgspec.msgpack.encode({**parts, field: wrong}))
    assert f"of kind '{kind}' was refused" in str(caught.value) and why in str(caught.value)
    assert f"`$.{field}" in str(caught.value)


def structs_in(kind: inspect.Type) -> Iterator[inspect.Type]:
    """All types in which fields have names, at any depth."""
    match kind:
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() | inspect.NamedTupleType():
            yield kind
            inner = [field.type for field in kind.fields]
        case inspect.UnionType():
            inner = list(kind.types)
        case inspect.TupleType():
            inner = list(kind.item_types)
        case inspect.DictType():
            inner = [kind.key_type, kind.value_type]
        case _:
            inner = [kind.item_type] if hasattr(kind, "item_type") else []
    for one in inner:
        yield from structs_in(one)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_part_of_a_message_has_a_default_or_takes_fields_it_does_not_know(kind: Any) -> None:
    for part in structs_in(inspect.type_info(kind)):
        assert isinstance(part, inspect.StructType) and part.forbid_unknown_fields, part
        assert [field.name for field in part.fields if not field.required] == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow])
def test_every_part_that_is_spoiled_is_refused(kind: Any, data: st.DataObject) -> None:
    parts = entries(data.draw(VALUES[kind]))
    for spoiled in spoiled_parts(inspect.type_info(kind), parts):
        with pytest.raises(MessageError, match=f"of kind '{tag(kind)}' was refused"):
            read(kind, msgspec.msgpack.encode(spoiled))


@given(st.binary(max_size=60))
@example(b"")
@example(b"\xc1")
@example(b"\x82\xa4kind\xa4rows\xa4step\xa2\xff\xff")  # no UTF-8
@example(b"\x82\xa4kind\xa2\xff\xfe")
@example(encode(RowsShown("s", [])).replace(b"\x90", b"\x91\x81\xa1a" + b"\x91" * 200_000))  # too deep
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    for read in (read_as_driver, read_as_worker):
        with pytest.raises(MessageError, match="a control message of (no )?kind .* refused"):
            read(data)


@given(SOME)
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_a_message_for_the_other_end_is_refused(message: ToDriver | ToWorker) -> None:
    other = read_as_worker if type(message) in FROM_WORKER else read_as_driver
    with pytest.raises(MessageError, match=f"of kind '{tag(type(message))}'"):
        other(encode(message))


class Driver:
    """A driver's machine in the midst of an attempt, with a cut under way, behind the driver's end of the channel."""

    def __init__(self) -> None:
        self.driven = Driven()
        self.server = ChannelServer("127.0.0.1", self._take)
        self.driven.run().later(1.1)
        self.driven.describe((1, 0))

    def _take(self, sender: bytes, message: ToDriver) -> list[Reply]:
        return [(one.to, one.message) for one in self.driven.tell(Heard(sender, message)) if isinstance(one, Send)]

    def known(self) -> str:
        machine = self.driven.machine
        kept = {name: value for name, value in vars(machine).items() if name not in ("plan", "members", "hearing")}
        return repr((kept, machine.members.by_place, machine.members.tables, machine.hearing.newest))


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.server.close()


def of_this_attempt(message: Any) -> Any:
    """From who takes part in the attempt, of that attempt: had it not been spoiled, it would count."""
    attempt = Attempt(1, 1)
    match message:
        case Described(description):
            return Described(msgspec.structs.replace(description, stage=0, index=0, token=attempt.cut(1)))
        case Aligned():
            return msgspec.structs.replace(message, stage=0, index=0, token=attempt.cut(1))
        case Loaded() | Reported():
            return msgspec.structs.replace(message, stage=0, index=0, attempt=attempt)
        case _:
            return msgspec.structs.replace(message, stage=0, index=0, query=1)


TAKING_PART = st.sampled_from([Hello, Loaded, Aligned, Described, Reported]).flatmap(VALUES.__getitem__)


@given(data=st.data())
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_a_refused_message_leaves_the_driver_as_it_was(
    driver: Driver, data: st.DataObject, caplog: pytest.LogCaptureFixture
) -> None:
    spoiled = data.draw(malformed(of_this_attempt(data.draw(TAKING_PART))) | st.binary(max_size=40))
    before = driver.known()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "headrace.channel"):
        assert driver.server._handle(b"0-0", spoiled) == []
    assert driver.known() == before
    (record,) = caplog.records
    kind = kind_of(spoiled)
    assert (
        f"of kind {kind!r} was refused" if kind else "of no kind that can be read was refused"
    ) in record.getMessage()


def test_the_same_message_unspoiled_counts(driver: Driver) -> None:
    """Else the test above would show nothing."""
    before = driver.known()
    described = Described(nothing_done((0, 0), Token(1, 1, 1)))
    assert Logged(Token(1, 1, 1)) in [reply for _, reply in driver.server._handle(b"0-0", encode(described))]
    assert driver.known() != before


# a fault while one message was handled took with it what others were to be told
def test_a_message_that_cannot_be_handled_takes_no_other_with_it(caplog: pytest.LogCaptureFixture) -> None:
    def take(sender: bytes, message: ToDriver) -> list[Reply]:
        if sender == b"bad":
            raise OSError("No space left on device")
        return [(sender, Logged(Token(1, 1, 1)))]

    server = ChannelServer("127.0.0.1", take)
    try:
        data = encode(Loaded(0, 0, Attempt(1, 1), NOTHING_LOADED))
        assert server._handle(b"bad", data) == []
        assert server._handle(b"good", data) == [(b"good", Logged(Token(1, 1, 1)))]
    finally:
        server.close()
    assert "of kind 'loaded' could not be handled" in caplog.text
