"""The cost model against the merges it describes, and its choices against the best there was."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thesis.hashpages import dinc_buckets, dinc_slots, inc_blind_pages
from thesis.mergetrees import choose, map_buffer_bytes, merge_tree, settings_by_rule, simulated_bytes

from headrace.bench.spilling.sortmerge import SortMerge
from headrace.errors import ConfigError
from headrace.model.hashcost import Buckets, inc_buckets, inc_io_pages
from headrace.model.mergecost import (
    MergeHardware,
    MergeSettings,
    MergeWorkload,
    Prices,
    merge_cost,
    written_bytes,
)

MB, GB = 1e6, 1e9
THESIS = MergeWorkload(97 * GB), MergeHardware(10, 140 * MB, 260 * MB)
THESIS_GRID = [
    MergeSettings(c * MB, f, 4) for c in (16, 32, 64, 96, 128, 140, 192, 256, 512) for f in (2, 3, 4, 8, 10, 16)
]


# scalla fact 23: λ_F equals the merge simulator at n=F and n=F²; the small-n guard returns n·b
@pytest.mark.parametrize("factor", [2, 3, 4, 7, 10, 16, 32])
def test_closed_form_equals_the_tree_at_full_trees(factor: int) -> None:
    for runs in (factor, factor**2):
        assert written_bytes(runs, 64.0, factor) == pytest.approx(simulated_bytes(runs, 64.0, factor), rel=1e-12)
    assert simulated_bytes(factor, 1.0, factor) == factor
    assert simulated_bytes(factor**2, 1.0, factor) == 2 * factor**2
    for runs in range(1, 2 * factor - 1):
        assert written_bytes(runs, 64.0, factor) == runs * 64.0 == simulated_bytes(runs, 64.0, factor)


# scalla fact 23: every full tree of the thesis's figure 3.5, n = (F + (F−1)(h−2))·F
@given(factor=st.integers(2, 12), height=st.integers(2, 8))
def test_closed_form_is_exact_at_every_full_tree(factor: int, height: int) -> None:
    runs = (factor + (factor - 1) * (height - 2)) * factor
    assert written_bytes(runs, 1.0, factor) == pytest.approx(simulated_bytes(runs, 1.0, factor), rel=1e-9)


@pytest.mark.parametrize("factor", [2, 3, 4, 8, 10, 16, 32])
def test_closed_form_between_full_trees(factor: int) -> None:
    runs = range(2 * factor - 1, 400)
    errors = [abs(written_bytes(n, 1.0, factor) / simulated_bytes(n, 1.0, factor) - 1) for n in runs]
    assert max(errors) < 0.2
    assert factor > 10 or sum(errors) / len(errors) < 0.025


@settings(max_examples=50)
@given(sizes=st.lists(st.integers(1, 100), max_size=80), factor=st.integers(2, 6))
def test_merge_tree_keeps_every_byte(sizes: list[int], factor: int) -> None:
    tree = merge_tree(sizes, factor)
    assert sum(tree.last_runs_bytes) == sum(sizes)
    assert len(tree.last_runs_bytes) == len(sizes) - tree.merges * (factor - 1) < 2 * factor - 1
    assert tree.written_bytes >= sum(sizes)


def test_cost_of_a_job_worked_by_hand() -> None:
    """D=1000, N=2, C=100, F=4, R=1, K_m=2, K_r=½, B_m=50, B_r=100: α=4 and β=10, and λ_4(10) = 50/12+15−8/3."""
    cost = merge_cost(
        MergeWorkload(1000, 2, 0.5), MergeHardware(2, 50, 100), MergeSettings(100, 4, 1), prices=Prices(1, 10, 100)
    )
    beta_written = 100 / 24 + 15 - 16 / 6
    assert cost.moved_bytes == pytest.approx(500 * (1 + 2 + 1) + 2 * 5 * (4 * 50) + 2 * beta_written * 100)
    assert cost.requests == pytest.approx(5 * (4 + 1 + 4 * 9 + 4 - 1) + 10 * 0.5 * 3 - 10 * 2 + beta_written * 9)
    assert cost.time_s == pytest.approx(cost.moved_bytes + 10 * cost.requests + 100 * 5)


def test_rules_at_the_thesis_setting() -> None:
    """Section 3.3.2.1: the largest C with C·K_m ≤ B_m, one-pass merge; the chooser comes to the same C."""
    rule = settings_by_rule(*THESIS, 4)
    assert rule == MergeSettings(140 * MB, 10, 4)
    chosen = choose(*THESIS, THESIS_GRID).settings
    assert chosen.split_bytes == rule.split_bytes
    assert 2 * chosen.merge_factor - 1 > 97 * GB / 10 / 4 / (260 * MB), "one pass: nothing is merged before the end"
    assert settings_by_rule(MergeWorkload(97 * GB, map_ratio=2), THESIS[1], 4).split_bytes == 70 * MB
    assert map_buffer_bytes(210 * MB) == pytest.approx(140 * MB)


# scalla fact 24: model-chosen (C,F) costs no more than 5 % above the best of the grid, merges played exactly
@pytest.mark.parametrize("terabytes", [0.097, 1, 10])
def test_choice_is_near_the_best_with_exact_merges(terabytes: float) -> None:
    workload, hardware = MergeWorkload(terabytes * 1000 * GB), THESIS[1]
    exact = {s: merge_cost(workload, hardware, s, written=simulated_bytes).time_s for s in THESIS_GRID}
    assert exact[choose(workload, hardware, THESIS_GRID).settings] <= 1.05 * min(exact.values())
    assert max(exact.values()) > 1.2 * min(exact.values()), "a grid on which any choice passes shows nothing"


# scalla fact 24: the same, with the bytes and requests counted while a real job runs
def test_choice_is_near_the_best_of_measured_jobs(tmp_path: Path) -> None:
    """Half a node of the thesis (two reducers) at 1/5000; seek and start shrink alike, so that their shares stay."""
    scale = 1 / 5000
    workload, hardware = MergeWorkload(9.7 / 2 * GB * scale), MergeHardware(1, 140 * MB * scale, 260 * MB * scale)
    prices = Prices(1 / 80e6, 0.004 * scale, 0.1 * scale)
    grid = [MergeSettings(c * MB * scale, f, 2) for c in (64, 140, 256, 560) for f in (2, 3, 5, 8, 16)]
    measured = {s: _measured_s(workload, hardware, s, prices, tmp_path) for s in grid}
    for written in (written_bytes, simulated_bytes):
        chosen = choose(workload, hardware, grid, prices=prices, written=written)
        assert measured[chosen.settings] <= 1.05 * min(measured.values())
        assert measured[chosen.settings] == pytest.approx(chosen.expected.time_s, rel=0.15)
    assert max(measured.values()) > 1.2 * min(measured.values())


def _measured_s(
    workload: MergeWorkload, hardware: MergeHardware, chosen: MergeSettings, prices: Prices, directory: Path
) -> float:
    """T of a job on one node that is really run: its maps' and reducers' external sorts, all I/O counted."""
    rows = int(workload.input_bytes / 24)
    keys = np.random.default_rng(5).permutation(rows)
    reducers = [_sorter(directory, hardware.reduce_buffer_bytes, chosen) for _ in range(chosen.reducers)]
    moved, requests, starts = 0.0, 0.0, 0
    for split in np.array_split(keys, math.ceil(workload.input_bytes / chosen.split_bytes)):
        starts += 1
        task = _sorter(directory, hardware.map_buffer_bytes, chosen)
        task.add(split, np.ones(len(split), np.int64))
        output = pa.Table.from_batches(task.groups())
        write_bytes = _write_bytes(hardware.map_buffer_bytes, chosen) if task.io.writes else math.inf
        fills = math.ceil(len(split) * 24 / hardware.map_buffer_bytes)
        moved += 2 * 24 * len(split) + task.io.moved_bytes
        requests += fills + max(1, output.nbytes / write_bytes) + task.io.requests
        _shuffle(output, reducers)
    for reducer in reducers:
        output = pa.Table.from_batches(reducer.groups())
        moved += output.nbytes + reducer.io.moved_bytes
        requests += output.nbytes / _write_bytes(hardware.reduce_buffer_bytes, chosen) + reducer.io.requests
    return prices.time_s(moved, requests, starts)


def _shuffle(output: pa.Table, reducers: list[SortMerge]) -> None:
    keys, sums = output["key"].to_numpy(), output["sum"].to_numpy()
    for index, reducer in enumerate(reducers):
        own = keys % len(reducers) == index
        reducer.add(keys[own], sums[own])


def _sorter(directory: Path, buffer_bytes: float, chosen: MergeSettings) -> SortMerge:
    own = tempfile.mkdtemp(dir=directory)
    engine = SortMerge(Path(own), memory_bytes=int(5 * buffer_bytes), merge_factor=chosen.merge_factor)
    assert engine.buffer_bytes == int(buffer_bytes)
    return engine


def _write_bytes(buffer_bytes: float, chosen: MergeSettings) -> float:
    return buffer_bytes / (math.sqrt(chosen.merge_factor) + 1)


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="merge factor"):
        merge_cost(*THESIS, MergeSettings(64 * MB, 1, 4))
    with pytest.raises(ConfigError, match="above zero"):
        merge_cost(*THESIS, MergeSettings(0, 4, 4))
    with pytest.raises(ConfigError, match="grid"):
        choose(*THESIS, [])


# scalla fact 6: the bounds of h, as the model gives them to the engines
@given(memory=st.integers(3, 60), states=st.integers(1, 4000))
def test_inc_bucket_bounds(memory: int, states: int) -> None:
    if memory < max(3, math.sqrt(states) + 1):
        with pytest.raises(ConfigError, match="at least"):
            inc_buckets(memory, states)
        return
    bounds = inc_buckets(memory, states)
    assert bounds.maximum == memory - 1
    assert 0 <= bounds.fewest <= bounds.maximum
    # Every bucket fits in memory beside its input page: the states not held, over h, are at most B−1 pages.
    held = memory - bounds.fewest - 1
    assert states <= held + bounds.fewest * (memory - 1)
    if bounds.fewest:
        fewer = bounds.fewest - 1
        assert states > memory - fewer - 1 + fewer * (memory - 1)
    for refused in (bounds.fewest - 1, bounds.maximum + 1):
        with pytest.raises(ConfigError, match="recurse"):
            inc_io_pages(memory, states, 10.0, refused)


# scalla fact 4: with B ≥ U+1 there is no spill
def test_inc_without_spill() -> None:
    assert inc_buckets(101, 100) == Buckets(0, 100)
    assert inc_io_pages(101, 100, 5000.0, 0) == 0
    assert inc_io_pages(100, 100, 5000.0, 1) == pytest.approx(2 * 0.02 * 5000)


# scalla fact 7: not knowing U costs twice what the thesis prints; its example needs that factor
def test_inc_blind_extra_is_the_difference_of_the_two_spills() -> None:
    memory, states, read = 102, 1001, 3000.0  # the lower bound of h is a whole number here
    minimum = inc_io_pages(memory, states, read, inc_buckets(memory, states).fewest)
    assert inc_io_pages(memory, states, read, memory - 1) - minimum == pytest.approx(inc_blind_pages(102, 1001, read))
    assert inc_blind_pages(10_000, 20_000, 1.0) == pytest.approx(1.0, rel=0.001)
    with pytest.raises(ConfigError, match="no extra"):
        inc_blind_pages(102, 101, 1.0)


def test_dinc_buckets_and_slots() -> None:
    bounds = dinc_buckets(101, 1000)
    assert bounds == Buckets(10, 100)
    assert dinc_slots(101, bounds.fewest, 32) == 91 * 32
    assert dinc_slots(101, bounds.fewest, 32, buffer_pages=4) == 61 * 32
    with pytest.raises(ConfigError, match="no slot"):
        dinc_slots(101, 51, 32, buffer_pages=2)
    with pytest.raises(ConfigError, match="at least"):
        dinc_buckets(30, 1000)
