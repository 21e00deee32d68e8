"""Streams grouped by key: reduced, joined, or processed with the states that a step declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

from headrace.api.joining import join_bounds, join_memory
from headrace.api.options import STEP_DEFAULTS, Latency, ParallelismLike, StepSettings, step_options
from headrace.api.reducing import AtLeast, ReduceState, check_columns, check_groups, merged_columns, own_columns
from headrace.api.spellings import METHODS, missing
from headrace.config import spelled_out
from headrace.errors import GraphError
from headrace.graph.nodes import DeclaredState, JoinHow, JoinNode, OnError, ProcessNode, ReduceNode, Shed, StateKind
from headrace.graph.reduction import Reducer
from headrace.graph.windowing import Window
from headrace.schemas import SchemaLike
from headrace.units import Duration, duration_us

if TYPE_CHECKING:
    from headrace.api.job import Job
    from headrace.api.stream import Stream

_with_step_settings = spelled_out(StepSettings, STEP_DEFAULTS)


@dataclass(frozen=True, slots=True)
class KeyedStream:
    """A stream grouped by key, perhaps cut into windows; ``reduce``, ``process`` or ``join`` it."""

    job: Job
    name: str
    keys: tuple[str, ...]
    windowed: Window | None = None

    def __repr__(self) -> str:
        over = f" over {self.windowed.describe()}" if self.windowed is not None else ""
        return f"<KeyedStream {self.name!r} by {', '.join(self.keys)}{over}, of job {self.job.name!r}>"

    if not TYPE_CHECKING:  # a type checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(missing("'KeyedStream' object", name, METHODS))

    def window(self, window: Window) -> KeyedStream:
        """Cut each key's records into windows."""
        if not isinstance(window, Window):
            raise GraphError(
                f"window after {self.name!r} needs a window such as hr.tumbling('10 s'), not {window!r:.80}"
            )
        return replace(self, windowed=window)

    def reduce(
        self,
        columns: Mapping[str, Reducer] | None = None,
        /,
        *,
        name: str | None = None,
        state: ReduceState | None = None,
        overload: Shed | None = None,
        emit: AtLeast | None = None,
        parallelism: ParallelismLike | None = None,
        latency: Latency = "read-ready",
        on_error: OnError | None = None,
        returns: SchemaLike | None = None,
        deterministic: bool = True,
        **reducers: Reducer,
    ) -> Stream:
        """One row per key and window, with a column per reducer: ``reduce(n=hr.count(), likes=hr.sum("likes"))``.

        Without a window the step keeps a running result per key and emits it whenever it changed.

        ``state=hr.keep(memory="64 MB")``: how its state is kept. ``overload=hr.shed(after="200 ms")``: what it does
        under more load than it can carry. ``emit=hr.at_least(n=50)``: only results that reach this, as soon as they do.

        A result column may have any name except those of the keys and of what the step adds itself (``window_start``
        and ``window_end``; ``version`` and ``completeness`` of versioned windows; ``coverage`` if asked for). Columns
        that are named like an option are given in a mapping: ``reduce({"state": hr.last("state")}, n=hr.count())``.
        """
        step = name if name and isinstance(name, str) else self.job.auto_name("reduce", self.name)
        kept = state if isinstance(state, ReduceState) else ReduceState()
        groups: dict[str, Any] = {"state": state, "overload": overload, "emit": emit}
        options = {
            "parallelism": parallelism, "latency": latency, "on_error": on_error, "returns": returns,
            "deterministic": deterministic,
        }  # fmt: skip
        results = merged_columns(step, columns, reducers)
        taken = (*self.keys, *own_columns(self.windowed, kept))
        check_columns(step, results, taken, {"name": name, **groups, **options})
        check_groups(step, groups)
        node = ReduceNode(
            step, self.keys, self.windowed, tuple(results.items()), (self.name,),
            engine=kept.engine,
            memory_bytes=kept.memory_bytes,
            coverage=kept.coverage,
            options=step_options(step, options),
            at_least=(emit.column, emit.minimum) if emit is not None else None,
            max_records=kept.max_records,
            combine=kept.combine,
            overload=overload,
        )  # fmt: skip
        return self.job.add(node)

    @_with_step_settings
    def process(
        self,
        fn: Callable[..., Any],
        *,
        state: Mapping[str, DeclaredState] | None = None,
        on_timer: Callable[..., Any] | None = None,
        name: str | None = None,
        **options: Unpack[StepSettings],
    ) -> Stream:
        """Call ``fn(record, state, out)`` for each record with its key's state.

        ``out(record)`` emits. ``state.timer(after="5 s")`` or ``state.timer(at=time)`` asks for a call
        of ``on_timer(timer, state, out)`` in event time, or with ``clock="processing"`` in wall time.
        An event timer fires when all input up to its time has been seen: where stages run one after
        the other (microbatch, batch) that is after all records of the batch. Timers that ``on_timer``
        sets once the input has ended do not fire.
        """
        if self.windowed is not None:
            raise GraphError(f"process after {self.name!r}: a window belongs to reduce or join; use timers here")
        name = name or self.job.auto_name("process", self.name)
        if not callable(fn) or not (on_timer is None or callable(on_timer)):
            raise GraphError(f"process {name!r} needs functions: fn(record, state, out), on_timer(timer, state, out)")
        if not isinstance(state or {}, Mapping):
            raise GraphError(f"process {name!r}: state= declares states by name, such as {{'seen': hr.value()}}")
        for what, kind in (state or {}).items():
            if not isinstance(kind, DeclaredState):
                raise GraphError(f"process {name!r}: state {what!r} must be hr.value(), hr.queue() or hr.mapping()")
        node = ProcessNode(
            name, self.keys, fn, tuple((state or {}).items()), (self.name,), on_timer, step_options(name, options)
        )
        return self.job.add(node)

    @_with_step_settings
    def join(
        self,
        other: KeyedStream,
        *,
        within: Duration | None = None,
        before: Duration | None = None,
        after: Duration | None = None,
        how: JoinHow | Literal["full"] = "inner",
        state: ReduceState | None = None,
        name: str | None = None,
        **options: Unpack[StepSettings],
    ) -> Stream:
        """Join two keyed streams on equal keys whose event times are near, or that lie in the same window.

        ``join(payments, within="1 min")`` pairs records whose times are at most a minute apart; ``before="10 s",
        after="1 min"`` those of the other side from ten seconds before to a minute after one of this side (nothing is
        said: not at all). A pair comes as soon as both records are there. A record that meets none comes by itself,
        if its side is an outer one, when the watermark has passed the last time at which it could have met one.
        ``state=hr.keep(memory="64 MB")`` bounds the memory for records that wait in each subtask; the rest goes to disk.

        With a window, ``left.key_by("k").window(hr.tumbling("10 s")).join(right.key_by("k"))``, all records of a key and
        window meet, and all rows come at the window's end. Records on either side of a border never meet.

        Both sides are keyed by columns of the same names, in the same order; rename columns with ``map_batch`` where
        they differ. The window is given on this side and cuts both. ``how`` is ``"inner"``, ``"left"``, ``"right"`` or
        ``"outer"`` (also ``"full"``, which is the same). Columns of the other side whose names this side has too get
        the suffix ``_right``.
        """
        name = name or self.job.auto_name("join", self.name)
        if not isinstance(other, KeyedStream):
            raise GraphError(
                f"join {name!r}: the other side needs a key too: join(other.key_by('column')), not {other!r:.80}"
            )
        same_job(self, other)
        over = join_bounds(name, self.windowed, {"within": within, "before": before, "after": after})
        memory_bytes = join_memory(name, over, state)
        if self.keys != other.keys:
            raise GraphError(
                f"join {name!r}: both sides need key columns of the same names in the same order, not {self.keys} and "
                f"{other.keys}; rename them before key_by"
            )
        if how not in (*get_args(JoinHow), "full"):
            raise GraphError(f"join {name!r}: how={how!r} is not inner, left, right, outer or full")
        kind: JoinHow = "outer" if how == "full" else how
        chosen = step_options(name, options, ("within", "before", "after", "how", "state"))
        return self.job.add(JoinNode(name, self.keys, over, kind, (self.name, other.name), chosen, memory_bytes))


def same_job(one: Stream | KeyedStream, other: Stream | KeyedStream) -> None:
    """Raise GraphError if two streams are of different jobs."""
    if one.job is not other.job:
        raise GraphError(f"{one.name!r} and {other.name!r} belong to different jobs; build both on one hr.Job")


def value(*, ttl: Duration | None = None) -> DeclaredState:
    """One value per key: ``get() set(v) delete()``.

    With ``ttl="1 day"`` a record (or timer) finds what was set less than a day before it, by the time of records; older
    state is deleted, and so is that of keys of which nothing more comes. Reading does not make it last longer.

    >>> value(ttl="1 day").ttl_us
    86400000000
    """
    return _declared("value", ttl)


def queue(*, ttl: Duration | None = None) -> DeclaredState:
    """A first-in first-out queue per key: ``append(v) popleft() peek() len() iter()``; with ``ttl`` each element expires."""
    return _declared("queue", ttl)


def mapping(*, ttl: Duration | None = None) -> DeclaredState:
    """A dictionary per key: ``get(k) set(k, v) delete(k) items() len()``; with ``ttl`` each item expires by itself, and they
    are in the order in which they were last set.
    """
    return _declared("mapping", ttl)


def _declared(kind: StateKind, ttl: Duration | None) -> DeclaredState:
    if ttl is None:
        return DeclaredState(kind)
    ttl_us = duration_us(ttl, "ttl")
    if ttl_us < 1:
        raise GraphError(f"hr.{kind}: ttl={ttl!r} must be more than zero; leave it out to keep state for ever")
    return DeclaredState(kind, ttl_us)
