"""Streams: immutable handles on a step of a job; each method adds a step and returns its stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import pyarrow as pa

from headrace.connect.sink import Sink
from headrace.errors import GraphError, SchemaError
from headrace.graph.nodes import (
    Combine,
    JoinHow,
    JoinNode,
    Late,
    OnError,
    Parallelism,
    ProcessNode,
    ReduceNode,
    SinkNode,
    StateKind,
    StepOptions,
    TransformNode,
    UnionNode,
)
from headrace.graph.reduction import Aggregate, Reducer, UserReducer
from headrace.graph.windowing import Window
from headrace.schemas import SchemaLike, to_schema
from headrace.units import Duration, duration_us, size_bytes

if TYPE_CHECKING:
    from headrace.api.job import Job

ENGINES = ("auto", "inc", "dinc", "dinc-space-saving", "dinc-marker", "mr")
ParallelismLike = int | tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Path:
    """A part of the workflow, from one step to another: ``tweets >> hot``."""

    job: Job
    start: str
    end: str

    def __rshift__(self, other: Stream) -> Path:
        return Path(self.job, self.start, other.name)


@dataclass(frozen=True, slots=True)
class Stream:
    """What a step produces."""

    job: Job
    name: str

    def __rshift__(self, other: Stream) -> Path:
        return Path(self.job, self.name, other.name)

    def map(
        self, fn: Callable[[dict[str, Any]], Mapping[str, Any]], *, name: str | None = None, **options: Any
    ) -> Stream:
        """One record in, one record out. Options: see ``step_options``."""
        return self._transform("map", fn, name, options)

    def flat_map(self, fn: Callable[[dict[str, Any]], Any], *, name: str | None = None, **options: Any) -> Stream:
        """One record in, any number of records out."""
        return self._transform("flat_map", fn, name, options)

    def filter(self, fn: Callable[[dict[str, Any]], bool], *, name: str | None = None, **options: Any) -> Stream:
        """Keep the records for which ``fn`` is true."""
        return self._transform("filter", fn, name, options)

    def map_batch(
        self, fn: Callable[[pa.RecordBatch], pa.RecordBatch], *, name: str | None = None, **options: Any
    ) -> Stream:
        """A whole Arrow batch in, a batch out: the fast way.

        A function that changes the number of rows must keep the event-time column.
        """
        return self._transform("map_batch", fn, name, options)

    def union(self, *others: Stream, name: str | None = None, **options: Any) -> Stream:
        """The records of several streams with the same columns."""
        for other in others:
            _same_job(self, other)
        name = name or self.job.auto_name("union", self.name)
        return self.job.add(UnionNode(name, (self.name, *(o.name for o in others)), step_options(name, options)))

    def key_by(self, *columns: str) -> KeyedStream:
        """Group by one or more columns for what follows."""
        if not columns or not all(isinstance(column, str) for column in columns):
            raise GraphError(f"key_by after {self.name!r} needs column names, for example key_by('user')")
        return KeyedStream(self.job, self.name, columns)

    def sink(self, name: str, sink: Sink, **options: Any) -> Stream:
        """Send the records to a sink; returns this stream, so that others can follow."""
        if not callable(getattr(sink, "publish", None)):
            raise GraphError(f"sink {name!r} needs a sink such as hr.jsonl('out/'), not {sink!r:.80}")
        self.job.add(SinkNode(name, sink, (self.name,), step_options(name, options)))
        return self

    def _transform(self, kind: Any, fn: Callable[..., Any], name: str | None, options: dict[str, Any]) -> Stream:
        if not callable(fn):
            raise GraphError(f"{kind} after {self.name!r} needs a function, not {fn!r}")
        name = name or self.job.auto_name(kind, self.name)
        return self.job.add(TransformNode(name, kind, fn, (self.name,), step_options(name, options)))


@dataclass(frozen=True, slots=True)
class KeyedStream:
    """A stream grouped by key, perhaps cut into windows; ``reduce``, ``process`` or ``join`` it."""

    job: Job
    name: str
    keys: tuple[str, ...]
    windowed: Window | None = None

    def window(self, window: Window) -> KeyedStream:
        """Cut each key's records into windows."""
        if not isinstance(window, Window):
            raise GraphError(
                f"window after {self.name!r} needs a window such as hr.tumbling('10 s'), not {window!r:.80}"
            )
        return replace(self, windowed=window)

    def reduce(
        self,
        *,
        name: str | None = None,
        engine: str = "auto",
        memory: str | int | None = None,
        coverage: float | None = None,
        at_least: Mapping[str, float] | None = None,
        expect: int | None = None,
        combine: Combine = "auto",
        late: Late = "drop",
        shed_after: Duration | None = None,
        latency: Literal["read-ready", "read-write"] = "read-ready",
        parallelism: ParallelismLike | None = None,
        on_error: OnError | None = None,
        returns: SchemaLike | None = None,
        **reducers: Reducer,
    ) -> Stream:
        """One row per key and window, with a column per reducer: ``reduce(n=hr.count())``.

        Without a window the step keeps a running result per key and emits it whenever it changed.

        ``memory="64 MB"`` bounds what the step's state takes in each subtask; the rest goes to disk, by
        ``engine`` (``docs/how-it-works.md``), and answers stay exact. Where records change results one by one
        (no window, count windows, sessions), a key on disk has its result when the epoch ends at the latest. With ``coverage=0.9`` a key whose
        state has seen at least that share of its records is not looked up on disk; a column ``coverage``
        says how much it has seen. ``at_least={"n": 50}`` emits only keys that reach this, as soon as they
        do, each once. With both, and ``expect`` as the largest number of records there can be, nothing is
        written to disk at all if memory suffices to cover every key that frequent: counts are then too low
        by at most the share that ``coverage`` leaves, no frequent key is missed, and a few that are almost
        as frequent may be among the answers.

        ``combine``: partial aggregates, made before the shuffle, and for sliding windows one per pane, which
        overlapping windows share. ``"auto"`` makes them before the shuffle where that pays, and keeps panes or
        whole windows by the rate and the number of keys it sees; ``True`` always keeps panes; ``False`` makes
        none. Answers are the same.

        ``late="shed"``: under more load than it can carry, the step abandons records that cannot be processed
        within ``shed_after``, or else within the tightest bound of a constraint on a path through it, and counts
        them (``shed``). Answers are then approximate. Only in realtime mode; other modes process everything.
        """
        name = name or self.job.auto_name("reduce", self.name)
        if not reducers:
            raise GraphError(f"reduce {name!r} has no reducer; write for example reduce(name={name!r}, n=hr.count())")
        for column, reducer in reducers.items():
            if not isinstance(reducer, (Aggregate, UserReducer)):
                raise GraphError(f"reduce {name!r}: {column}={reducer!r} is not a reducer such as hr.count()")
            if column in self.keys or column in ("window_start", "window_end", "version", "completeness", "coverage"):
                raise GraphError(f"reduce {name!r}: the column name {column!r} is taken; choose another")
        if engine not in ENGINES:
            raise GraphError(f"reduce {name!r}: engine {engine!r} is not one of {', '.join(ENGINES)}")
        if combine not in ("auto", True, False):
            raise GraphError(f"reduce {name!r}: combine={combine!r} is not 'auto', True or False")
        options = step_options(
            name, {"latency": latency, "parallelism": parallelism, "on_error": on_error, "returns": returns}
        )
        return self.job.add(
            ReduceNode(
                name,
                self.keys,
                self.windowed,
                tuple(reducers.items()),
                (self.name,),
                engine,
                size_bytes(memory, "memory") if memory is not None else None,
                coverage,
                options,
                _threshold(name, at_least),
                expect,
                combine,
                late=late,
                shed_after_us=duration_us(shed_after, "shed_after") if shed_after is not None else None,
            )
        )

    def process(
        self,
        fn: Callable[..., Any],
        *,
        state: Mapping[str, StateKind] | None = None,
        on_timer: Callable[..., Any] | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Stream:
        """Call ``fn(record, state, out)`` for each record with its key's state.

        ``out(record)`` emits. ``state.timer(after="5 s")`` or ``state.timer(at=time)`` asks for a call
        of ``on_timer(timer, state, out)`` in event time, or with ``clock="processing"`` in wall time.
        An event timer fires when all input up to its time has been seen: where stages run one after
        the other (microbatch, batch) that is after all records of the epoch. Timers that ``on_timer``
        sets once the input has ended do not fire.
        """
        if self.windowed is not None:
            raise GraphError(f"process after {self.name!r}: a window belongs to reduce or join; use timers here")
        name = name or self.job.auto_name("process", self.name)
        if not callable(fn) or not (on_timer is None or callable(on_timer)):
            raise GraphError(f"process {name!r} needs functions: fn(record, state, out), on_timer(timer, state, out)")
        for what, kind in (state or {}).items():
            if kind not in get_args(StateKind):
                raise GraphError(f"process {name!r}: state {what!r} must be hr.value(), hr.queue() or hr.mapping()")
        node = ProcessNode(
            name, self.keys, fn, tuple((state or {}).items()), (self.name,), on_timer, step_options(name, options)
        )
        return self.job.add(node)

    def join(self, other: KeyedStream, *, how: JoinHow = "inner", name: str | None = None, **options: Any) -> Stream:
        """Join two keyed streams on equal keys within each window.

        The window stands on this side; both sides are keyed by the same number of columns, whose
        names come from this side. Columns of the other side that clash get the suffix ``_right``.
        """
        _same_job(self, other)
        name = name or self.job.auto_name("join", self.name)
        if self.windowed is None:
            raise GraphError(f"join {name!r} needs a window: left.key_by(...).window(hr.tumbling('10 s')).join(right)")
        if self.keys != other.keys:
            raise GraphError(f"join {name!r}: both sides need the same key columns, not {self.keys} and {other.keys}")
        if how not in ("inner", "left", "right", "outer"):
            raise GraphError(f"join {name!r}: how={how!r} is not inner, left, right or outer")
        return self.job.add(
            JoinNode(name, self.keys, self.windowed, how, (self.name, other.name), step_options(name, options))
        )


def step_options(step: str, options: Mapping[str, Any]) -> StepOptions:
    """Read the options that any step has.

    ``latency=``, ``chain=``, ``parallelism=``, ``on_error=``, ``returns=``, and ``deterministic=False`` for a step
    that may answer differently each time, or does more than answer: it never runs in place of an equal one.
    """
    known = ("latency", "chain", "parallelism", "on_error", "returns", "deterministic")
    unknown = sorted(set(options) - {*known})
    if unknown:
        raise GraphError(f"step {step!r}: unknown option {unknown[0]!r}; known: {', '.join(known)}")
    latency, on_error = options.get("latency", "read-ready"), options.get("on_error")
    if latency not in ("read-ready", "read-write"):
        raise GraphError(f"step {step!r}: latency={latency!r} is not 'read-ready' or 'read-write'")
    if on_error not in (None, "fail", "skip"):
        raise GraphError(f"step {step!r}: on_error={on_error!r} is not 'fail' or 'skip'")
    try:
        returns = to_schema(options["returns"]) if options.get("returns") is not None else None
    except SchemaError as error:
        raise SchemaError(f"step {step!r}: returns={options['returns']!r:.80}: {error}") from None
    return StepOptions(
        latency=latency,
        chain=bool(options.get("chain", True)),
        parallelism=_parallelism(step, options.get("parallelism")),
        on_error=on_error,
        returns=returns,
        deterministic=bool(options.get("deterministic", True)),
    )


def _parallelism(step: str, value: ParallelismLike | None) -> Parallelism | None:
    if value is None:
        return None
    bounds = (value, value, value) if isinstance(value, int) else value
    whole = isinstance(bounds, tuple) and len(bounds) == 3 and all(type(n) is int for n in bounds)
    if not whole or not 1 <= bounds[0] <= bounds[1] <= bounds[2]:
        raise GraphError(f"step {step!r}: parallelism={value!r} must be (min, start, max) with 1 ≤ min ≤ start ≤ max")
    return Parallelism(*bounds)


def _same_job(one: Stream | KeyedStream, other: Stream | KeyedStream) -> None:
    if one.job is not other.job:
        raise GraphError(f"{one.name!r} and {other.name!r} belong to different jobs; build both on one hr.Job")


def _threshold(name: str, at_least: Mapping[str, float] | None) -> tuple[str, float] | None:
    if at_least is None:
        return None
    if len(at_least) != 1:
        raise GraphError(f"reduce {name!r}: at_least takes one reducer and its least value, such as {{'n': 50}}")
    ((reducer, minimum),) = at_least.items()
    return reducer, float(minimum)
