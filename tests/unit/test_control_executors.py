"""How many executors: at once more, after a calm time fewer, never a restart that does not pay."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil

import pytest

from headrace.control.decisions import Decision
from headrace.control.executors import Calm, Demand, ExecutorPolicy, ExecutorProvision, Sight, decide_executors

POLICY = ExecutorPolicy(1, 6, 4, calm_cycles=10)
RIGID, COMES_AFTER = 2, 6
"""Slots of steps that do not scale; cycles that an executor takes to register."""


def sight(there: int, wanted: int, *, roomy: int | None = None, lacking: bool = False, gap_s: float = 3.0) -> Sight:
    return Sight(0.0, there, Demand(wanted, wanted if roomy is None else roomy, 3, lacking), gap_s)


def cycles(policy: ExecutorPolicy, seen: list[Sight], calm: Calm | None = None) -> list[ExecutorProvision]:
    provisions: list[ExecutorProvision] = []
    for one in seen:
        provisions.append(decide_executors(policy, provisions[-1].calm if provisions else calm or Calm(), one))
    return provisions


def test_more_are_asked_for_at_once() -> None:
    (provision,) = cycles(POLICY, [sight(1, 9, lacking=True)])
    assert provision.executors == 3 and provision.decision is not None
    sentence = provision.decision.sentence()
    assert "provision executors: 1 → 3, because steps want more subtasks than there are" in sentence
    assert "wanted_slots 9, slots 4, gap_s 3" in sentence and "expects executors 3" in sentence


@pytest.mark.parametrize(("there", "wanted", "executors"), [(1, 100, 6), (6, 100, 6), (2, 8, 2)])
def test_never_more_than_the_most_and_the_slots_that_are_there_may_be_shared_out_anew(
    there: int, wanted: int, executors: int
) -> None:
    (provision,) = cycles(POLICY, [sight(there, wanted, lacking=True)])
    assert provision.executors == executors


def test_fewer_only_after_a_calm_time_and_then_as_many_as_it_needed_at_its_peak() -> None:
    calm = [sight(5, 4)] * 6 + [sight(5, 11)] + [sight(5, 4)] * 2
    before = cycles(POLICY, calm)
    assert all(p.executors is None and p.decision is None for p in before)
    after = cycles(POLICY, [*calm, sight(5, 4)])[-1]
    assert after.executors == 3, "the peak of 11 slots needs 3"
    assert cycles(POLICY, [*calm, sight(5, 20)])[-1].calm == Calm(), "one cycle that needs all begins it anew"


def test_head_room_counts_for_fewer_but_not_for_more() -> None:
    assert cycles(POLICY, [sight(2, 4, roomy=5)] * 30)[-1].executors is None
    assert cycles(POLICY, [sight(2, 4)] * 10)[-1].executors == 1


@pytest.mark.parametrize(("minimum", "min_slots", "executors"), [(1, 3, 1), (2, 3, 2), (1, 9, 3)])
def test_never_fewer_than_the_user_or_the_job_needs(minimum: int, min_slots: int, executors: int) -> None:
    seen = Sight(0.0, 5, Demand(min_slots, min_slots, min_slots, False), 3.0)
    assert cycles(replace(POLICY, minimum=minimum), [seen] * 10)[-1].executors == executors


def test_a_release_must_save_more_than_its_gap_costs() -> None:
    """6 → 5 saves 600 executor-seconds in ten minutes; a gap of 11 s costs 10 · 6 · 11 = 660."""
    assert cycles(POLICY, [sight(6, 20, gap_s=9.0)] * 10)[-1].executors == 5
    held = cycles(POLICY, [sight(6, 20, gap_s=11.0)] * 30)
    assert all(provision.executors is None for provision in held)
    (said,) = [p.decision for p in held if p.decision is not None]
    assert said.action == "hold" and "would save less than the restart costs" in said.sentence()
    assert cycles(POLICY, [sight(6, 16, gap_s=11.0)] * 10)[-1].executors == 4, "two are worth it"


# latency-guarantees fact 28, for executors: rest after those asked for have come, none after a release
def test_it_rests_after_executors_have_come() -> None:
    wanting = [sight(3, 20, lacking=True)] * 4
    resting = cycles(POLICY, wanting, Calm(rest=POLICY.rest_cycles))
    assert [provision.executors for provision in resting] == [None, None, None, 5]


@dataclass
class Cluster:
    """Executors that come late, and a job that has what they give it after a restart."""

    policy: ExecutorPolicy
    there: int = 1
    calm: Calm = field(default_factory=Calm)
    history: list[int] = field(default_factory=list)
    decisions: list[tuple[int, Decision]] = field(default_factory=list)
    lacked: list[bool] = field(default_factory=list)
    _coming: tuple[int, int] | None = None

    def cycle(self, wanted: int) -> None:
        cycle, held = len(self.history), self.there * self.policy.cores
        slots = min(RIGID + wanted, self.policy.maximum * self.policy.cores)
        self.lacked.append(slots > held)
        self.history.append(max(self.there, self._coming[0] if self._coming else 0))
        if self._coming is not None:
            if self._coming[1] <= cycle:
                self.there, self._coming = self._coming[0], None
                self.calm = Calm(rest=self.policy.rest_cycles)
            return
        demand = Demand(slots, slots + (wanted > 1), RIGID + 1, slots > held)
        provision = decide_executors(self.policy, self.calm, Sight(cycle, self.there, demand, 3.0))
        self.calm = provision.calm
        if provision.decision is not None:
            self.decisions.append((cycle, provision.decision))
        if provision.executors is not None and provision.executors > self.there:
            self._coming = provision.executors, cycle + COMES_AFTER
        elif provision.executors is not None:
            self.there = provision.executors


def bursts(seed: int, cycles: int = 1200) -> list[int]:
    """Wanted subtasks: calm and busy times of some minutes, and noise of one."""
    dice, wanted, level = random.Random(seed), [], 2
    while len(wanted) < cycles:
        level = dice.choice([2, 5, 9, 16])
        wanted += [max(1, level + dice.randint(-1, 1)) for _ in range(dice.randint(60, 240))]
    return wanted[:cycles]


@pytest.mark.parametrize("seed", range(5))
def test_a_bursty_load_gets_what_it_wants_with_fewer_executor_seconds_than_fixed_ones(seed: int) -> None:
    wanted, cluster = bursts(seed), Cluster(replace(POLICY, calm_cycles=30))
    for n in wanted:
        cluster.cycle(n)
    maximum = min(ceil((RIGID + max(wanted)) / POLICY.cores), POLICY.maximum)
    assert max(cluster.history) == maximum
    assert sum(cluster.history) < 0.9 * maximum * len(wanted), "less than if the maximum were there all the time"
    longest, run = 0, 0
    for lacked in cluster.lacked:
        run = run + 1 if lacked else 0
        longest = max(longest, run)
    assert longest <= 2 * (COMES_AFTER + POLICY.rest_cycles + 1), "a second request may have to follow the first"
    changes = [cycle for cycle, decision in cluster.decisions if decision.action == "provision"]
    steps = sum(abs(a - b) > 2 for a, b in pairwise(wanted))
    assert len(changes) <= 3 * (steps + 1), "noise makes no changes"
    downs = [cycle for cycle, decision in cluster.decisions if "fewer" in decision.reason]
    assert downs and all(b - a >= 30 for a, b in pairwise(downs))


# latency-guarantees fact 37, for executors
def test_the_same_trace_leads_to_the_same_decisions() -> None:
    told = []
    for _ in range(2):
        cluster = Cluster(POLICY)
        for n in bursts(7):
            cluster.cycle(n)
        told.append([decision.sentence() for _, decision in cluster.decisions])
    assert told[0] == told[1] and told[0]
