"""A job: where a workflow starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Unpack

import pyarrow as pa

from headrace.api.options import STEP_DEFAULTS, StepSettings, step_options
from headrace.api.stream import Path, Stream
from headrace.config import spelled_out
from headrace.connect.sink import Sink
from headrace.connect.source import Source
from headrace.errors import GraphError
from headrace.graph.nodes import DEAD_LETTERS, Constraint, Graph, Letters, Node, OnError, SourceNode
from headrace.graph.reduction import UserReducer
from headrace.graph.together import together
from headrace.graph.validate import validate
from headrace.graph.windowing import SessionWindow, TimeWindow, WholeInput, Window
from headrace.schemas import SchemaLike, to_schema
from headrace.units import Duration, duration_us

_SHRINK_AT = 64
"""Values of a key that a MapReduce program's ``combine`` is given at once."""
_BOUNDS = ("window_start", "window_end")
_STAMP = pa.timestamp("us", "UTC")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class Job:
    """A workflow under construction. ``graph()`` gives it as frozen, validated data.

    ``on_error``: what happens when a user's function raises or a record cannot be read: ``"fail"``
    stops the job with a message that names step, record and line; ``"skip"`` counts and goes on.
    ``dead_letter``: a sink that receives skipped records with the reason.
    """

    def __init__(self, name: str, *, on_error: OnError = "fail", dead_letter: Sink | None = None) -> None:
        if not _NAME.fullmatch(name):
            raise GraphError(f"job name {name!r}: use letters, digits, '-', '_' and '.', at most 100")
        if on_error not in ("fail", "skip"):
            raise GraphError(f"job {name!r}: on_error={on_error!r} is not 'fail' or 'skip'")
        self.name = name
        self._on_error: OnError = "skip" if dead_letter is not None else on_error
        self._letters = (Letters(DEAD_LETTERS, "", dead_letter),) if dead_letter is not None else ()
        self._nodes: dict[str, Node] = {}
        self._constraints: list[Constraint] = []

    def __repr__(self) -> str:
        return f"<Job {self.name!r}: {', '.join(self._nodes) or 'no steps yet'}>"

    @spelled_out(StepSettings, STEP_DEFAULTS)
    def source(
        self,
        name: str,
        source: Source,
        *,
        event_time: str | None = None,
        time_unit: Literal["s", "ms", "us", "ns"] | None = None,
        lateness: Duration = 0,
        idle: Duration | None = None,
        **options: Unpack[StepSettings],
    ) -> Stream:
        """Read records.

        ``event_time``: the column that says when a record happened (a timestamp, ISO text, a whole
        number of milliseconds or a float of seconds; ``time_unit`` says otherwise). ``lateness``: how
        far out of order records may be (the delay of Spark's ``withWatermark``). ``idle``: silence after which a live
        source no longer holds back the others' windows.
        """
        if not callable(getattr(source, "partitions", None)):
            raise GraphError(f"source {name!r} needs a source such as hr.replay('clicks.jsonl'), not {source!r:.80}")
        if time_unit not in (None, "s", "ms", "us", "ns"):
            raise GraphError(f"source {name!r}: time_unit={time_unit!r} is not 's', 'ms', 'us' or 'ns'")
        node = SourceNode(
            name,
            source,
            event_time,
            time_unit,
            duration_us(lateness, "lateness"),
            duration_us(idle, "idle") if idle is not None else None,
            step_options(name, options, ("event_time", "time_unit", "lateness", "idle")),
        )
        return self.add(node)

    def constrain(
        self,
        path: Path,
        *,
        mean: Duration | None = None,
        over: Duration = "5 s",
        p95: Duration | None = None,
        p99: Duration | None = None,
    ) -> None:
        """Bound the latency of a path: its mean, or a quantile, over any span of ``over``."""
        if path.job is not self:
            raise GraphError(
                f"constrain({path.start} >> {path.end}): the path belongs to job {path.job.name!r}, not to {self.name!r}; "
                f"constrain it there"
            )
        bounds = [(None, mean), (0.95, p95), (0.99, p99)]
        given = [(q, value) for q, value in bounds if value is not None]
        if len(given) != 1:
            raise GraphError(f"constrain({path.start} >> {path.end}) takes exactly one of mean=, p95=, p99=")
        quantile, bound = given[0]
        bound_us = duration_us(bound, "bound")
        if bound_us <= 0 or duration_us(over, "over") <= 0:
            raise GraphError(f"constrain({path.start} >> {path.end}): the bound and over= must be more than zero")
        self._constraints.append(
            Constraint(
                path.start,
                path.end,
                duration_us(over, "over"),
                mean_us=bound_us if quantile is None else None,
                quantile=quantile,
                quantile_us=bound_us if quantile is not None else None,
            )
        )

    def map_reduce(
        self,
        name: str,
        *,
        inputs: Sequence[Stream],
        map: Callable[[dict[str, Any]], Iterable[tuple[Any, Any]]],
        reduce: Callable[[Any, list[Any]], Any],
        combine: Callable[[Any, list[Any]], Any] | None = None,
        window: Window | None = None,
        pairs: SchemaLike | None = None,
        returns: SchemaLike | None = None,
    ) -> Stream:
        """A classic MapReduce program as a step: rows of ``key`` and ``value``.

        ``map(record)`` yields (key, value) pairs, ``combine(key, values)`` shrinks values to one,
        ``reduce(key, values)`` gives the key's result. Without a window, results come at the end; with one of
        time, each also has its ``window_start`` and ``window_end``. The functions are the same in both cases.
        ``pairs`` and ``returns`` declare the types of ``key`` and ``value`` after map and after reduce,
        where the first records do not show them.
        """
        if not inputs:
            raise GraphError(f"map_reduce {name!r} needs at least one input stream: inputs=[stream]")
        for what, fn in (("map", map), ("reduce", reduce), ("combine", combine)):
            if not callable(fn) and (fn is not None or what != "combine"):
                raise GraphError(f"map_reduce {name!r}: {what}={fn!r} is not a function")
        for what, declared in (("pairs", pairs), ("returns", returns)):
            if declared is not None and not {"key", "value"} <= {*to_schema(declared).names}:
                raise GraphError(f"map_reduce {name!r}: {what}= declares 'key' and 'value'")
        merged = inputs[0] if len(inputs) == 1 else inputs[0].union(*inputs[1:], name=f"{name}.inputs")
        kinds = to_schema(pairs) if pairs is not None else None
        gathered = {"values": pa.list_(kinds.field("value").type)} if kinds is not None else None
        mapped = merged.flat_map(_Pairs(map), name=f"{name}.map", returns=kinds)
        values = _Values(combine)
        grouped = UserReducer(init=list, update=values.update, combine=values.combine, finalize=values.finish)
        keyed = mapped.key_by("key").window(window or WholeInput())
        reduced = keyed.reduce(name=f"{name}.group", values=grouped, returns=gathered)
        results = to_schema(returns) if returns is not None else None
        if results is not None and isinstance(window, (TimeWindow, SessionWindow)):
            results = pa.schema([*results, *(pa.field(name, _STAMP) for name in _BOUNDS if name not in results.names)])
        return reduced.map(_Reduced(reduce), name=name, returns=results)

    def graph(self, *, need_sink: bool = True) -> Graph:
        """The job as frozen data; raises GraphError if it is not a legal workflow."""
        graph = Graph(self.name, tuple(self._nodes.values()), tuple(self._constraints), self._on_error, self._letters)
        validate(graph, need_sink=need_sink)
        return graph

    def add(self, node: Node) -> Stream:
        """Add a step (used by streams)."""
        if not _NAME.fullmatch(node.name):
            raise GraphError(f"step name {node.name!r}: use letters, digits, '-', '_' and '.', at most 100")
        if node.name in self._nodes:
            raise GraphError(
                f"job {self.name!r} already has a step {node.name!r}; a name is the key of a step's state: choose another"
            )
        self._nodes[node.name] = node
        return Stream(self, node.name)

    def node(self, name: str) -> Node:
        """A step as data (used by streams)."""
        return self._nodes[name]

    def auto_name(self, kind: str, after: str) -> str:
        """A name for an unnamed step: stable as long as the workflow around it is."""
        name, n = f"{after}.{kind}", 2
        while name in self._nodes:
            name, n = f"{after}.{kind}{n}", n + 1
        return name


Jobs = Job | Sequence[Job]
"""One job, or several that run together."""


def graph_of(jobs: Jobs, *, need_sink: bool = True) -> Graph:
    """A job's graph, or one graph of several jobs, in which each step's name has its job's in front."""
    graphs = [job.graph(need_sink=need_sink) for job in jobs_of(jobs)]
    return graphs[0] if len(graphs) == 1 else together(graphs)


def jobs_of(jobs: Jobs) -> list[Job]:
    """The jobs that are to run together; GraphError if that is something else."""
    found = list(jobs) if isinstance(jobs, Sequence) else [jobs]
    if not all(isinstance(job, Job) for job in found):
        raise GraphError(f"what runs is a job, hr.Job(name), or a list of jobs, not {jobs!r:.80}")
    return found


@dataclass(frozen=True, slots=True)
class _Pairs:
    """``map`` of a MapReduce program as a flat_map step."""

    fn: Callable[[dict[str, Any]], Iterable[tuple[Any, Any]]]

    def __call__(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"key": key, "value": value} for key, value in self.fn(record)]


@dataclass(frozen=True, slots=True)
class _Values:
    """A key's values as reducer state: ``[key, [values]]``, shrunk by ``combine`` as they gather."""

    fn: Callable[[Any, list[Any]], Any] | None

    def update(self, state: list[Any], record: dict[str, Any]) -> list[Any]:
        values = state[1] if state else []
        values.append(record["value"])
        return self._shrunk(record["key"], values)

    def combine(self, one: list[Any], other: list[Any]) -> list[Any]:
        if not one or not other:
            return one or other
        return self._shrunk(one[0], [*one[1], *other[1]])

    def _shrunk(self, key: Any, values: list[Any]) -> list[Any]:
        if self.fn is not None and len(values) >= _SHRINK_AT:
            values = [self.fn(key, values)]
        return [key, values]

    def finish(self, state: list[Any]) -> list[Any]:
        values: list[Any] = state[1] if state else []
        return values


@dataclass(frozen=True, slots=True)
class _Reduced:
    """``reduce`` of a MapReduce program as a map step."""

    fn: Callable[[Any, list[Any]], Any]

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        bounds = {name: record[name] for name in _BOUNDS if name in record}
        return {"key": record["key"], "value": self.fn(record["key"], record["values"]), **bounds}
