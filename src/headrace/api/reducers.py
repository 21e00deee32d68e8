"""Reducers that users name in ``.reduce(total=hr.sum("price"))``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import GraphError
from headrace.graph.reduction import Aggregate, UserReducer


def count() -> Aggregate:
    """Number of records."""
    return Aggregate("count")


def sum(column: str) -> Aggregate:
    """Sum of a numeric column; nulls are skipped, and nothing but nulls gives null."""
    return Aggregate("sum", column)


def mean(column: str) -> Aggregate:
    """Arithmetic mean of a numeric column, nulls skipped. Travels as (sum, count)."""
    return Aggregate("mean", column)


def min(column: str) -> Aggregate:
    """Smallest value of a column (numbers, times or strings), nulls skipped."""
    return Aggregate("min", column)


def max(column: str) -> Aggregate:
    """Largest value of a column (numbers, times or strings), nulls skipped."""
    return Aggregate("max", column)


def first(column: str) -> Aggregate:
    """The value with the earliest event time; of equal times, the smallest value."""
    return Aggregate("first", column)


def last(column: str) -> Aggregate:
    """The value with the latest event time; of equal times, the largest value."""
    return Aggregate("last", column)


def count_distinct(column: str) -> Aggregate:
    """Exact number of different values, nulls not counted."""
    return Aggregate("count_distinct", column)


def collect_list(column: str) -> Aggregate:
    """All values as a list, ordered by event time, then by value."""
    return Aggregate("collect_list", column)


def top_k(column: str, k: int, *, by: str | None = None) -> Aggregate:
    """The ``k`` largest values of a column, or the values of the ``k`` records largest in ``by``; largest first.

    Not the most frequent ones: those are keys with ``hr.count()`` and ``emit=hr.at_least(n=…)``.
    """
    if k < 1:
        raise GraphError(f"top_k({column!r}, {k}): k must be at least 1")
    return Aggregate("top_k", column, k=k, by=by)


def quantile(column: str, q: float) -> Aggregate:
    """The ``q``-quantile of a numeric column, within 1 % of the value.

    Kept in logarithmic buckets (DDSketch: Masson, Rim, Lee, VLDB 2019), so that the answer depends
    neither on order nor on how the input was divided.
    """
    if not 0 <= q <= 1:
        raise GraphError(f"quantile({column!r}, {q}): q must be between 0 and 1")
    return Aggregate("quantile", column, q=q)


def reducer(
    *,
    init: Callable[[], Any],
    update: Callable[[Any, dict[str, Any]], Any],
    combine: Callable[[Any, Any], Any] | None = None,
    finalize: Callable[[Any], Any] | None = None,
    early: Callable[[Any], bool] | None = None,
) -> UserReducer:
    """A reducer of your own over plain Python state.

    ``init()`` makes a state, ``update(state, record)`` and ``combine(state, state)`` return one,
    ``finalize(state)`` makes the output value. With ``combine`` the step combines before the shuffle
    and shares panes; without it the answer is the same, at more cost. ``early(state)`` true emits
    the window's result at once; it is not emitted again at the window's end.
    """
    return UserReducer(init, update, combine, finalize, early)
