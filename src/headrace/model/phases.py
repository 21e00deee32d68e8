"""The latency of a path as a sum of independent phases, interrupted now and then by an epoch's gap.

SCALLA section 2.9 adds up twelve phases for its system; ``model.stagephases`` says which ones ours has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
from scipy.optimize import brentq

from headrace.errors import UnstableError
from headrace.model.laws import Law, Total, Uniform, total_of
from headrace.model.queueing import Spread

_LUMPS = 8
"""How many lumps of a backlog are told apart; even at a utilisation of 0.8 the last is a fifth of the first."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One part of a path's latency: the sum of independent times, mostly of one."""

    name: str
    laws: tuple[Law, ...]

    @property
    def spread(self) -> Spread:
        return Spread(sum(law.mean_s for law in self.laws), sum(law.var_s2 for law in self.laws))


@dataclass(frozen=True, slots=True)
class GapWait:
    """A share of all items that waits uniformly between two times because of a gap."""

    share: float
    min_s: float
    max_s: float


@dataclass(frozen=True, slots=True)
class EpochGap:
    """Every ``epoch_s`` nothing is read for ``gap_s``; then the backlog of that time has to be worked off.

    ``busy_share`` is the busiest stage's utilisation, ``lump_busy_share`` the sum over all stages if the
    backlog goes through them as one row, None if it flows on item by item.
    """

    gap_s: float
    epoch_s: float
    busy_share: float = 0.0
    lump_busy_share: float | None = None

    def waits(self) -> tuple[GapWait, ...]:
        """Who waits and how long. Raises UnstableError if a backlog outlives its epoch.

        Item by item: one due x after the gap began waits g − x for its end and ρx for the backlog before
        it, one due y after the end finds a backlog of ρg − (1−ρ)y. Together they wait uniformly in
        [0, g] and are g/(1−ρ) out of every epoch: the drain makes more items late, not any of them later.

        As one row: each item waits for its lump to be read and then for all of the lump, in every
        stage. While a lump of length w is worked on, the next one, of length ρw, gathers.
        """
        left = 1 - self.busy_share
        if self.gap_s >= left * self.epoch_s:
            raise UnstableError(
                f"a gap of {self.gap_s:g} s leaves a backlog that lasts longer than an epoch of {self.epoch_s:g} s "
                f"at a utilisation of {self.busy_share:.0%}; lengthen the epoch or lower the rate"
            )
        if self.lump_busy_share is None:
            return (GapWait(self.gap_s / left / self.epoch_s, 0.0, self.gap_s),)
        lumps = []
        for turn in range(_LUMPS):
            length_s = self.gap_s * self.busy_share**turn
            gathered_s = length_s if turn < _LUMPS - 1 else length_s / left  # the last stands for all that follow
            work_s = self.lump_busy_share * length_s
            lumps.append(GapWait(gathered_s / self.epoch_s, work_s, work_s + length_s))
        return tuple(lumps)


@dataclass(frozen=True, slots=True)
class PhasedPath:
    """Phases an item goes through one after the other, and the gap that some items meet in addition."""

    phases: tuple[Phase, ...]
    gap: EpochGap | None = None

    @property
    def spread(self) -> Spread:
        """Mean and variance of the whole latency."""
        body = reduce(add, (phase.spread for phase in self.phases), Spread(0.0, 0.0))
        laws = [(wait.share, Uniform(wait.min_s, wait.max_s)) for wait in self._gap_waits()]
        mean_s = sum(share * law.mean_s for share, law in laws)
        second_s2 = sum(share * (law.var_s2 + law.mean_s**2) for share, law in laws)
        return body + Spread(mean_s, second_s2 - mean_s**2)

    def quantile_s(self, share: float) -> float:
        """The latency that ``share`` of the items stay within.

        A mixture: most items meet no gap, the others wait for it as well. A normal law of the same
        variance would call a p99 late that the gap does not reach, and vice versa.
        """
        body, waits = self._body(), self._gap_waits()
        max_s = body.times_s[-1] + max((wait.max_s for wait in waits), default=0.0) + body.step_s
        return float(brentq(lambda time_s: _late_share(body, waits, time_s) - (1 - share), -body.step_s, max_s))

    def _body(self) -> Total:
        return total_of([law for phase in self.phases for law in phase.laws])

    def _gap_waits(self) -> tuple[GapWait, ...]:
        return self.gap.waits() if self.gap is not None and self.gap.gap_s > 0 else ()


def _late_share(body: Total, waits: tuple[GapWait, ...], time_s: float) -> float:
    late = (1 - sum(wait.share for wait in waits)) * body.above(time_s)
    for wait in waits:
        still = (wait.max_s - time_s + body.times_s) / max(wait.max_s - wait.min_s, 1e-12)
        late += wait.share * float(body.mass @ np.clip(still, 0.0, 1.0))
    return late
