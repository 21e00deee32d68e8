"""How long an epoch should be: long enough for the latency bound, short enough for recovery.

Spark starts epochs with a gap in which nothing is read. The items it makes late are a share of
gap/epoch and those in the backlog behind it, so a p99 bound shorter than the gap needs epochs of more
than a hundred gaps. A failure repeats half an epoch on average.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, inf, log

from scipy.optimize import brentq

from headrace.errors import UnstableError
from headrace.model.phases import EpochGap, PhasedPath
from headrace.units import in_words

_LONGEST_S = 86_400.0
_NO_BOUND_S = 1e5
_UNSTABLE_S = 1e6


@dataclass(frozen=True, slots=True)
class EpochGoal:
    """What users ask for: a latency bound (``quantile`` None: on the mean), and how much input may be repeated.

    ``recovery_s`` bounds the mean stretch of input that is read again after a failure. None: not asked for.
    """

    bound_s: float | None
    quantile: float | None = 0.99
    recovery_s: float | None = None
    shortest_s: float = 1.0
    default_s: float = 60.0


@dataclass(frozen=True, slots=True)
class EpochChoice:
    """An epoch length and why. ``epoch_s`` None: leave it as it is.

    If a goal cannot be met, ``smallest_bound_s`` and ``smallest_recovery_s`` are what could be asked
    instead, each with the other goal kept; None where nothing would help or nothing needs to change.
    """

    epoch_s: float | None
    reason: str
    smallest_bound_s: float | None = None
    smallest_recovery_s: float | None = None


def choose_epoch(goal: EpochGoal, path: PhasedPath, gap: EpochGap | None) -> EpochChoice:
    """The epoch length for a path's phases and the measured gap (its ``epoch_s`` does not matter).

    Of all lengths that meet the bound the longest that recovery allows is taken: fewer gaps.
    """
    if gap is None:
        return EpochChoice(None, "hold, because no gap between epochs has been measured yet")
    longest_s = 2 * goal.recovery_s if goal.recovery_s is not None else _LONGEST_S
    min_s = max(goal.shortest_s, _min_epoch_s(goal, path, gap))
    if min_s > longest_s:
        return _refusal(goal, path, gap, min_s, longest_s)
    if goal.recovery_s is not None:
        what = f"{in_words(longest_s)}: the longest that repeats {in_words(goal.recovery_s)} of input on average after a failure"
        return EpochChoice(longest_s, f"{what}; {_bound_words(goal, gap, min_s)}")
    epoch_s = max(goal.default_s, min_s)
    return EpochChoice(epoch_s, f"{in_words(epoch_s)}: no recovery objective; {_bound_words(goal, gap, min_s)}")


def metric_s(goal: EpochGoal, path: PhasedPath, gap: EpochGap, epoch_s: float) -> float:
    """The latency that the goal bounds, with epochs of a given length; infinite if a gap's backlog outlives them."""
    whole = replace(path, gap=replace(gap, epoch_s=epoch_s))
    try:
        return whole.spread.mean_s if goal.quantile is None else whole.quantile_s(goal.quantile)
    except UnstableError:
        return inf


def _min_epoch_s(goal: EpochGoal, path: PhasedPath, gap: EpochGap) -> float:
    """The shortest epoch that meets the bound; infinite if none does. Latency falls as epochs get longer."""
    bound_s = goal.bound_s if goal.bound_s is not None else _NO_BOUND_S

    def excess_s(logged: float) -> float:
        return min(metric_s(goal, path, gap, exp(logged)), _UNSTABLE_S) - bound_s

    low, high = log(goal.shortest_s), log(_LONGEST_S)
    if excess_s(low) <= 0:
        return goal.shortest_s
    if excess_s(high) > 0:
        return inf
    return exp(float(brentq(excess_s, low, high, xtol=1e-4))) * 1.001


def _refusal(goal: EpochGoal, path: PhasedPath, gap: EpochGap, min_s: float, longest_s: float) -> EpochChoice:
    smallest_s = metric_s(goal, path, gap, longest_s)
    bound = smallest_s if smallest_s < inf else None
    asked = "any bound" if goal.bound_s is None else f"{_metric_name(goal)} ≤ {in_words(goal.bound_s)}"
    could = f"the smallest bound is {in_words(smallest_s)}" if bound is not None else "no bound holds"
    if min_s == inf:
        why = f"{asked} cannot be met with epochs of any length: with {in_words(longest_s)} {could}"
        return EpochChoice(None, why, bound)
    return EpochChoice(
        None,
        f"{asked} needs epochs of {in_words(min_s)}, but recovery allows {in_words(longest_s)}: with those {could}, "
        f"and the smallest recovery objective for this bound is {in_words(min_s / 2)}",
        bound,
        min_s / 2,
    )


def _bound_words(goal: EpochGoal, gap: EpochGap, min_s: float) -> str:
    if goal.bound_s is None:
        return "no latency bound"
    return f"{_metric_name(goal)} ≤ {in_words(goal.bound_s)} with gaps of {in_words(gap.gap_s)} needs at least {in_words(min_s)}"


def _metric_name(goal: EpochGoal) -> str:
    return "mean" if goal.quantile is None else f"p{100 * goal.quantile:g}"
