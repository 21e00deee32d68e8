"""Moving slices so that subtasks of a keyed step have equal loads: the measure before more subtasks.

More subtasks do not help a step one of whose subtasks has most of the work. Slices are many more than subtasks
(ChronoStream), so loads can be evened out by giving some away, hottest first, as long as no single slice is the load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.control.decisions import Decision, Expectation

Loads = Mapping[int, float]
"""Records per slice lately."""


@dataclass(frozen=True, slots=True)
class BalancePolicy:
    """A subtask may have ``tolerance`` times the mean load; more for ``cycles`` in a row is evened out, if that takes at
    least ``gain`` off the largest load. After that it rests for ``rest_cycles``. Below ``min_records`` nothing is known.
    """

    tolerance: float = 1.25
    gain: float = 0.1
    cycles: int = 3
    rest_cycles: int = 5
    min_records: int = 1000


@dataclass(frozen=True, slots=True)
class Imbalance:
    """What is remembered of a stage: cycles in a row in which it was out of balance, and cycles left to rest."""

    cycles: int = 0
    rest: int = 0


@dataclass(frozen=True, slots=True)
class Balancing:
    """Remembered stages, and what is to be done: a table for a stage, and the decision behind it."""

    remembered: Mapping[int, Imbalance] = field(default_factory=dict)
    table: tuple[int, ...] | None = None
    decision: Decision | None = None


def unevenness(table: Sequence[int], loads: Loads) -> float:
    """The largest load of a subtask, as a multiple of the mean.

    >>> unevenness((0, 0, 1, 1), {0: 3.0, 1: 3.0, 2: 1.0, 3: 1.0})
    1.5
    """
    per_subtask = _per_subtask(table, loads)
    total = sum(per_subtask.values())
    return max(per_subtask.values()) * len(per_subtask) / total if total else 1.0


def balanced(table: Sequence[int], loads: Loads, tolerance: float = 1.0) -> tuple[int, ...]:
    """A table with loads as even as giving away slices can make them; as few as it takes to stay below ``tolerance``.

    >>> balanced((0, 0, 1, 1), {0: 3.0, 1: 3.0, 2: 1.0, 3: 1.0})
    (1, 0, 0, 1)
    """
    after, per_subtask = list(table), _per_subtask(table, loads)
    mean = sum(per_subtask.values()) / len(per_subtask)
    for _ in range(len(table)):
        heaviest = max(per_subtask, key=lambda subtask: (per_subtask[subtask], -subtask))
        lightest = min(per_subtask, key=lambda subtask: (per_subtask[subtask], subtask))
        gap = per_subtask[heaviest] - per_subtask[lightest]
        fitting = [s for s, owner in enumerate(after) if owner == heaviest and 0 < loads.get(s, 0) < gap]
        if per_subtask[heaviest] <= tolerance * mean or not fitting:
            break
        slice = min(fitting, key=lambda s: (abs(gap / 2 - loads[s]), s))
        after[slice] = lightest
        per_subtask[heaviest] -= loads[slice]
        per_subtask[lightest] += loads[slice]
    return tuple(after)


def decide_balance(
    policy: BalancePolicy, before: Balancing, at_s: float, stage: int, step: str, table: Sequence[int], loads: Loads
) -> Balancing:
    """One cycle for one stage; ``step`` names it to the reader."""
    known = before.remembered.get(stage, Imbalance())
    uneven = unevenness(table, loads) if sum(loads.values()) >= policy.min_records else 1.0
    if known.rest or uneven <= policy.tolerance:
        return _remembered(before, stage, Imbalance(rest=max(known.rest - 1, 0)))
    known = replace(known, cycles=known.cycles + 1)
    if known.cycles < policy.cycles:
        return _remembered(before, stage, known)
    after = balanced(table, loads, 1 + (policy.tolerance - 1) / 2)
    even = unevenness(after, loads)
    resting = _remembered(before, stage, Imbalance(rest=policy.rest_cycles))
    evidence = {"largest load over mean": uneven, "after": even}
    if even > (1 - policy.gain) * uneven:
        why = f"one slice has {max(loads.values()) / sum(loads.values()):.0%} of its load: giving slices away does not help"
        return replace(resting, decision=Decision(at_s, "hold", step, "", why, evidence))
    moved = sum(x != y for x, y in zip(table, after))
    decision = Decision(
        at_s, "move", step, f"{moved} slices", "one of its subtasks has more to do than others", evidence,
        Expectation("unevenness", step, uneven, even, 0),
    )  # fmt: skip
    return replace(resting, table=after, decision=decision)


def _remembered(before: Balancing, stage: int, known: Imbalance) -> Balancing:
    return Balancing({**before.remembered, stage: known})


def _per_subtask(table: Sequence[int], loads: Loads) -> dict[int, float]:
    found = dict.fromkeys(sorted(set(table)), 0.0)
    for slice, owner in enumerate(table):
        found[owner] += loads.get(slice, 0.0)
    return found
