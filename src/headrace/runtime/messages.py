"""What subtasks and driver tell each other on the control channel: one type for each kind of message.

A message is a map whose first entry is its kind, in msgpack. Reading one either gives a whole message, with all
fields there and of their types, or a MessageError that names the kind: nothing is ever half read. What belongs to an
attempt or to one of its cuts names it.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from headrace.errors import HeadraceError, MessageError, UserCodeError
from headrace.measure.backlog import Backlog
from headrace.measure.flows import Flow
from headrace.measure.report import Report, plain
from headrace.runtime.orders import Orders
from headrace.runtime.ownership import Table
from headrace.runtime.plan import Description, Ticket
from headrace.state.copies.nearest import Loading
from headrace.state.copies.placement import CopyNode
from headrace.state.durable.manifest import SliceVersion
from headrace.tokens import Attempt, Token

FinalSlice = tuple[str, int, SliceVersion]
"""A store, a slice, and what it is made of."""
Place = tuple[int, int]
"""Stage and subtask index."""


class _Message(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """What all messages have in common on the wire."""


class _FromSubtask(_Message, frozen=True):
    """Says which subtask speaks."""

    stage: int
    index: int

    @property
    def place(self) -> Place:
        return self.stage, self.index


class Inventory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The slices that a worker holds in memory for a stage, as they were at a version."""

    version: Token | None
    slices: tuple[int, ...]


class Hello(_FromSubtask, frozen=True, tag="hello"):
    """HELLO: a subtask has started, in process ``pid`` that ``daemon`` forked on ``host``, for a batch of Spark's.

    ``node`` keeps copies of state there, if any does; ``executor`` is what Spark calls the executor.
    """

    query: int
    batch: int
    inventory: Inventory | None
    host: str
    daemon: int
    pid: int
    node: CopyNode | None
    executor: str | None


class Loaded(_FromSubtask, frozen=True, tag="loaded"):
    """LOADED: a subtask has its state, and from where."""

    attempt: Attempt
    loading: Loading


class Aligned(_FromSubtask, frozen=True, tag="aligned"):
    """ALIGNED: a subtask has all senders' marks of a cut, and its state as of it is set aside."""

    token: Token


class Ready(_FromSubtask, frozen=True, tag="ready"):
    """READY: a subtask that was asked would come to a cut soon, for little is queued before it."""

    token: Token


class Described(_Message, frozen=True, tag="desc"):
    """DESC: a subtask's part of a cut is durable."""

    description: Description

    @property
    def place(self) -> Place:
        return self.description.stage, self.description.index

    @property
    def token(self) -> Token:
        return self.description.token


class Prepared(_FromSubtask, frozen=True, tag="prepared"):
    """PREPARED: a subtask has loaded the slices that it may be given, as of the version it was told to."""

    attempt: Attempt
    version: Token


class Adopted(_FromSubtask, frozen=True, tag="adopted"):
    """A subtask works on all slices that a cut gave to it; ``held_ms`` is for how long their records waited."""

    token: Token
    held_ms: float


class Reported(_FromSubtask, frozen=True, tag="report"):
    """What a subtask measured in an interval, and what is not measurement: its process, memory and engines.

    ``engines`` has for each reduce how it keeps its states, and why. ``exhausted``: its sources will read no more.
    ``counts`` are since the attempt began: ``in:step``, ``out:step``, ``late:step``, ``skipped:step``, ``shed:step``.
    """

    attempt: Attempt
    pid: int
    at_us: int
    cpu_s: float
    rss_bytes: int
    exhausted: bool
    engines: dict[str, tuple[str, str]]
    flows: tuple[Flow, ...]
    report: Report
    backlog: Backlog
    counts: dict[str, int]


class Failed(_Message, frozen=True, tag="failed"):
    """A subtask's last words, or what the driver found wrong itself (then ``place`` may be None).

    ``error`` is the name of the error's class, ``user_code`` what a UserCodeError is made of.
    """

    query: int
    place: Place | None
    error: str
    text: str
    user_code: tuple[str, str, str, str] | None

    @staticmethod
    def of(error: Exception, query: int, place: Place | None) -> Failed:
        """What is told of an error, so that the driver can raise one like it."""
        if isinstance(error, UserCodeError):
            return Failed(query, place, UserCodeError.__name__, str(error), error.__reduce__()[1])
        if isinstance(error, HeadraceError):
            return Failed(query, place, type(error).__name__, str(error), None)
        return Failed(query, place, "Exception", f"{type(error).__name__}: {error}", None)


class RowsShown(_Message, frozen=True, tag="rows"):
    """Rows that the driver is to show, as JSON data."""

    step: str
    rows: list[dict[str, Any]]


class ClockAsked(_Message, frozen=True, tag="clock"):
    """A worker asks for the driver's time."""

    sent_us: int


class Planned(_Message, frozen=True, tag="plan"):
    """PLAN: a subtask's part in the attempt that begins, for a worker of one query."""

    query: int
    ticket: Ticket

    @property
    def attempt(self) -> Attempt:
        return self.ticket.attempt


class Go(_Message, frozen=True, tag="go"):
    """GO: all have loaded; sources may read."""

    attempt: Attempt


class CutAsked(_Message, frozen=True, tag="ask"):
    """ASK: a cut is due; whoever has a short queue, or gets one, and the ``editions`` that hold after it, is to say READY."""

    token: Token
    editions: dict[str, str]


class CutOrdered(_Message, frozen=True, tag="cut"):
    """ORDER: sources are to make a cut between two polls. ``end``: they read no more after it, and the batch ends.

    ``at_us`` is when, by the driver's clock: who hears of it earlier waits, so that all make it at the same time and
    receivers have little to hold. ``tables`` are those that hold after it, of the stages where they change; ``editions``
    those of lookups, by step, where they change.
    """

    token: Token
    end: bool
    at_us: int
    tables: dict[int, Table]
    editions: dict[str, str]


class GoOn(_Message, frozen=True, tag="goon"):
    """GOON: all are aligned, so sources may run ahead of the cut as far as they like."""

    token: Token

    @property
    def attempt(self) -> Attempt:
        return self.token.by


class Logged(_Message, frozen=True, tag="logged"):
    """LOGGED: the cut is in the version log; it has happened."""

    token: Token

    @property
    def attempt(self) -> Attempt:
        return self.token.by


class Prepare(_Message, frozen=True, tag="prepare"):
    """PREPARE: slices may be given to a subtask at a cut to come; it loads them as of a version, which is at ``entry``."""

    attempt: Attempt
    entry: int
    version: Token
    slices: tuple[int, ...]


class Final(_Message, frozen=True, tag="final"):
    """FINAL: the slices that a cut gave to a subtask, each store's as of that cut; a slice without state is left out."""

    token: Token
    slices: tuple[FinalSlice, ...]


class Fenced(_Message, frozen=True, tag="fenced"):
    """FENCED: the subtask of a query is no longer wanted, and should give up."""

    query: int
    why: str


class Ordered(_Message, frozen=True, tag="orders"):
    """What to do from now on, for subtasks of one attempt."""

    attempt: Attempt
    orders: Orders


class ClockTold(_Message, frozen=True, tag="clock"):
    """The driver's time, in answer to what was asked at ``sent_us``; ``clock`` names the driver's clock."""

    sent_us: int
    clock: str
    received_us: int
    answered_us: int


class Ping(_Message, frozen=True, tag="ping"):
    """Only tests whether a worker can be reached."""


ToDriver = (
    Hello | Loaded | Ready | Aligned | Described | Prepared | Adopted | Reported | Failed | RowsShown | ClockAsked
)
ToWorker = Planned | Go | CutAsked | CutOrdered | GoOn | Logged | Prepare | Final | Fenced | Ordered | ClockTold | Ping
Turn = TypeVar("Turn", bound=Planned | Go | Logged)
"""What a subtask waits for before and after its work."""
Reply = tuple[bytes, ToWorker]
"""To whom, and what."""

_ENCODER = msgspec.msgpack.Encoder(enc_hook=plain)
_TO_DRIVER = msgspec.msgpack.Decoder(ToDriver)
_TO_WORKER = msgspec.msgpack.Decoder(ToWorker)
_UNREADABLE = (ValueError, RecursionError)
"""What decoding raises: msgspec's errors and those of text that is no UTF-8, and depth beyond what it follows."""
_KIND_FIRST = re.compile(rb".\xa4kind([\xa0-\xbf])", re.DOTALL)
"""A map's head, the name of its first entry, and the head of a short string: how all messages begin."""


def encode(message: ToDriver | ToWorker) -> bytes:
    """The bytes of a message."""
    return _ENCODER.encode(message)


def read_as_driver(data: bytes) -> ToDriver:
    """A message from a worker; MessageError if it is none."""
    try:
        message: ToDriver = _TO_DRIVER.decode(data)
    except _UNREADABLE as error:
        raise _refusal(data, error) from error
    return message


def read_as_worker(data: bytes) -> ToWorker:
    """A message from the driver; MessageError if it is none."""
    try:
        message: ToWorker = _TO_WORKER.decode(data)
    except _UNREADABLE as error:
        raise _refusal(data, error) from error
    return message


def kind_of(data: bytes) -> str | None:
    """A message's kind, also of one that is cut off or otherwise unreadable; None if even that cannot be told."""
    found = _KIND_FIRST.match(data)
    if found is None:
        return None
    size = found[1][0] & 0x1F
    kind = data[found.end() : found.end() + size]
    return kind.decode(errors="replace") if len(kind) == size else None


def _refusal(data: bytes, error: Exception) -> MessageError:
    kind = kind_of(data)
    what = f"of kind {kind!r}" if kind is not None else "of no kind that can be read"
    return MessageError(f"a control message {what} was refused ({len(data)} bytes): {error}")
