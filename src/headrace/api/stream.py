"""Streams: immutable handles on a step of a job; each method adds a step and returns its stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack, get_args

import pyarrow as pa

from headrace.api.keyed import KeyedStream, same_job
from headrace.api.options import STEP_DEFAULTS, StepSettings, step_options
from headrace.api.spellings import METHODS, missing
from headrace.config import spelled_out
from headrace.connect.lookuptable import LookupTable
from headrace.connect.sink import Sink
from headrace.errors import GraphError
from headrace.graph.nodes import (
    JoinNode,
    LateNode,
    LookupHow,
    LookupNode,
    SinkNode,
    TransformKind,
    TransformNode,
    UnionNode,
)

if TYPE_CHECKING:
    from headrace.api.job import Job

Record: TypeAlias = dict[str, Any]
"""What a function of a step is given: a record's values by column."""
_with_step_settings = spelled_out(StepSettings, STEP_DEFAULTS)


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

    def __repr__(self) -> str:
        return f"<Stream {self.name!r} of job {self.job.name!r}>"

    if not TYPE_CHECKING:  # a type checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            if name in ("window", "reduce", "process", "join"):
                raise AttributeError(f"{name} after {self.name!r} needs a key first: .key_by('column').{name}(…)")
            raise AttributeError(missing("'Stream' object", name, METHODS))

    def __rshift__(self, other: Stream) -> Path:
        return Path(self.job, self.name, other.name)

    @_with_step_settings
    def map(
        self, fn: Callable[[Record], Mapping[str, Any]], *, name: str | None = None, **options: Unpack[StepSettings]
    ) -> Stream:
        """One record in, one record out."""
        return self._transform("map", fn, name, options)

    @_with_step_settings
    def flat_map(
        self,
        fn: Callable[[Record], Iterable[Mapping[str, Any]] | None],
        *,
        name: str | None = None,
        **options: Unpack[StepSettings],
    ) -> Stream:
        """One record in, any number of records out."""
        return self._transform("flat_map", fn, name, options)

    @_with_step_settings
    def filter(
        self, fn: Callable[[Record], object], *, name: str | None = None, **options: Unpack[StepSettings]
    ) -> Stream:
        """Keep the records for which ``fn`` is true."""
        return self._transform("filter", fn, name, options)

    @_with_step_settings
    def map_batch(
        self,
        fn: Callable[[pa.RecordBatch], pa.RecordBatch],
        *,
        name: str | None = None,
        **options: Unpack[StepSettings],
    ) -> Stream:
        """A whole Arrow batch in, a batch out: the fast way.

        A function that changes the number of rows must keep the event-time column.
        """
        return self._transform("map_batch", fn, name, options)

    @_with_step_settings
    def union(self, *others: Stream, name: str | None = None, **options: Unpack[StepSettings]) -> Stream:
        """The records of several streams with the same columns, duplicates and all (SQL's ``UNION ALL``)."""
        for other in others:
            same_job(self, other)
        name = name or self.job.auto_name("union", self.name)
        return self.job.add(UnionNode(name, (self.name, *(o.name for o in others)), step_options(name, options)))

    @_with_step_settings
    def lookup(
        self,
        table: LookupTable,
        *,
        on: str | Sequence[str] | None = None,
        how: LookupHow = "inner",
        name: str | None = None,
        **options: Unpack[StepSettings],
    ) -> Stream:
        """Add to each record the columns of its row in a small table, ``hr.table("rates.parquet", key="currency")``.

        ``on`` are the columns that the table's keys are compared with, if they have other names. A record without a row is
        left out (``"inner"``), or has nulls (``"left"``). Columns whose names the stream has too get the suffix
        ``_right``. Between two cuts all records see the same table, again after a restart; what was read anew holds from
        the next cut on.
        """
        name = name or self.job.auto_name("lookup", self.name)
        if not isinstance(table, LookupTable):
            raise GraphError(
                f"lookup {name!r} needs a table such as hr.table('rates.parquet', key='currency'), not {table!r:.80}"
            )
        columns = table.key if on is None else (on,) if isinstance(on, str) else tuple(on)
        if len(columns) != len(table.key) or len({*columns}) < len(columns):
            raise GraphError(
                f"lookup {name!r}: on={on!r} must name one column for each key of the table: {', '.join(table.key)}"
            )
        if how not in get_args(LookupHow):
            raise GraphError(f"lookup {name!r}: how={how!r} is not 'inner' or 'left'")
        return self.job.add(LookupNode(name, table, columns, how, (self.name,), step_options(name, options)))

    def key_by(self, *columns: str) -> KeyedStream:
        """Group by one or more columns for what follows."""
        if not columns or not all(isinstance(column, str) for column in columns):
            raise GraphError(f"key_by after {self.name!r} needs column names, for example key_by('user')")
        if len({*columns}) < len(columns):
            raise GraphError(f"key_by after {self.name!r} names a column twice: {', '.join(columns)}; name each once")
        return KeyedStream(self.job, self.name, columns)

    def late(self, side: Literal["left", "right"] | None = None, *, name: str | None = None) -> Stream:
        """The records that came too late for this step, which is windowed: not its results, but what it reads.

        A record is here if it counts in none of its windows: ``hot.late().sink("late", hr.jsonl("late/"))``. Each is
        here exactly once, whatever fails. Of a join ``side`` says whose: of the stream that was joined (``"left"``)
        or of the other one (``"right"``).
        """
        step = self.job.node(self.name)
        if isinstance(step, JoinNode) and side not in ("left", "right"):
            raise GraphError(f"late() after join {self.name!r} needs a side: late('left') or late('right')")
        if side is not None and not isinstance(step, JoinNode):
            raise GraphError(f"late({side!r}) after {self.name!r}: only a join has sides; write late()")
        kind = f"late_{side}" if side is not None else "late"
        name = name or self.job.auto_name(kind, self.name)
        return self.job.add(LateNode(name, (self.name,), 1 if side == "right" else 0))

    @_with_step_settings
    def sink(self, name: str, sink: Sink, **options: Unpack[StepSettings]) -> Stream:
        """Send the records to a sink; returns this stream, so that others can follow."""
        if not callable(getattr(sink, "publish", None)):
            raise GraphError(f"sink {name!r} needs a sink such as hr.jsonl('out/'), not {sink!r:.80}")
        self.job.add(SinkNode(name, sink, (self.name,), step_options(name, options)))
        return self

    def _transform(
        self, kind: TransformKind, fn: Callable[..., Any], name: str | None, options: StepSettings
    ) -> Stream:
        if not callable(fn):
            raise GraphError(f"{kind} after {self.name!r} needs a function, not {fn!r}")
        name = name or self.job.auto_name(kind, self.name)
        return self.job.add(TransformNode(name, kind, fn, (self.name,), step_options(name, options)))
