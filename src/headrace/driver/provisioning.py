"""Requests and releases executors to match what the controller wants, and counts them.

``control.executors`` decides, or the user. More executors are waited for until they are there and warm; those that are to go
are emptied first, by moves while the job runs. Then a change waits for a cut, where the supervisor stops the query, calls
``laid_out`` and starts it again with another layout; slices stay near where they were, and new executors get theirs by moves.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from threading import Thread
from typing import Protocol

from headrace.actuate.ledger import Ledger
from headrace.control.decisions import Decision, compare
from headrace.control.executors import BY_HAND, PATIENCE_S, Calm, Demand, ExecutorPolicy, Sight, decide_executors, obey
from headrace.driver.journal import Journal
from headrace.errors import ConfigError, EnvironmentMissingError
from headrace.graph.slots import Subtasks, elastic_legs, fitted_layout, min_slots, roomy, slots_of
from headrace.graph.stages import Layout
from headrace.runtime.plan import JobPlan

_USUAL_GAP_S = 5.0
"""A restart on a cluster, until one has been measured."""
_QUIET_S = 1.0
"""Executors that were starting already when fewer were asked for come within this time of the others."""
_POLL_S = 0.05
_EMPTY_S = 30.0
"""How long slices may take to leave executors; what is there then is loaded by others after the restart."""
_SETTLED_S = 2.0
"""Executors that have come or gone: so long after the last change they are taken for those that there are."""


class Fleet(Protocol):
    """The executors of a cluster; all calls return at once."""

    def ids(self) -> tuple[str, ...]:
        """Those that are registered, oldest first."""
        ...

    def request(self, total: int) -> bool:
        """Ask for so many in all; ends none."""
        ...

    def kill(self, ids: Sequence[str]) -> bool: ...


@dataclass(frozen=True, slots=True)
class ExecutorChange:
    """What is under way: executors to have after the next restart, once they are ``ready``.

    ``warming`` runs while those that came get ready to work. ``leaving`` are emptied before they are let go.
    """

    decision: Decision
    before: int
    total: int
    until_s: float
    ready: bool = False
    warming: Thread | None = None
    leaving: tuple[str, ...] = ()


class Executors:
    """The executors of a run. Without a policy they are only counted; without a fleet there are none.

    ``warm`` gets so many free task slots ready to work, in a thread of its own.
    """

    def __init__(
        self, journal: Journal, fleet: Fleet | None = None, policy: ExecutorPolicy | None = None,
        warm: Callable[[int], Thread] | None = None, *, observe_only: bool = False,
    ) -> None:  # fmt: skip
        self._fleet, self._policy, self._journal = fleet, policy, journal
        self._warm, self._observe_only = warm, observe_only
        self._released: set[str] = set()
        self._first: int | None = None
        self._calm = Calm()
        self._change: ExecutorChange | None = None
        self._asked: int | None = None
        self._restarted: ExecutorChange | None = None
        self._gap_s = _USUAL_GAP_S
        self._seen: tuple[tuple[str, ...], float] = ((), 0.0)
        self._spread_over: tuple[str, ...] = ()
        self._warming: Thread | None = None
        self._ledger, self._counted_s = Ledger(), float("-inf")

    @property
    def ready(self) -> bool:
        """Whether the query is to be restarted at the next cut."""
        return self._change is not None and self._change.ready

    @property
    def leaving(self) -> frozenset[str]:
        """Executors that are to own no slices any more."""
        return frozenset(self._change.leaving) if self._change is not None else frozenset()

    def ask(self, total: int) -> None:
        """Have so many in all, as soon as no other change is under way."""
        if self._policy is None or self._observe_only:
            raise ConfigError("the executors of this run are not managed: give it executors=(min, max), on a cluster")
        if not self._policy.minimum <= total <= self._policy.maximum:
            raise ConfigError(
                f"executors={self._policy.minimum, self._policy.maximum} does not allow {total} executors"
            )
        self._asked = total

    def executor_s(self) -> float | None:
        """Seconds of executors so far; None where there are none, or none was counted."""
        return self._ledger.seconds.get("executors")

    def count(self, now_s: float, every_s: float = 0.0) -> None:
        """Add to the ledger what is there."""
        if self._fleet is not None and now_s - self._counted_s >= every_s:
            self._counted_s = now_s
            self._ledger.add(now_s, {"executors": len(self._ids())})

    def begin(self, plan: JobPlan) -> JobPlan:
        """Before the first query: have as many as the job starts with, and lay it out for those."""
        if self._fleet is None or self._policy is None or self._observe_only:
            return plan
        self._first = len(self._ids())
        start = {leg.index: leg.active for leg in elastic_legs(plan.layout)}
        total = self._policy.executors(slots_of(plan.layout, start), min_slots(plan.layout))
        self._fleet.request(total)
        self._wait_for(total, quiet_s=_QUIET_S)
        return self._laid_out(plan, start, total)

    def should_spread(self, now_s: float, used: int, slots: int) -> bool:
        """Whether the query is to start anew, over executors that have come since and have no subtask: one that was lost
        and came back, for example. Once for each set of executors, when Python is warm there: Spark decides who gets what.
        """
        if self._fleet is None or self._policy is not None or self._observe_only:
            return False
        ids = self._ids()
        if ids != self._seen[0]:
            self._seen = ids, now_s
        if used >= min(len(ids), slots) or ids == self._spread_over or now_s - self._seen[1] < _SETTLED_S:
            return False
        if self._warming is None and self._warm is not None:
            self._warming = self._warm(slots)
        if self._warming is not None and self._warming.is_alive():
            return False
        self._warming, self._spread_over = None, ids
        self._journal.say(
            "provision", f"{len(ids) - used} of {len(ids)} executors have no subtask: they are given some"
        )
        return True

    def turn(self, at_s: float, layout: Layout, wanted: Subtasks, left: int | None) -> None:
        """One interval: decide, or go on with what was decided. ``left`` are the slices that executors which are leaving have
        still to give away; None if nobody knows yet that they are.
        """
        if self._fleet is None or self._policy is None:
            return
        demand = self._demand(layout, wanted)
        asked, self._asked = (self._asked, None) if self._change is None else (None, self._asked)
        if self._change is None:
            self._decide(at_s, demand, asked)
        elif self._change.leaving:
            needed = self._policy.executors(demand.wanted, demand.minimum) > self._change.total
            if needed and self._change.decision.reason != BY_HAND:
                self._withdraw()
            elif not self._change.ready:
                self._wait_until_empty(at_s, self._change, left)
        elif not self._change.ready:
            self._wait_on(at_s, self._change)

    def laid_out(self, plan: JobPlan, wanted: Subtasks) -> JobPlan:
        """Between two queries, when no task runs: let go what is not needed; the plan for what is there.

        Executors that were lost leave the job with fewer slots than it had: it goes on with those.
        """
        if self._fleet is None or self._policy is None or self._observe_only:
            return plan
        change, self._change = self._change if self.ready else None, None
        if change is None and plan.layout.slots <= len(self._ids()) * self._policy.cores:
            return plan
        self._restarted = change
        if change is None:
            return self._laid_out(plan, wanted, len(self._ids()))
        return self._laid_out(plan, wanted, change.total, change.leaving)

    def began(self, at_s: float, gap_s: float) -> None:
        """Sources read again after ``gap_s``: if that was for a change, it is over, and the rest begins."""
        change, self._restarted = self._restarted, None
        if change is None or self._policy is None:
            return
        self._gap_s = gap_s
        outcome = compare(change.decision, len(self._ids()), at_s)
        self._journal.say("outcome", f"{outcome.sentence()}; the restart took {gap_s:.1f} s")
        self._calm = Calm(rest=self._policy.rest_cycles if change.total > change.before else 0)

    def give_back(self) -> None:
        """Ask for as many as there were before; for a session that others go on using."""
        if self._fleet is not None and self._first is not None:
            self._fleet.request(self._first)

    def _ids(self) -> tuple[str, ...]:
        assert self._fleet is not None
        return tuple(name for name in self._fleet.ids() if name not in self._released)

    def _demand(self, layout: Layout, wanted: Subtasks) -> Demand:
        assert self._policy is not None
        largest = fitted_layout(layout, wanted, self._policy.maximum * self._policy.cores)
        lacking = any(
            leg.subtasks < min(wanted[leg.index], largest.stages[leg.index].subtasks) for leg in elastic_legs(layout)
        )
        room = slots_of(layout, roomy(layout, wanted))
        return Demand(slots_of(layout, wanted), room, min_slots(layout), lacking)

    def _decide(self, at_s: float, demand: Demand, asked: int | None) -> None:
        assert self._fleet is not None and self._policy is not None
        there = len(self._ids())
        seen = Sight(at_s, there, demand, self._gap_s)
        if asked is not None:
            provision = obey(self._policy, seen, asked)
        else:
            provision = decide_executors(self._policy, self._calm, seen)
        self._calm, decision = provision.calm, provision.decision
        if decision is not None and self._observe_only:
            decision = replace(decision, withheld="observing only")
        if decision is not None:
            self._journal.say(decision.action, decision.sentence())
        if decision is None or provision.executors is None or self._observe_only:
            return
        total = provision.executors
        leaving = self._ids()[total:]
        until_s = at_s + (_EMPTY_S if leaving else PATIENCE_S)
        self._change = ExecutorChange(decision, there, total, until_s, ready=total == there, leaving=leaving)
        if total > there and not self._fleet.request(total):
            self._give_up("the cluster manager refused")

    def _wait_until_empty(self, at_s: float, change: ExecutorChange, left: int | None) -> None:
        if left != 0 and at_s < change.until_s:
            return
        those, waited_s = f"executors {', '.join(change.leaving)}", at_s - change.decision.at_s
        if left:
            told = f"{those} still have {left} slices after {waited_s:.1f} s: others load them after the restart"
        else:
            told = f"{those} have no slices to give away after {waited_s:.1f} s: they are let go at a cut"
        self._journal.say("provision", told)
        self._change = replace(change, ready=True)

    def _wait_on(self, at_s: float, change: ExecutorChange) -> None:
        """First until they have registered, then until they have warmed up."""
        assert self._fleet is not None
        there = len(self._ids())
        if change.warming is not None:
            self._change = replace(change, ready=not change.warming.is_alive())
        elif there >= change.total:
            waited_s = at_s - change.decision.at_s
            self._journal.say("provision", f"all {change.total} executors are there after {waited_s:.1f} s")
            self._warm_up(change)
        elif at_s >= change.until_s:
            self._fleet.request(there)
            self._give_up(f"{change.total - there} did not register within {PATIENCE_S:g} s: the cluster may be full")
            if there > change.before:
                self._warm_up(replace(change, total=there))

    def _warm_up(self, change: ExecutorChange) -> None:
        assert self._policy is not None
        slots = (change.total - change.before) * self._policy.cores
        warming = self._warm(slots) if self._warm is not None else None
        self._change = replace(change, warming=warming, ready=warming is None)

    def _give_up(self, why: str) -> None:
        assert self._policy is not None
        self._journal.say("hold", f"executors: {why}; the job goes on with those there are")
        self._change, self._calm = None, Calm(rest=self._policy.calm_cycles)

    def _withdraw(self) -> None:
        self._journal.say("hold", "executors: none is let go, because more are needed again")
        self._change = None

    def _laid_out(self, plan: JobPlan, wanted: Subtasks, total: int, leaving: Sequence[str] = ()) -> JobPlan:
        """Release what is beyond the total, first those that are leaving, and lay the job out for the slots of the others."""
        assert self._fleet is not None and self._policy is not None
        cores, minimum = self._policy.cores, min_slots(plan.layout)
        self._wait_for(ceil(minimum / cores))
        ids = sorted(self._ids(), key=lambda name: name in leaving)
        if len(ids) * cores < minimum:
            raise EnvironmentMissingError(
                f"the job needs {minimum} task slots at least, but only {len(ids)} executors of {cores} came "
                f"within {PATIENCE_S:g} s; give it a larger cluster, or steps a lower minimum parallelism"
            )
        if surplus := tuple(ids[total:]):
            self._fleet.kill(surplus)
            self._released.update(surplus)
            self._journal.say("provision", f"executors {', '.join(surplus)} are let go")
        self._fleet.request(total)
        layout = fitted_layout(plan.layout, wanted, min(total, len(ids)) * cores)
        # Workers keep subtasks in memory by run: those of the layout before must not be taken for the new ones.
        return replace(plan, run=uuid.uuid4().hex, layout=layout)

    def _wait_for(self, total: int, quiet_s: float = 0.0) -> None:
        """Until so many are there and no other has come for a while, or patience ends."""
        end_s = time.monotonic() + PATIENCE_S
        there, since_s = -1, time.monotonic()
        while time.monotonic() < end_s:
            if len(self._ids()) != there:
                there, since_s = len(self._ids()), time.monotonic()
            if there >= total and time.monotonic() - since_s >= quiet_s:
                return
            time.sleep(_POLL_S)
