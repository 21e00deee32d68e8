"""The latency of a path as a sum of independent phases.

SCALLA section 2.9 adds up twelve phases for its system; ``model.stagephases`` says which ones ours has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add

from scipy.optimize import brentq

from headrace.model.laws import Law, total_of
from headrace.model.queueing import Spread


@dataclass(frozen=True, slots=True)
class Phase:
    """One part of a path's latency: the sum of independent times, mostly of one."""

    name: str
    laws: tuple[Law, ...]

    @property
    def spread(self) -> Spread:
        return Spread(sum(law.mean_s for law in self.laws), sum(law.var_s2 for law in self.laws))


@dataclass(frozen=True, slots=True)
class PhasedPath:
    """Phases an item goes through one after the other."""

    phases: tuple[Phase, ...]

    @property
    def spread(self) -> Spread:
        """Mean and variance of the whole latency."""
        return reduce(add, (phase.spread for phase in self.phases), Spread(0.0, 0.0))

    def quantile_s(self, share: float) -> float:
        """The latency that ``share`` of the items stay within."""
        whole = total_of([law for phase in self.phases for law in phase.laws])
        max_s = whole.times_s[-1] + whole.step_s
        return float(brentq(lambda time_s: whole.above(time_s) - (1 - share), -whole.step_s, max_s))
