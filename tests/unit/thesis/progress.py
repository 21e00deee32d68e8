"""How far a job is, in work that its user asked for (Li 2015, definition 1 in section 3.3.2.2).

Merging and spilling earn nothing. So an engine that blocks stays at a third until its input ends, and
one that applies records as they come but says nothing early stays at two thirds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.errors import DataError


@dataclass(frozen=True, slots=True)
class Part:
    """Work done of a total; a total of None is not known (yet)."""

    done: int
    total: int | None

    def __post_init__(self) -> None:
        if self.done < 0 or (self.total is not None and self.done > self.total):
            raise DataError(f"{self.done} done of {self.total} is no progress: count both in the same unit")


@dataclass(frozen=True, slots=True)
class Progress:
    """Of one moment, each from 0 to 1."""

    map: float
    reduce: float


def map_progress(tasks: Part) -> float | None:
    """Share of map tasks that have completed."""
    return _share(tasks, 1.0)


def reduce_progress(shuffled: Part, applied: Part, output: Part) -> float | None:
    """⅓ shuffled + ⅓ combine or reduce function applied + ⅓ output produced; None while a total is unknown.

    A part with nothing to do is as far as the part before it, so a job without results is not ahead of
    its work. The thesis does not say.

    >>> reduce_progress(Part(10, 10), Part(0, 10), Part(0, 4))
    0.3333333333333333
    """
    first = map_progress(shuffled)
    second = None if first is None else _share(applied, first)
    third = None if second is None else _share(output, second)
    if first is None or second is None or third is None:
        return None
    return (first + second + third) / 3


def largest_gap(moments: Iterable[Progress]) -> float | None:
    """How far reduce fell behind map at worst; None without a moment."""
    return max((max(0.0, moment.map - moment.reduce) for moment in moments), default=None)


def _share(part: Part, if_empty: float) -> float | None:
    if part.total is None:
        return None
    return part.done / part.total if part.total else if_empty
