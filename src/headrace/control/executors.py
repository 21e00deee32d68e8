"""How many executors the wanted subtasks need: more at once, fewer after a calm time and only where that pays.

In the thesis (section on elastic scaling) the scheduler acquires workers and frees empty ones. Here a subtask
holds a task slot as long as the query runs and all slots must be there before it begins, so executors change
at a cut, with a restart. We depart accordingly: a restart is a pause, and has to save more than it costs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from headrace.control.decisions import Decision, Expectation

BY_HAND = "it was asked for"
PATIENCE_S = 60.0
"""How long executors that were asked for may take to register: standalone takes 5 to 7 s, containers longer."""


@dataclass(frozen=True, slots=True)
class ExecutorPolicy:
    """``minimum`` to ``maximum`` executors of ``cores`` task slots each.

    Fewer must have sufficed for ``calm_cycles`` in a row before any is released. A release must save, over
    ``horizon_s``, more than the restart costs: its length times all executors times ``gap_weight``, since a second in
    which every record waits is worth more than a second of an executor. After executors have come, no decision is taken
    for ``rest_cycles``.
    """

    minimum: int
    maximum: int
    cores: int
    calm_cycles: int = 60
    rest_cycles: int = 3
    horizon_s: float = 600.0
    gap_weight: float = 10.0

    def executors(self, slots: int, floor: int = 0) -> int:
        """The fewest that have so many slots, within the limits; ``floor`` slots have to be there anyway."""
        wanted = min(max(ceil(slots / self.cores), self.minimum), self.maximum)
        return max(wanted, ceil(floor / self.cores))


@dataclass(frozen=True, slots=True)
class Demand:
    """Task slots that the job takes: as ``wanted``, with head-room, and with every step at its ``minimum``.

    ``lacking``: some step wants more subtasks than it has, and a restart could give it some.
    """

    wanted: int
    roomy: int
    minimum: int
    lacking: bool


@dataclass(frozen=True, slots=True)
class Sight:
    """What is known in one cycle: executors that are ``there``, and how long a restart would take."""

    at_s: float
    there: int
    demand: Demand
    gap_s: float


@dataclass(frozen=True, slots=True)
class Calm:
    """What is remembered: ``cycles`` in a row in which fewer would have sufficed, the maximum that any of them
    needed, cycles left to rest, and whether a release that does not pay was mentioned already.
    """

    cycles: int = 0
    enough: int = 0
    rest: int = 0
    held: bool = False


@dataclass(frozen=True, slots=True)
class ExecutorProvision:
    """``executors`` to have after a restart; None: as it is."""

    calm: Calm
    executors: int | None = None
    decision: Decision | None = None


def decide_executors(policy: ExecutorPolicy, calm: Calm, seen: Sight) -> ExecutorProvision:
    """One cycle. It is not asked while an earlier change is under way."""
    if calm.rest:
        return ExecutorProvision(replace(calm, rest=calm.rest - 1))
    if seen.demand.lacking:
        return _more(policy, seen)
    enough = policy.executors(seen.demand.roomy, seen.demand.minimum)
    if enough >= seen.there:
        return ExecutorProvision(Calm())
    calm = replace(calm, cycles=calm.cycles + 1, enough=max(calm.enough, enough))
    return ExecutorProvision(calm) if calm.cycles < policy.calm_cycles else _fewer(policy, calm, seen)


def obey(policy: ExecutorPolicy, seen: Sight, asked: int) -> ExecutorProvision:
    """What was asked for by hand, as far as the job can run with it."""
    executors = max(asked, ceil(seen.demand.minimum / policy.cores))
    if executors == seen.there:
        return ExecutorProvision(Calm())
    evidence = {"asked": asked, "slots": seen.there * policy.cores, "gap_s": seen.gap_s}
    return ExecutorProvision(Calm(), executors, _decision(seen, executors, BY_HAND, evidence))


def _more(policy: ExecutorPolicy, seen: Sight) -> ExecutorProvision:
    wanted = max(policy.executors(seen.demand.wanted, seen.demand.minimum), seen.there)
    evidence = {"wanted_slots": seen.demand.wanted, "slots": seen.there * policy.cores, "gap_s": seen.gap_s}
    reason = "steps want more subtasks than there are"
    if wanted == seen.there:
        reason += ", and the slots can be shared out otherwise"
    return ExecutorProvision(Calm(), wanted, _decision(seen, wanted, reason, evidence))


def _fewer(policy: ExecutorPolicy, calm: Calm, seen: Sight) -> ExecutorProvision:
    saved_s = (seen.there - calm.enough) * policy.horizon_s
    cost_s = policy.gap_weight * seen.there * seen.gap_s
    evidence = {"cycles": calm.cycles, "gap_s": seen.gap_s, "saved_executor_s": saved_s, "gap_executor_s": cost_s}
    if saved_s > cost_s:
        reason = "fewer would have sufficed all the time, with head-room"
        return ExecutorProvision(Calm(), calm.enough, _decision(seen, calm.enough, reason, evidence))
    reason = f"releasing {seen.there - calm.enough} would save less than the restart costs"
    decision = Decision(seen.at_s, "hold", "executors", "", reason, evidence)
    return ExecutorProvision(Calm(held=True), None, None if calm.held else decision)


def _decision(seen: Sight, executors: int, reason: str, evidence: dict[str, float]) -> Decision:
    expects = Expectation("executors", "the job", seen.there, executors, 0)
    return Decision(seen.at_s, "provision", "executors", f"{seen.there} → {executors}", reason, evidence, expects)
