"""What the shedders schedule: records that share cost and deadline, handled as one item with a count.

Li 2015, sections 5.4, 5.4.3 and 5.4.4. Deadlines are whole microseconds and costs whole nanoseconds, so
that sums are exact and both versions of the scheduler decide alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import DataError

Times = npt.NDArray[np.int64]

_DEADLINE_UNITS = 10
"""Deadlines are multiples of 𝓛/10, the unit with most utility in the thesis's evaluation."""
_FADING = 0.9
"""Weight that earlier measurements keep at each new one: a mean of about the last ten items."""


class KeyPlace(Enum):
    """The cost groups: where a record's key-state is when the record arrives."""

    MEMORY = "memory"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class Item:
    """``count`` records of one batch with the same deadline and cost; the first ones of ``rows`` if some were shed.

    ``per_window`` is n_w: a record is worth 1/n_w. ``batch`` is the caller's own, to find the records again.
    """

    deadline_us: int
    cost_ns: int
    count: int
    per_window: int = 1
    batch: Any = field(default=None, compare=False)
    rows: Times | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.cost_ns < 1 or self.count < 1 or self.per_window < 1:
            raise DataError(
                f"an item's cost ({self.cost_ns} ns), count ({self.count}) and records per window "
                f"({self.per_window}) are 1 or more"
            )

    @property
    def burden(self) -> int:
        """Cost per utility, c·n_w: what is shed first. With utility 1 it is the cost."""
        return self.cost_ns * self.per_window


@dataclass(slots=True)
class RunningMean:
    """Mean cost of a record, of recent items more than of old ones; None until the first is measured."""

    total_ns: float = 0.0
    records: float = 0.0

    def measured(self, elapsed_ns: int, count: int) -> None:
        self.total_ns = self.total_ns * _FADING + elapsed_ns
        self.records = self.records * _FADING + count

    @property
    def cost_ns(self) -> int | None:
        return max(1, round(self.total_ns / self.records)) if self.records else None


class RecordCosts:
    """Cost of one update, by where its key-state is, and of all together for batch-level scheduling."""

    def __init__(self) -> None:
        self._groups = {place: RunningMean() for place in KeyPlace}
        self._all = RunningMean()

    def measured(self, place: KeyPlace, elapsed_ns: int, count: int) -> None:
        """``count`` records of one group took ``elapsed_ns``."""
        self._groups[place].measured(elapsed_ns, count)
        self._all.measured(elapsed_ns, count)

    def cost_ns(self, place: KeyPlace) -> int | None:
        return self._groups[place].cost_ns

    def mean_ns(self) -> int | None:
        return self._all.cost_ns


def items_of(
    deadlines_us: Times,
    on_disk: npt.NDArray[np.bool_],
    bound_us: int,
    costs: RecordCosts,
    *,
    per_window: int = 1,
    batch: Any = None,
) -> Iterator[Item]:
    """The records of a batch as few items: one per cost group and rounded deadline.

    ``per_window`` is how many records recent windows had.
    """
    unit_us = deadline_unit_us(bound_us)
    for place, members in ((KeyPlace.MEMORY, np.flatnonzero(~on_disk)), (KeyPlace.DISK, np.flatnonzero(on_disk))):
        units, of_row = np.unique(deadlines_us[members] // unit_us, return_inverse=True)
        order = members[np.argsort(of_row, kind="stable")]
        ends = np.cumsum(np.bincount(of_row, minlength=len(units)))
        cost_ns = _presumed_ns(costs.cost_ns(place), unit_us)
        for unit, rows in zip(units.tolist(), np.split(order, ends[:-1])):
            yield Item(unit * unit_us, cost_ns, len(rows), per_window, batch, rows)


def batch_item(deadlines_us: Times, bound_us: int, costs: RecordCosts, *, batch: Any = None) -> Item:
    """A whole batch as one item for batch-level scheduling: n_b records of mean cost, due with its first."""
    cost_ns = _presumed_ns(costs.mean_ns(), deadline_unit_us(bound_us))
    return Item(int(deadlines_us.min()), cost_ns, len(deadlines_us), batch=batch)


def _presumed_ns(cost_ns: int | None, unit_us: int) -> int:
    """At most 𝓛/10, or one slow measurement would shed its group for ever, and so never be corrected.

    An unmeasured group sheds only what is already late.
    """
    return 1 if cost_ns is None else min(cost_ns, unit_us * 1000)


def deadline_unit_us(bound_us: int) -> int:
    """𝓛/10. Deadlines are rounded down to it, so that rounding never makes a record late; the thesis does not say."""
    return max(1, bound_us // _DEADLINE_UNITS)
