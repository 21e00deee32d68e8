"""What a reduce may be told: how it keeps state, what it does under overload, which results it emits and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from headrace.errors import GraphError
from headrace.graph.nodes import ENGINES, Combine, Engine, Shed
from headrace.graph.reduction import Aggregate, UserReducer
from headrace.graph.windowing import SessionWindow, TimeWindow, Window
from headrace.units import Duration, duration_us, size_bytes


@dataclass(frozen=True, slots=True)
class ReduceState:
    """How a reduce keeps its state; made by ``hr.keep``."""

    memory_bytes: int | None = None
    engine: Engine = "auto"
    coverage: float | None = None
    max_records: int | None = None
    combine: Combine = "auto"


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Which results a reduce emits, as soon as they are due; made by ``hr.at_least``."""

    column: str
    minimum: float


def keep(
    *,
    memory: str | int | None = None,
    engine: Engine = "auto",
    coverage: float | None = None,
    max_records: int | None = None,
    combine: Combine = "auto",
) -> ReduceState:
    """How a reduce keeps its state: ``reduce(state=hr.keep(memory="64 MB"), n=hr.count())``; a join by interval takes
    ``memory`` as well.

    ``memory`` bounds what the state takes in each subtask; the rest goes to disk, by ``engine``
    (``docs/how-it-works.md``), and answers stay exact. Where records change results one by one (no window, count
    windows, sessions), a key on disk has its result some seconds later.

    ``coverage=0.9``: a key whose state has seen at least that share of its records is not looked up on disk; a
    result column ``coverage`` says how much it has seen. With ``emit=hr.at_least(…)`` on a count as well, and
    ``max_records`` as the largest number of records there can be, nothing is written to disk at all if memory
    suffices to cover every key that frequent: counts are then too low by at most the share that ``coverage`` leaves,
    no frequent key is missed, and a few that are almost as frequent may be among the answers.

    ``combine``: partial aggregates, made before the shuffle, and for sliding windows one per pane, which overlapping
    windows share. ``"auto"`` makes them before the shuffle where that pays, and keeps panes or whole windows by the
    rate and the number of keys it sees; ``True`` always keeps panes; ``False`` makes none. Answers are the same.

    >>> keep(memory="64 MB", engine="dinc").memory_bytes
    64000000
    """
    if engine not in ENGINES:
        raise GraphError(f"hr.keep: engine={engine!r} is not one of {', '.join(ENGINES)}")
    if combine not in ("auto", True, False):
        raise GraphError(f"hr.keep: combine={combine!r} is not 'auto', True or False")
    if coverage is not None and not 0 < coverage <= 1:
        raise GraphError(f"hr.keep: coverage is a share above 0 and at most 1, not {coverage!r}")
    if max_records is not None and max_records < 1:
        raise GraphError(f"hr.keep: max_records is the largest number of records there can be, not {max_records!r}")
    bound = size_bytes(memory, "memory") if memory is not None else None
    return ReduceState(bound, engine, coverage, max_records, combine)


def shed(*, after: Duration | None = None) -> Shed:
    """Under more load than a reduce can carry, abandon records that cannot be processed in time, and count them.

    A record is in time if processed within ``after`` of being due, or else within the tightest bound of a constraint on
    a path through the step.
    Answers are then approximate; the counter ``shed`` says by how much. Only in realtime mode: the other modes
    process everything.

    >>> shed(after="200 ms").after_us
    200000
    """
    if after is None:
        return Shed()
    after_us = duration_us(after, "after")
    if after_us < 1:
        raise GraphError(f"hr.shed: after={after!r} must be more than zero")
    return Shed(after_us)


def at_least(**minimum: float) -> AtLeast:
    """Emit only keys whose result reaches a value, as soon as it does, each once per window.

    >>> at_least(n=50)
    AtLeast(column='n', minimum=50.0)
    """
    if len(minimum) != 1:
        raise GraphError(f"hr.at_least takes one result column and its smallest value, such as n=50, not {minimum}")
    ((column, value),) = minimum.items()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise GraphError(f"hr.at_least: {column}={value!r} is not a number")
    return AtLeast(column, float(value))


_GROUPS: dict[str, tuple[type, str]] = {
    "state": (ReduceState, "hr.keep(memory='64 MB')"),
    "overload": (Shed, "hr.shed(after='200 ms')"),
    "emit": (AtLeast, "hr.at_least(n=50)"),
}
MOVED = {
    "memory": "state=hr.keep(memory=…)",
    "engine": "state=hr.keep(engine=…)",
    "coverage": "state=hr.keep(coverage=…)",
    "combine": "state=hr.keep(combine=…)",
    "expect": "state=hr.keep(max_records=…)",
    "max_records": "state=hr.keep(max_records=…)",
    "late": "overload=hr.shed()",
    "shed_after": "overload=hr.shed(after=…)",
    "at_least": "emit=hr.at_least(n=…)",
}
"""Where options went that once stood beside the result columns."""


def own_columns(window: Window | None, kept: ReduceState) -> tuple[str, ...]:
    """Columns that a reduce adds to its results by itself."""
    bounds = ("window_start", "window_end") if isinstance(window, (TimeWindow, SessionWindow)) else ()
    versions = ("version", "completeness") if window is not None and window.versioned else ()
    return (*bounds, *versions, *(("coverage",) if kept.coverage is not None else ()))


def merged_columns(step: str, columns: Any, reducers: Mapping[str, Any]) -> dict[str, Any]:
    """Result columns given in a mapping and by keyword, in this order."""
    if columns is not None and not isinstance(columns, Mapping):
        raise GraphError(f"reduce {step!r}: give each result column a name, such as n=hr.count(), not {columns!r:.80}")
    twice = sorted((columns or {}).keys() & reducers.keys())
    if twice:
        raise GraphError(f"reduce {step!r}: the column {twice[0]!r} is given twice, in the mapping and by keyword")
    return {**(columns or {}), **reducers}


def check_groups(step: str, groups: Mapping[str, Any]) -> None:
    """Raise GraphError for a group of options that is not made by its function."""
    for option, (kind, example) in _GROUPS.items():
        if groups[option] is not None and not isinstance(groups[option], kind):
            raise GraphError(f"reduce {step!r}: {option}={groups[option]!r:.80} is not a value such as {example}")


def check_columns(step: str, columns: Mapping[str, Any], taken: Sequence[str], options: Mapping[str, Any]) -> None:
    """Raise GraphError for the first result column that is not a reducer, or whose name is taken."""
    for option, value in options.items():
        if isinstance(value, (Aggregate, UserReducer)):
            raise GraphError(
                f"reduce {step!r}: {option}= is an option of reduce; a result column of that name goes into a mapping: "
                f"reduce({{{option!r}: …}}, …)"
            )
    if not columns:
        raise GraphError(f"reduce {step!r} has no reducer; write for example reduce(name={step!r}, n=hr.count())")
    reserved = [*dict.fromkeys(taken)]
    if twice := next((name for name, n in Counter(taken).items() if n > 1), None):
        raise GraphError(
            f"reduce {step!r}: its key {twice!r} has the name of a column that the step adds itself; rename it before "
            f"key_by: map(lambda record: {{'start': record.pop({twice!r}), **record}})"
        )
    for column, reducer in columns.items():
        if not isinstance(reducer, (Aggregate, UserReducer)):
            raise GraphError(f"reduce {step!r}: {_no_reducer(column, reducer, options)}")
        if column in reserved:
            raise GraphError(
                f"reduce {step!r}: the column name {column!r} is taken; choose another. Taken here are only the keys and "
                f"what the step adds: {', '.join(reserved)}"
            )


def _no_reducer(column: str, value: Any, options: Iterable[str]) -> str:
    if column in MOVED:
        return f"{column}= is not beside the result columns but in {MOVED[column]}"
    close = get_close_matches(column, [*options, *MOVED], n=1)
    meant = MOVED.get(close[0], f"{close[0]}=") if close else ""
    hint = f"; did you mean {meant}?" if meant else ""
    return f"{column}={value!r:.80} is not a reducer such as hr.count(){hint}"
