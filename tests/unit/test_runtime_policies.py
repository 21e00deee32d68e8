"""The policies by themselves: which head they pick."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta

from headrace.config import SCHEDULES, Settings, Transition
from headrace.errors import ConfigError
from headrace.runtime.scheduling.disciplines import (
    DeadlineFirst,
    Head,
    Hybrid,
    MemoryFirst,
    OldestFirst,
    Profile,
    RoundRobin,
    StepProfile,
    make_policy,
    memory_weight,
)

BURST = {
    "A": Profile(1000, 1, 1, 200, 10),
    "B": Profile(200, 0.5, 2, 200, 8),
    "C": Profile(200, 1, 0, 50, 12),
    "D": Profile(200, 2, 1, 200, 4),
    "E": Profile(200, 0.1, 0, 100, 6),
}


def heads() -> st.SearchStrategy[list[Head]]:
    profile = st.none() | st.builds(
        Profile, st.floats(0, 1e4), st.floats(0, 5), st.integers(0, 3), st.floats(0, 1e4), st.floats(0, 1e4)
    )
    head = st.builds(Head, st.integers(0, 9), st.integers(0, 1000), profile, st.none() | st.integers(1, 10**9))
    return st.lists(head, min_size=1, max_size=6, unique_by=lambda h: h.place)


# cmr fact 11: ODF picks the oldest head; ties break deterministically
@given(heads(), st.randoms())
def test_odf_picks_the_oldest(waiting: list[Head], dice: object) -> None:
    chosen = OldestFirst().pick(waiting, 0.0)
    assert chosen.born_us == min(head.born_us for head in waiting)
    assert chosen.place == max(head.place for head in waiting if head.born_us == chosen.born_us)
    dice.shuffle(waiting)  # type: ignore[attr-defined]
    assert OldestFirst().pick(waiting, 1.0) == chosen


# cmr fact 12: MEM ranks of the burst workflow
def test_ranks_of_the_burst_workflow() -> None:
    ranks = {step: round(profile.freed_per_us, 1) for step, profile in BURST.items()}
    assert ranks == {"A": 80.0, "B": 0.0, "C": 16.7, "D": -50.0, "E": 33.3}
    waiting = [Head(place, 0, profile) for place, profile in enumerate(BURST.values())]
    order = []
    while waiting:
        chosen = MemoryFirst().pick(waiting, 0.0)
        order.append("ABCDE"[chosen.place])
        waiting.remove(chosen)
    assert order == ["A", "E", "C", "B", "D"]


def test_small_ranks_do_not_tie() -> None:
    slow, slower = Profile(10, 0, 0, 0, 100), Profile(10, 0, 0, 0, 101)
    assert MemoryFirst().pick([Head(0, 0, slower), Head(1, 9, slow)], 0.0).place == 1


def test_mem_measures_whom_it_does_not_know() -> None:
    assert MemoryFirst().pick([Head(0, 0, BURST["A"]), Head(1, 9)], 0.0).place == 1


# cmr fact 13: work-conserving: a negative rank never idles a worker
@pytest.mark.parametrize("name", SCHEDULES)
@given(waiting=heads(), used_share=st.floats(0, 2))
def test_something_always_runs(name: str, waiting: list[Head], used_share: float) -> None:
    assert make_policy(name, Transition(), 0).pick(waiting, used_share) in waiting
    losing = [Head(3, 5, BURST["D"])]
    assert make_policy(name, Transition(), 0).pick(losing, used_share) is losing[0]


# cmr fact 14: F matches the printed values; α = β = 1 is linear
def test_the_transition() -> None:
    shares = (0.2, 0.5, 0.6, 0.75, 0.9, 0.95, 1.0, 1.7)
    values = [round(memory_weight(share, Transition()), 3) for share in shares]
    assert values == [0.0, 0.0, 0.018, 0.177, 0.572, 0.768, 1.0, 1.0]
    for share in (0.5, 0.6, 0.75, 0.99):
        assert memory_weight(share, Transition(0.5, 1, 1)) == pytest.approx(2 * share - 1)


@given(st.floats(0, 1.5), st.floats(0, 0.95), st.floats(0.1, 10), st.floats(0.1, 10))
def test_the_transition_is_a_beta_distribution(share: float, threshold: float, a: float, b: float) -> None:
    expected = beta.cdf((share - threshold) / (1 - threshold), a, b) if share >= threshold else 0.0
    assert memory_weight(share, Transition(threshold, a, b)) == pytest.approx(expected, abs=1e-9)


# cmr fact 15: x = 0.9, 10⁵ requests: MEM decides .572 ± .01 of them, the same ones for the same seed
def test_the_share_of_mem() -> None:
    old, lean = Head(0, 0, BURST["D"]), Head(1, 9, BURST["A"])

    def picks(seed: int) -> list[int]:
        hybrid = Hybrid(Transition(), seed)
        return [hybrid.pick([old, lean], 0.9).place for _ in range(100_000)]

    first = picks(1)
    assert sum(first) / len(first) == pytest.approx(0.572, abs=0.01)
    assert picks(1) == first != picks(2)
    calm = Hybrid(Transition(), 1)
    assert all(calm.pick([old, lean], 0.49) is old for _ in range(1000)), "below the threshold it is ODF"


def test_round_robin_takes_turns() -> None:
    policy, waiting = RoundRobin(), [Head(place, 9 - place) for place in (1, 4, 7)]
    assert [policy.pick(waiting, 0.0).place for _ in range(5)] == [1, 4, 7, 1, 4]
    assert policy.pick(waiting[:1], 0.0).place == 1


def test_the_earliest_deadline_counts() -> None:
    tight, loose, free = Head(0, 50_000, bound_us=10_000), Head(1, 0, bound_us=90_000), Head(2, 0)
    policy = DeadlineFirst()
    assert policy.pick([free, loose, tight], 0.0) is tight
    assert policy.pick([free, loose], 0.0) is loose
    late = Head(0, 70_000_000, bound_us=10_000)
    assert policy.pick([free, late], 0.0) is free, "work without a bound gives way, but not for ever"


def test_a_profile_is_what_was_measured_lately() -> None:
    measured = StepProfile(fan_out=2)
    assert measured.profile() is None
    for _ in range(200):
        measured.add(10, 5000, 30, 600, 1_000_000)
    for _ in range(200):
        measured.add(10, 2000, 5, 2000, 80_000)
    profile = measured.profile()
    assert profile is not None
    assert (profile.in_bytes, profile.selectivity, profile.out_bytes) == pytest.approx((200, 0.5, 200))
    assert profile.time_us == pytest.approx(8) and profile.freed_per_us == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"schedule": "fair"}, "schedule 'fair' is not one of direct, round-robin"),
        ({"hybrid": 0.5}, "hybrid must be"),
        ({"hybrid": (1, 2, 1)}, "threshold < 1"),
        ({"hybrid": (0.5, 0, 1)}, "more than zero"),
        ({"budget": "much"}, "budget 'much' is not a size"),
    ],
)
def test_wrong_settings_are_named(options: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigError if "budget" not in options else ValueError, match=what):
        Settings.of(**options)


def test_settings() -> None:
    made = Settings.of(schedule="hybrid", hybrid=(0.4, 2, 3), budget="256 MB")
    assert (made.schedule, made.hybrid, made.budget_bytes) == ("hybrid", Transition(0.4, 2, 3), 256_000_000)
    assert Settings().schedule == "direct" and Settings().budget_bytes is None
