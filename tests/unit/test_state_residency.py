"""Residency policies: step by step what the pseudo-code does, and the guarantees of the thesis."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from residency_reference import NEVER, Memory, Reference, index_of, run

from headrace.errors import StateError
from headrace.state.index.policies import FREQUENT, INC, MARKER, SPACE_SAVING, ResidencyPolicy, Rule

POLICIES = [INC, FREQUENT, SPACE_SAVING, MARKER]
COUNTING = [FREQUENT, SPACE_SAVING]
ALL = [*POLICIES, *(ResidencyPolicy(rule, complete_only=True) for rule in Rule if rule != Rule.INC)]
RECORDS = st.lists(st.tuples(st.integers(0, 12), st.sampled_from([1, 1, 1, 2, 5, 30])), max_size=80)


def names(value: Any) -> str:
    return f"{value.rule.name}{'-complete' * value.complete_only}" if isinstance(value, ResidencyPolicy) else ""


def zipf(skew: float, keys: int, tuples: int, seed: int = 1) -> list[int]:
    weights = np.arange(1, keys + 1) ** -skew
    drawn: list[int] = np.random.default_rng(seed).choice(keys, tuples, p=weights / weights.sum()).tolist()
    return drawn


@pytest.mark.parametrize("policy", ALL, ids=names)
@given(
    records=RECORDS,
    s=st.integers(1, 6),
    batch=st.integers(1, 9),
    seed=st.integers(0, 5),
    lives=st.integers(0, 40),
    drops=st.lists(st.integers(0, 12), max_size=12),
)
@example(records=[(1, 30), (2, 30), (3, 1), (4, 2), (5, 5)], s=2, batch=1, seed=0, lives=0, drops=[0, 0, 1])
@settings(max_examples=100)
def test_every_step_is_the_pseudo_codes(
    policy: ResidencyPolicy, records: list[tuple[int, int]], s: int, batch: int, seed: int, lives: int, drops: list[int]
) -> None:
    """The same records absorbed, refused and pushed out, given the same choices among those that may be."""
    memory, reference, dropped = Memory(index_of(s, policy, seed)), Reference(policy, s), iter(drops)
    for now in range(0, len(records), batch):
        part = records[now : now + batch]
        keys, weights = [key for key, _ in part], [weight for _, weight in part]
        admission = memory.absorb(keys, weights, now)
        choices = iter(memory.keys_of(admission.evicted))
        absorbed = [reference.record(key, weight, now, choices) for key, weight in part]
        assert (admission.rows >= 0).tolist() == absorbed
        assert next(choices, None) is None, "more rows were pushed out than the pseudo-code does"
        assert memory.in_memory == {key: slot.t for key, slot in reference.slots.items()}
        if policy.complete_only:
            live = memory.index.all_rows()
            memory.index.expires[live] = [now + (lives * key) % 17 for key in memory.keys_of(live)]
            for key, slot in reference.slots.items():
                slot.expires = now + (lives * int(str(key))) % 17
        if (key := next(dropped, None)) in reference.slots:
            reference.drop(key)
            memory.index.drop(memory.index.find([pa.array([key])], 0))
    figures = memory.index.figures
    assert figures.decrements == reference.decrements and figures.evictions == len(reference.evicted)
    assert figures.refused == reference.refused.total() and figures.tuples == sum(w for _, w in records)
    assert figures.absorbed == figures.tuples - figures.refused
    if policy.counts:
        rows = memory.index.all_rows()
        assert memory.index.absorbed_of(rows).tolist() == [reference.slots[k].t for k in memory.keys_of(rows)]


# scalla fact 2: exact at s=1, s>=K, empty input, one key, all-distinct keys, adversarial order
@pytest.mark.parametrize("policy", POLICIES, ids=names)
@pytest.mark.parametrize("s", [1, 7, 1000])
def test_memory_and_disk_together_are_exact(policy: ResidencyPolicy, s: int) -> None:
    repeated = list(range(2 * s + 1)) * 5
    for keys in ([], [3] * 500, list(range(600)), repeated, zipf(1.1, 300, 5000), sorted(zipf(0.8, 300, 5000))):
        memory = run(keys, s, policy)
        assert memory.in_memory + memory.on_disk == Counter(keys)
        assert len(memory.index) == min(s, len({*keys}))


# scalla fact 4: INC with memory for all keys writes nothing
def test_inc_with_enough_slots_writes_nothing() -> None:
    keys = zipf(0.8, 5000, 50_000)
    assert run(keys, len({*keys}), INC).writes == 0
    assert run(keys, None, INC).writes == 0
    assert run(keys, len({*keys}) - 1, INC).writes > 0


# scalla fact 5, first half: INC absorbs exactly the first keys that fit
def test_inc_absorbs_the_first_keys() -> None:
    keys = zipf(0.8, 5000, 50_000)
    first = list(dict.fromkeys(keys))[:700]
    memory = run(keys, 700, INC)
    assert memory.in_memory == {key: n for key, n in Counter(keys).items() if key in {*first}}
    assert memory.writes == sum(n for key, n in Counter(keys).items() if key not in {*first})


def orders(keys: list[int]) -> list[list[int]]:
    """A sequence as it is, with its hot keys first, with its hot keys last, and each key in one run."""
    counts = Counter(keys)
    hot_first = sorted(keys, key=lambda key: (-counts[key], key))
    return [keys, hot_first, hot_first[::-1], sorted(keys)]


@pytest.mark.parametrize("s", [10, 100])
@pytest.mark.parametrize("skew", [0.8, 1.1, 1.5])
def test_guarantees_of_frequent(s: int, skew: float) -> None:
    for keys in orders(zipf(skew, 3000, 40_000)):
        memory = run(keys, s, FREQUENT)
        index, figures, frequency = memory.index, memory.index.figures, Counter(keys)
        m, bound = len(keys), len(keys) / (s + 1)
        # scalla fact 8: every key with f > M/(s+1) is monitored at the end, any order
        assert {key for key, f in frequency.items() if f > bound} <= memory.in_memory.keys()
        # scalla fact 9: t <= f <= t + M/(s+1) for each monitored key; decrements <= M/(s+1)
        rows = index.all_rows()
        absorbed = dict(zip(memory.keys_of(rows), index.absorbed_of(rows).tolist()))
        assert absorbed == memory.in_memory
        assert all(t <= frequency[key] <= t + figures.decrements for key, t in absorbed.items())
        assert figures.decrements <= bound
        # scalla fact 10: writes before the flush <= M - M', and with the flush <= M - M' + s
        top = sorted(frequency.values(), reverse=True)[:s]
        least_absorbed = sum(max(0, f - bound) for f in top)
        assert memory.writes <= m - least_absorbed and memory.writes + len(index) <= m - least_absorbed + s
        # scalla fact 11: on Zipf data the same with the divisor max(s+1, (s/2)^alpha)
        tighter = m / max(s + 1, (s / 2) ** skew)
        assert memory.writes <= m - sum(max(0, f - tighter) for f in top)


# scalla fact 12: if s/20 keys hold 95% of the tuples, at least 90% are absorbed in memory
def test_few_hot_keys_are_absorbed() -> None:
    s, m = 200, 100_000
    rng = np.random.default_rng(5)
    keys = np.where(rng.random(m) < 0.95, rng.integers(0, s // 20, m), rng.integers(1000, 10**6, m)).tolist()
    memory = run(keys, s, FREQUENT)
    assert memory.in_memory.total() >= 0.9 * m and m - memory.writes >= 0.9 * m


# scalla fact 13: repeating 2s+1 keys yields M-s writes under FREQUENT
@pytest.mark.parametrize("s", [1, 5, 64])
def test_the_worst_sequence_of_frequent(s: int) -> None:
    keys = list(range(2 * s + 1)) * 40
    assert run(keys, s, FREQUENT).writes == len(keys) - s


# scalla fact 14: spill of SPACE_SAVING within a few % of FREQUENT on skewed data
@pytest.mark.parametrize("skew", [0.8, 1.1, 1.5])
def test_space_saving_writes_about_as_much_as_frequent(skew: float) -> None:
    keys = zipf(skew, 20_000, 200_000)
    frequent, saving = (run(keys, 400, policy, batch=20_000).writes for policy in COUNTING)
    assert saving == pytest.approx(frequent, rel=0.04)


def assert_coverage_holds(memory: Memory, frequency: Counter[int]) -> int:
    """Checks gamma of all rows; returns how many are covered by more than half."""
    rows = memory.index.all_rows()
    expecting = memory.index.coverage_of(rows)
    for key, gamma in zip(memory.keys_of(rows), expecting.tolist()):
        assert gamma <= memory.in_memory[key] / frequency[key] + 1e-12
    return int((expecting > 0.5).sum())


# scalla fact 16: gamma never exceeds the true coverage, so keys returned for gamma >= phi have coverage >= phi
@pytest.mark.parametrize("policy", [INC, *COUNTING], ids=names)
@pytest.mark.parametrize("skew", [0.8, 1.5])
def test_coverage_is_never_overstated(policy: ResidencyPolicy, skew: float) -> None:
    for keys in orders(zipf(skew, 2000, 30_000)):
        memory = run(keys, 50, policy)
        assert assert_coverage_holds(memory, Counter(keys)) > 0
        if policy == FREQUENT:
            rows = memory.index.all_rows()
            t, thesis = memory.index.absorbed_of(rows), len(keys) / 51
            assert (memory.index.coverage_of(rows) >= t / (t + thesis)).all(), "looser than the thesis's own bound"


# scalla facts 8, 9, 10 and 16 for records that stand for several tuples
@pytest.mark.parametrize("policy", COUNTING, ids=names)
@given(records=RECORDS, s=st.integers(1, 6))
@settings(max_examples=150)
def test_guarantees_hold_by_weight(policy: ResidencyPolicy, records: list[tuple[int, int]], s: int) -> None:
    keys, weights = [key for key, _ in records], [weight for _, weight in records]
    memory = run(keys, s, policy, weights=weights, batch=7)
    frequency: Counter[int] = Counter()
    for key, weight in records:
        frequency[key] += weight
    m = sum(weights)
    bound = m / (s + 1) if policy == FREQUENT else m / s
    assert {key for key, f in frequency.items() if f > bound} <= memory.in_memory.keys()
    assert all(f <= memory.in_memory[key] + bound for key, f in frequency.items() if key in memory.in_memory)
    assert_coverage_holds(memory, frequency)
    if policy == FREQUENT:
        assert memory.index.figures.decrements <= bound
        top = sorted(frequency.values(), reverse=True)[:s]
        assert memory.writes <= m - sum(max(0, f - bound) for f in top)


# scalla fact 18: Marker refuses coverage queries
def test_policies_without_a_bound_refuse_coverage() -> None:
    for policy in (MARKER, *(p for p in ALL if p.complete_only)):
        memory = run([1, 2, 3], 2, policy)
        with pytest.raises(StateError, match=f"{policy.rule.name}.* gives no coverage guarantee; use FREQUENT"):
            memory.index.coverage_of(memory.index.all_rows())
    for policy in (MARKER, INC):
        memory = run([1, 2, 3], 2, policy)
        with pytest.raises(StateError, match=f"{policy.rule.name} does not count"):
            memory.index.absorbed_of(memory.index.all_rows())


def test_inc_claims_no_coverage_once_a_refused_key_may_have_come_back() -> None:
    memory = run([1, 2, 3, 3], 2, INC)
    assert memory.index.coverage_of(memory.index.all_rows()).tolist() == [1, 1]
    memory.index.drop(np.array([0]))
    memory.absorb([3])
    with pytest.raises(StateError, match="no coverage guarantee"):
        memory.index.coverage_of(memory.index.all_rows())


def sessions(policy: ResidencyPolicy, slots: int, users: int, clicks: int, active: int) -> tuple[Memory, int]:
    """Users come one after another, ``active`` at a time; a user is complete after 100 records of silence.

    Returns the memory and how many rows were pushed out before they were complete.
    """
    memory, gap, early = Memory(index_of(slots, policy)), 100, 0
    rng = np.random.default_rng(3)
    last: dict[int, int] = {}
    for first in range(0, users, active):
        keys = rng.permutation(np.repeat(np.arange(first, first + active), clicks)).tolist()
        for at in range(0, len(keys), 50):
            now = first * clicks + at
            admission = memory.index.admit([pa.array(keys[at : at + 50])], 0, now=now)
            early += sum(last[key] + gap > now for key in memory.keys_of(admission.evicted))
            memory.index.release(admission.evicted)
            last |= dict.fromkeys(keys[at : at + 50], now)
            if policy.complete_only:
                kept = np.unique(admission.rows[admission.rows >= 0])
                live = kept[np.isin(kept, memory.index.all_rows())]
                memory.index.expires[live] = now + gap
    return memory, early


# scalla fact 19: streaming evicts only complete states; expiring users spill >= 100 times less than with INC
@pytest.mark.parametrize("rule", [Rule.FREQUENT, Rule.SPACE_SAVING, Rule.MARKER], ids=lambda rule: rule.name)
def test_streaming_pushes_out_only_complete_rows(rule: Rule) -> None:
    setting = {"slots": 1000, "users": 20_000, "clicks": 8, "active": 250}
    inc, _ = sessions(INC, **setting)
    memory, early = sessions(ResidencyPolicy(rule, complete_only=True), **setting)
    assert early == 0 and memory.index.figures.evictions > 10_000
    assert inc.index.figures.refused >= 100 * memory.index.figures.refused


def test_streaming_refuses_rather_than_push_out_what_is_not_complete() -> None:
    for rule in (Rule.FREQUENT, Rule.SPACE_SAVING, Rule.MARKER):
        memory = Memory(index_of(3, ResidencyPolicy(rule, complete_only=True)))
        memory.absorb([1, 2, 3])
        for key in range(10, 60):
            assert memory.absorb([key], now=10**9).rows.tolist() == [-1], "rows never expire unless told"
        assert memory.index.figures.decrements <= 1, "the level rises only while all counters are positive"
        memory.index.expires[memory.index.find([pa.array([2])], 0)] = 70
        assert memory.absorb([100], now=69).rows.tolist() == [-1]
        assert memory.absorb([100]).rows.tolist() == [-1], "without a time nothing is complete"
        assert memory.keys_of(memory.absorb([100], now=70).evicted) == [2]
        assert memory.index.expires[memory.index.find([pa.array([100])], 0)].tolist() == [NEVER]


def test_a_row_that_completes_is_found_after_a_fruitless_round() -> None:
    """Small batches pay for eight looks per record, so one complete row of 500 is found within 63 records."""
    memory = Memory(index_of(500, ResidencyPolicy(Rule.FREQUENT, complete_only=True)))
    memory.absorb(list(range(500)))
    memory.absorb([1000, 1001], now=0)
    memory.index.expires[memory.index.find([pa.array([250])], 0)] = 1
    waited = 0
    while memory.absorb([2000 + waited], now=1).rows[0] < 0:
        waited += 1
    assert 0 < waited <= 500 // 8


# scalla 2.6: the slot is chosen uniformly among those that may be emptied
@pytest.mark.parametrize("policy", [FREQUENT, SPACE_SAVING, MARKER], ids=names)
def test_the_choice_is_even(policy: ResidencyPolicy) -> None:
    chosen: Counter[int] = Counter()
    for seed in range(800):
        memory = Memory(index_of(8, policy, seed))
        memory.absorb(list(range(8)))
        if policy != SPACE_SAVING:
            memory.absorb([100])
        memory.absorb([0, 1, 2, 3])
        chosen.update(memory.keys_of(memory.absorb([101]).evicted))
    assert chosen.keys() == {4, 5, 6, 7} and max(chosen.values()) < 1.3 * 200


@pytest.mark.parametrize("policy", [FREQUENT, SPACE_SAVING, MARKER], ids=names)
def test_inc_becomes_another_policy_at_run_time(policy: ResidencyPolicy) -> None:
    cold, hot = zipf(0.8, 5000, 3000, seed=1), [10_000 + key for key in zipf(1.5, 300, 20_000, seed=2)]
    memory = run(cold, 100, INC)
    before, refused = memory.in_memory.copy(), memory.index.figures.refused
    assert refused and len(before) == 100
    memory.index.adopt(policy)
    assert memory.index.policy == policy and memory.keys_of(memory.index.all_rows()) == list(before)
    memory.absorb(hot)
    assert memory.in_memory + memory.on_disk == Counter(cold) + Counter(hot)
    assert memory.index.figures.tuples == 23_000 and memory.index.figures.evictions
    if policy.counts:
        assert {key for key, f in Counter(hot).items() if f > len(hot) / 100} <= memory.in_memory.keys()
        assert_coverage_holds(memory, Counter(cold) + Counter(hot))
    memory.index.adopt(INC)
    memory.absorb([77_777])
    assert memory.on_disk[77_777] == 1
    with pytest.raises(StateError, match="no coverage guarantee"):
        memory.index.coverage_of(memory.index.all_rows())


@pytest.mark.parametrize("policy", COUNTING, ids=names)
@pytest.mark.parametrize("earlier", POLICIES, ids=names)
def test_coverage_remembers_what_an_earlier_policy_lost(earlier: ResidencyPolicy, policy: ResidencyPolicy) -> None:
    keys = zipf(1.1, 500, 10_000)
    memory = run(keys[:5000], 40, earlier)
    memory.index.adopt(policy)
    for at in range(5000, 10_000, 500):
        memory.absorb(keys[at : at + 500])
        assert_coverage_holds(memory, Counter(keys[: at + 500]))


def test_inc_cannot_wait_for_complete_rows() -> None:
    with pytest.raises(StateError, match="INC never pushes a row out"):
        index_of(3, ResidencyPolicy(Rule.INC, complete_only=True))
    with pytest.raises(StateError, match="does not ask whether rows are complete"):
        assert len(index_of(3, FREQUENT).expires)
