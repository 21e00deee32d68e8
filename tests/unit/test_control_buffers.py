"""Adaptive buffer sizing: the rule by numbers, then in the plant."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.plants import Run, drive, job_of, line

from headrace.control.flushing.buffersizes import SizeLimits, next_size_bytes
from headrace.control.policy import ControlSettings
from headrace.control.topology import ControlledStep
from headrace.measure.report import ChannelId
from headrace.measure.summary import summarise
from headrace.testing.plant import Plant
from headrace.testing.plant_model import EdgeModel, Faults, PlantModel, StepModel, steady

PAPER = SizeLimits(min_bytes=200, max_shrink=math.inf)


def resized(size: int, wait_ms: float, sender_ms: float | None = None, limits: SizeLimits = PAPER) -> int:
    return next_size_bytes(size, 2 * wait_ms, sender_ms, limits)


# nephele-qos fact 5: obs=32,768: obl=35 ms → 16,157; 100 ms → 4,345
def test_shrinking_by_numbers() -> None:
    assert resized(32_768, 35.0) == 16_157
    assert resized(32_768, 100.0) == 4_345


# nephele-qos fact 6: obl=5 → unchanged; obl=10, tl(u)=12 → unchanged
def test_short_waits_and_slow_senders_change_nothing() -> None:
    assert resized(32_768, 5.0) == 32_768
    assert resized(32_768, 10.0, 12.0) == 32_768
    assert resized(32_768, 10.0, 9.0) < 32_768


# nephele-qos fact 7: shrinking stops at ε, growing at ω
@given(st.integers(200, 32_768), st.floats(0, 1e5))
@settings(max_examples=100)
def test_sizes_stay_within_their_limits(size: int, wait_ms: float) -> None:
    assert 200 <= resized(size, wait_ms) <= 32_768
    assert resized(300, 1e4) == 200 and resized(32_000, 0.0) == 32_768
    limited = resized(size, wait_ms, limits=SizeLimits(min_bytes=1))
    assert limited >= size // 10


# nephele-qos fact 8: obl=0, 1,000 B → 1,100 B
def test_growing_by_numbers() -> None:
    assert resized(1_000, 0.0) == 1_100
    assert next_size_bytes(1_000, 0.0, None, PAPER, too_large_bytes=1_050) == 1_000


def rest_of(limits: SizeLimits, items_per_ms: float) -> tuple[int, int]:
    """Where the size comes to rest on a steady channel of 128-byte items, and after how many steps."""
    size = 32_768
    for step in range(50):
        items = math.ceil(size / 128)
        after = resized(size, (items - 1) / items_per_ms / 2, limits=limits)
        if after == size:
            return size, step
        size = after
    raise AssertionError("it never rests")


# nephele-qos fact 9: 128 B items, 1/ms, from 32 KB: rests at 1,374 B (1,389 with the 10× limit); 10/ms: 12.2 KB
def test_where_a_size_comes_to_rest() -> None:
    size, steps = rest_of(PAPER, 1.0)
    assert size == pytest.approx(1_374, abs=3) and steps <= 6  # ours are whole bytes in every step
    assert (math.ceil(size / 128) - 1) / 2 <= 5.0
    limited, steps = rest_of(SizeLimits(min_bytes=200), 1.0)
    assert limited == pytest.approx(1_389, abs=3) and steps <= 6
    busy, _ = rest_of(PAPER, 10.0)
    assert busy == pytest.approx(12_200, rel=0.01)


def sized(
    bound_ms: float, *, rate_per_s: float = 200, cycles: int = 80, item_bytes: int = 128, **policy: object
) -> Run:
    topology = line(ControlledStep("work"))
    edges = {edge: EdgeModel(item_bytes=item_bytes) for edge in (0, 1)}
    steps = {"work": StepModel(0.5), "out": StepModel(0.1)}
    model = PlantModel({"src": steady(rate_per_s)}, steps, edges, deadline_ms=math.inf, regular=True)
    job = job_of(topology, bound_ms, flush_by="size", sizes=SizeLimits(min_bytes=200), **policy)
    return drive(job, Plant(topology, model, seed=1), cycles)


# nephele-qos fact 4: no violation: no setting changes
def test_sizes_are_left_alone_while_the_bound_holds() -> None:
    run = sized(5_000.0)
    assert run.settings[-1].version == 0 and not run.of("resize")


def test_a_violated_bound_shrinks_buffers_until_it_holds() -> None:
    run = sized(100.0)
    assert run.standings()[2].met is False and run.standings()[-1].met is True
    assert run.settings[-1].version == run.settings[-10].version  # and then they rest


# nephele-qos fact 10: after a change, no decision from older measurements
def test_no_size_changes_twice_on_the_same_measurements() -> None:
    run = sized(100.0)
    last: dict[ChannelId, int] = {}
    for before, after, view in zip(run.settings, run.settings[1:], run.views):
        for channel, size in after.sizes_bytes.items():
            if size != before.sizes_bytes.get(channel):
                measured = view.summary.versions[channel]
                assert measured >= last.get(channel, 0)
                last[channel] = after.version
    assert last


# nephele-qos fact 10: nor do chains
def test_chaining_waits_until_all_changes_are_measured() -> None:
    topology = line(ControlledStep("a"), ControlledStep("b"), paired=True)
    steps = {"a": StepModel(0.5), "b": StepModel(0.5), "out": StepModel(0.1)}
    model = PlantModel({"src": steady(200)}, steps, deadline_ms=math.inf, faults=Faults(late_share=1.0))
    run = drive(job_of(topology, 8.0, flush_by="size", sizes=PAPER), Plant(topology, model, seed=1), 60)
    assert run.of("chain")
    for view, decisions in zip(run.views, run.decisions):
        if any(d.action in ("chain", "give up") for d in decisions):
            assert all(view.summary.versions[channel] >= version for channel, version in view.since.items())


# nephele-qos fact 20: unattainable bound: failure reported, no endless oscillation
@pytest.mark.parametrize("item_bytes", [128, 1_250])
def test_an_unattainable_bound_is_given_up(item_bytes: int) -> None:
    run = sized(0.3, rate_per_s=25, cycles=400, item_bytes=item_bytes)
    given_up = run.of("give up")
    assert given_up and "change the job or the bound" in given_up[0].sentence()
    assert run.settings[-1].version == run.settings[-150].version
    assert len(given_up) < 10  # said once per time it is found out, not in every interval


# nephele-qos fact 11: lifetime of one-item buffers ≈ 0
def test_one_item_buffers_do_not_live() -> None:
    model = PlantModel(
        {"src": steady(25)}, edges={0: EdgeModel(item_bytes=1_250)}, buffer_bytes=200, deadline_ms=math.inf
    )
    channel = summarise(Plant(line(ControlledStep("work")), model).run(ControlSettings()).reports).channels[
        ChannelId(0, 0, 0)
    ]
    assert channel.lifetime_ms is not None and channel.lifetime_ms.mean == 0.0


# nephele-qos fact 12: mean item wait equals lifetime/2 for regular arrivals
def test_items_wait_half_a_lifetime() -> None:
    model = PlantModel({"src": steady(1000)}, {"work": StepModel(0.1)}, regular=True, deadline_ms=math.inf)
    plant = Plant(line(ControlledStep("work")), model, interval_s=5.0)
    plant.run(ControlSettings())
    channel = summarise(plant.run(ControlSettings()).reports).channels[ChannelId(0, 0, 0)]
    assert channel.lifetime_ms is not None and channel.wait_ms is not None
    assert channel.lifetime_ms.mean == pytest.approx(255.0, rel=0.01)  # 256 items of 128 bytes
    assert channel.wait_ms.mean == pytest.approx(channel.lifetime_ms.mean / 2, rel=0.02)


# nephele-qos fact 13: size-only, 128 B, 1 item/s, 64 KB: minutes of latency; adding deadline L caps it
@pytest.mark.parametrize(("deadline_ms", "at_least_ms", "at_most_ms"), [(math.inf, 120_000, 512_000), (500.0, 0, 502)])
def test_size_alone_starves_sparse_channels(deadline_ms: float, at_least_ms: float, at_most_ms: float) -> None:
    edges = {0: EdgeModel(item_bytes=128), 1: EdgeModel(item_bytes=128)}
    model = PlantModel(
        {"src": steady(1)}, {"work": StepModel(1.0, 0.0)}, edges, deadline_ms=deadline_ms, buffer_bytes=65_536
    )
    plant = Plant(line(ControlledStep("work")), model, seed=2, interval_s=1100.0)
    waits = [
        c.wait_ms.mean
        for c in summarise(plant.run(ControlSettings()).reports).channels.values()
        if c.wait_ms and c.id.edge == 0
    ]
    assert waits and all(at_least_ms <= wait <= at_most_ms for wait in waits)


# nephele-qos fact 14: throughput rises with buffer size; flush per item is slowest
def test_larger_buffers_carry_more() -> None:
    consumed = []
    for buffer_bytes in (1, 1_024, 4_096, 16_384):
        edges = {0: EdgeModel(item_bytes=128, buffer_ms=1.0)}
        steps = {"work": StepModel(0.05), "out": StepModel(0.001)}
        model = PlantModel({"src": steady(30_000)}, steps, edges, deadline_ms=math.inf, buffer_bytes=buffer_bytes)
        plant = Plant(line(ControlledStep("work")), model, seed=1)
        plant.run(ControlSettings())
        consumed.append(
            summarise(plant.run(ControlSettings()).reports).subtasks[next(plant.topology.subtasks("work"))].items
        )
    assert consumed == sorted(consumed) and consumed[-1] > 10 * consumed[0]


# nephele-qos fact 21: mean latency none > sizing > sizing+chaining; sizing gains ≥5×
def test_sizing_then_chaining() -> None:
    inner = [ControlledStep(name, workers=("w",)) for name in ("decode", "merge", "overlay", "encode")]
    topology = line(*inner, paired=True)
    frame, packet = EdgeModel(item_bytes=307_200, transfer_ms=3.0), EdgeModel(item_bytes=1_250)
    edges = {0: packet, 1: frame, 2: frame, 3: frame, 4: packet}
    steps = {s.name: StepModel(6.0, 0.3) for s in inner}
    model = PlantModel({"src": steady(25)}, steps, edges, deadline_ms=math.inf, regular=True)
    mean = {}
    for name, bound, chaining in (("none", 1e6, False), ("sizing", 30.0, False), ("both", 30.0, True)):
        job = job_of(topology, bound, flush_by="size", sizes=SizeLimits(min_bytes=200), chaining=chaining)
        run = drive(job, Plant(topology, model, seed=1), 200)
        mean[name] = run.standings()[-1].observed_ms or math.nan
        assert bool(run.settings[-1].chained) == chaining
    assert mean["none"] > 5 * mean["sizing"] and mean["sizing"] > mean["both"]
