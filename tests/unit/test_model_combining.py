"""The rule for panes: its costs against a count, its crossover against the paper, its constant against measurements."""

from __future__ import annotations

from math import gcd
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.overlapping import panerule
from headrace.bench.overlapping.gammafit import Trial, crossover_us, fitted_gamma
from headrace.graph.windowing import FOREVER_US, TimeWindow
from headrace.model.panecost import PaneCosts, WindowLoad, costs, needed_values_per_key, rows_held
from headrace.state.table.rowtable import GroupTable

S = 1_000_000


def pay(cost: PaneCosts) -> bool:
    """Whether panes are the cheaper way."""
    return cost.paned < cost.direct


def needed_rate_per_s(size_us: int, slide_us: int, keys: float = 1.0, gamma: float = 1.0) -> float | None:
    """Values per second above which panes pay; None if they never do.

    >>> round(needed_rate_per_s(600_000_000, 60_000_000, gamma=1.0), 4)
    0.0185
    """
    needed = needed_values_per_key(size_us, slide_us, gamma)
    return needed * keys / (gcd(size_us, slide_us) / 1e6) if needed is not None else None


# cmr fact 16: w=600, s=60: Combine iff t > .0185 values/s per key
def test_ten_minutes_every_minute() -> None:
    minimum = needed_rate_per_s(600 * S, 60 * S, gamma=1.0)
    assert minimum == pytest.approx(10 / 540) and round(minimum, 4) == 0.0185
    for rate, pays in ((0.0184, False), (0.0186, True)):
        assert pay(costs(600 * S, 60 * S, WindowLoad(rate, 1.0), gamma=1.0)) is pays
        assert pay(costs(600 * S, 60 * S, WindowLoad(rate * 500, 500.0), gamma=1.0)) is pays, "per key"


# cmr fact 17: s ≥ w: Combine refused, whatever the load
@given(st.integers(1, 100), st.integers(0, 100), st.floats(0.1, 1e6), st.floats(1, 1e4))
def test_windows_that_do_not_overlap_never_share(size: int, more: int, rate: float, keys: float) -> None:
    assert not pay(costs(size * S, (size + more) * S, WindowLoad(rate, keys)))
    assert needed_values_per_key(size * S, (size + more) * S) is None
    assert needed_rate_per_s(size * S, (size + more) * S) is None


@given(st.integers(2, 30), st.integers(1, 29), st.integers(1, 6), st.integers(1, 4))
def test_costs_are_what_a_slide_touches(size: int, slide: int, keys: int, values: int) -> None:
    """Counted value by value, over enough slides, with each key so many times in each second."""
    slide = min(size, slide)
    pane, windows = gcd(size, slide), range(size, 4 * size * slide + 1, slide)
    times = [t for t in range(windows[0] - size, windows[-1]) for _ in range(keys * values)]
    added = sum(1 for end in windows for t in (*range(end - size, end),) for _ in range(keys * values))
    cost = costs(size * S, slide * S, WindowLoad(keys * values, keys), gamma=1.0)
    assert cost.direct * len(windows) == pytest.approx(added)
    merged = len(windows) * (size // pane) * keys
    first = (size - slide) * keys * values  # what the first window has beyond its slide
    assert cost.paned * len(windows) == pytest.approx(len(times) - first + merged)


def test_the_three_forms_of_the_rule_agree() -> None:
    load = WindowLoad(300.0, 80.0)
    edge = crossover_us(S, load, gamma=1.5)
    assert edge is not None
    assert pay(costs(edge, S, load, gamma=1.5)) and not pay(costs(edge - S, S, load, gamma=1.5))
    needed = needed_values_per_key(edge, S, gamma=1.5)
    rate = needed_rate_per_s(edge, S, 80.0, gamma=1.5)
    assert needed is not None and needed < 300 / 80 and rate == pytest.approx(needed * 80)
    assert crossover_us(S, WindowLoad(80.0, 80.0), gamma=1.5) is None, "every value has its own key"


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 4), st.booleans())
def test_rows_held_are_counted(size: int, slide: int, keys: int, anew: bool) -> None:
    """Each second has so many keys: the same ones always, or new ones each time."""
    size, slide = max(size, slide), min(size, slide)
    pane = gcd(size, slide)
    per_pane, per_window = (keys * pane, keys * size) if anew else (keys, keys)
    held = rows_held(size * S, slide * S, per_pane, per_window)
    seen = {(t // pane, t if anew else 0, key) for t in range(size) for key in range(keys)}
    assert held.paned == len(seen)
    assert held.direct == pytest.approx(size / slide * len({(t, key) for _, t, key in seen}))


# cmr fact 23: the paper's crossover at w=15 s, slide 1 s, between its slowest and its busiest second
@pytest.mark.parametrize(("rate", "keys", "gamma"), [(100, 71, 1.3), (1703, 794, 2.0)])
def test_the_papers_crossover_gives_its_gamma(rate: float, keys: float, gamma: float) -> None:
    load = WindowLoad(rate, keys)
    trials = [Trial(w * S, S, load, direct_s=float(w), paned_s=14.5) for w in range(2, 40)]
    fitted = fitted_gamma(trials)
    assert fitted == pytest.approx(gamma, abs=0.03)
    assert crossover_us(S, load, fitted) == 15 * S
    for trial in trials:
        assert pay(costs(trial.size_us, S, load, fitted)) is (trial.paned_s < trial.direct_s)


class RowsTouched:
    """In place of a clock: rows that tables have taken in, one by one or merged."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._rows = 0
        for name in ("absorb", "absorb_partial"):
            monkeypatch.setattr(GroupTable, name, self._counted(getattr(GroupTable, name)))

    def _counted(self, method: Any) -> Any:
        def counted(table: GroupTable, records: pa.RecordBatch, *others: Any) -> Any:
            self._rows += records.num_rows
            return method(table, records, *others)

        return counted

    def process_time(self) -> float:
        return float(self._rows)


# cmr fact 23: calibrated on our own operator, γ predicts the winner on both sides of the crossover
def test_a_fitted_gamma_predicts_the_measured_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the rows that both forms touch; ``bench combining`` compares the times they take."""
    monkeypatch.setattr(panerule, "time", RowsTouched(monkeypatch))
    trials = []
    for values_per_key in (1, 12):
        trades = list(panerule.trades_of(60_000, values_per_key))
        for size_s in (3, 5):
            trial, same = panerule.measured(trades, TimeWindow(size_s * S, S), values_per_key, chunk_us=FOREVER_US)
            assert same
            trials.append(trial)
    winners = [trial.paned_s < trial.direct_s for trial in trials]
    assert winners == [False, False, True, True]
    gamma = fitted_gamma(trials)
    assert gamma is not None and [pay(costs(t.size_us, S, t.load, gamma)) for t in trials] == winners


def test_many_panes_are_worth_a_few() -> None:
    """By suffix and prefix: windows of eight panes or more pay from fewer values per key, the more the longer."""
    load = WindowLoad(1.0, 1.0)
    assert not pay(costs(7 * S, S, load, 1.8, merges=4.0))
    assert crossover_us(S, load, 1.8, merges=4.0) == 9 * S and crossover_us(S, load, 1.8) is None
    for size in range(9, 100):
        assert pay(costs(size * S, S, load, 1.8, merges=4.0))
        needed = needed_values_per_key(size * S, S, 1.8, merges=4.0)
        assert needed is not None and needed == pytest.approx(1.8 * 4 / (size - 1))


def test_one_winner_says_nothing_about_gamma() -> None:
    assert (
        fitted_gamma(
            [Trial(4 * S, S, WindowLoad(10.0, 1.0), 2.0, 1.0), Trial(8 * S, S, WindowLoad(10.0, 1.0), 4.0, 1.0)]
        )
        is None
    )


def test_a_contradicting_trial_costs_least() -> None:
    """Noise: the γ is that of the trials that matter more."""
    load = WindowLoad(10.0, 1.0)
    sure = [Trial(2 * S, S, load, 1.0, 5.0), Trial(8 * S, S, load, 5.0, 1.0)]
    odd = Trial(4 * S, S, load, 1.0, 1.01)
    gamma = fitted_gamma([*sure, odd])
    assert gamma is not None and 5.0 < gamma < 8.75
