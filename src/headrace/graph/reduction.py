"""Reducers as data. How each is computed is in ``state/table/aggregates``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal[
    "count", "sum", "mean", "min", "max", "top_k", "count_distinct", "quantile", "first", "last", "collect_list"
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A built-in reducer over one column (``count`` has none)."""

    kind: Kind
    column: str | None = None
    k: int | None = None
    by: str | None = None
    q: float | None = None

    @property
    def mergeable(self) -> bool:
        return True

    @property
    def columns(self) -> tuple[str, ...]:
        """The input columns it reads."""
        return tuple(c for c in (self.column, self.by) if c is not None)

    def describe(self) -> str:
        inner = ", ".join(str(x) for x in (self.column, self.k, self.by, self.q) if x is not None)
        return f"{self.kind}({inner})"


@dataclass(frozen=True, slots=True)
class UserReducer:
    """A user's reducer: SCALLA's ``init / update / cb / fn / early`` over Python state.

    State must be plain data (numbers, strings, bytes, lists, tuples, sets, dicts, datetimes): it is
    written to checkpoints without pickling.
    """

    init: Callable[[], Any]
    update: Callable[[Any, dict[str, Any]], Any]
    combine: Callable[[Any, Any], Any] | None = None
    finalize: Callable[[Any], Any] | None = None
    early: Callable[[Any], bool] | None = None

    @property
    def mergeable(self) -> bool:
        return self.combine is not None

    @property
    def columns(self) -> tuple[str, ...]:
        return ()

    def describe(self) -> str:
        return f"reducer({getattr(self.update, '__name__', 'update')})"


Reducer = Aggregate | UserReducer
