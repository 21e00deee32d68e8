"""From a running job to the controller and back: topology, ranks, orders, overrides, the ledger."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.unit.measured import moments_of, of_channel, of_subtask, of_worker

import headrace as hr
from headrace.actuate.controljob import control_job, overrides_of, topology_of
from headrace.actuate.controller import Controller, orders_of, wanted_subtasks
from headrace.actuate.ledger import Ledger
from headrace.actuate.ranks import Ranks
from headrace.config import Settings
from headrace.control.loop import decide_again
from headrace.control.policy import SettingsChange
from headrace.control.remembered import State
from headrace.driver.planning import plan_job
from headrace.errors import ConfigError, GraphError
from headrace.graph.slots import fitted_layout
from headrace.measure.report import ChannelId, Report, SubtaskId
from headrace.measure.trace import read_lines
from headrace.runtime.messages import Ordered, encode, read_as_worker
from headrace.runtime.orders import NO_ORDERS, Orders
from headrace.runtime.plan import JobPlan
from headrace.testing import scripted
from headrace.tokens import Attempt


def job(*bounds: str) -> hr.Job:
    """source → first → [work, elastic] → more → [count, keyed and elastic] → out."""
    job = hr.Job("job")
    s = job.source("s", scripted([{"k": 1, "t": 1}]), event_time="t", parallelism=2)
    work = s.map(dict, name="first").map(dict, name="work", parallelism=(1, 2, 4)).map(dict, name="more")
    count = work.key_by("k").window(hr.tumbling("1 s")).reduce(name="count", n=hr.count(), parallelism=(1, 2, 3))
    count.sink("out", hr.rows())
    for bound in bounds or ("50 ms",):
        job.constrain(s >> count, mean=bound, over="5 s")
    return job


def plan_of(tmp_path: Path, **options: Any) -> JobPlan:
    return plan_job(job(), tmp_path, Settings.of(**options), collect=True)


def edge_of(plan: JobPlan, source: str, target: str) -> int:
    return next(edge.id for edge in plan.layout.edges if (edge.source, edge.target) == (source, target))


def test_the_topology_has_every_step_with_its_limits(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    topology = topology_of(plan)
    limits = {step.name: (step.minimum, step.parallelism, step.maximum) for step in topology.steps}
    assert limits["s"] == limits["first"] == (2, 2, 2)
    assert limits["work"] == limits["more"] == (1, 2, 4) and limits["count"] == (1, 2, 3)
    assert topology.scaled_with("work") == {"work", "more"}
    assert topology.by_name["s"].source and topology.by_name["out"].sink
    assert all(edge.fixed for edge in topology.edges), "one process per leg: no chain can change"
    dynamic = topology_of(plan_of(tmp_path / "dynamic", chaining="dynamic"))
    moving = {edge.target for edge in dynamic.edges if not edge.fixed}
    assert moving == {"first", "work", "more"}


def test_constraints_that_cannot_be_kept_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="share the edge"):
        control_job(plan_job(job("50 ms", "20 ms"), tmp_path, Settings.of(), collect=True))


def report(*steps: tuple[str, int], channels: tuple[ChannelId, ...] = ()) -> Report:
    subtasks = tuple(of_subtask(SubtaskId(step, index), 1) for step, index in steps)
    return of_worker("w", 1.0, 0, subtasks, tuple(of_channel(id, 1, 1) for id in channels))


def test_only_active_subtasks_have_ranks(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    ranks = Ranks.of(plan, structs.replace(NO_ORDERS, active={1: 3, 2: 2}), [(1, 0), (0, 1), (2, 0)])
    assert ranks.parallelism() == {"s": 2, "first": 2, "work": 3, "more": 3, "count": 2, "out": 2}
    to_work, to_count = edge_of(plan, "first", "work"), edge_of(plan, "more", "count")
    channels = (
        ChannelId(to_work, 1, 2),
        ChannelId(to_work, 1, 3),
        ChannelId(to_count, 2, 0),
        ChannelId(to_count, 2, 1),
    )
    seen = ranks.translated(report(("work", 2), ("work", 3), ("count", 2), ("count", 1), channels=channels))
    assert [s.id for s in seen.subtasks] == [SubtaskId("work", 2), SubtaskId("count", 1)]
    assert [c.id for c in seen.channels] == [ChannelId(to_work, 1, 2), ChannelId(to_count, 2, 0)]
    assert ranks.index("count", 1) == 2 and ranks.index("count", 2) is None


def test_orders_name_the_lowest_deadline_of_a_senders_channels(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    to_work, to_count = edge_of(plan, "first", "work"), edge_of(plan, "more", "count")
    change = SettingsChange(
        deadlines_ms={ChannelId(to_work, 0, 0): 9.0, ChannelId(to_work, 0, 1): 4.5, ChannelId(to_work, 0, 3): 1.0,
                      ChannelId(to_count, 1, 1): 3.0},
        sizes_bytes={ChannelId(to_work, 1, 0): 8192}, parallelism={"work": 3, "more": 3},
    )  # fmt: skip
    settings = State.of(control_job(plan)).settings.changed([change])
    orders = orders_of(settings, Ranks.of(plan, structs.replace(NO_ORDERS, active={1: 2}), [(0, 1), (0, 1), (0, 2)]))
    assert orders.deadlines_us[to_work, 0] == 4500, "a receiver without work has no say"
    assert orders.deadlines_us[to_count, 1] == 3000 and orders.sizes_bytes == {(to_work, 1): 8192}
    assert orders.active == {1: 3, 2: 2} and orders.version == 1
    ordered = Ordered(Attempt(1, 1), orders)
    assert read_as_worker(encode(ordered)) == ordered


def test_buffers_that_are_flushed_by_size_begin_large(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, flush_by="size")
    given: list[Orders] = []
    Controller(plan, control_job(plan), given.append, lambda what, text: None).start()
    to_work = edge_of(plan, "first", "work")
    assert given[0].sizes_bytes[to_work, 1] == 32_768 and given[0].deadlines_us[to_work, 1] == 1_000_000


def test_what_is_set_by_hand_is_checked_and_stays(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    with pytest.raises(ConfigError, match="elastic steps are work 1 to 4"):
        overrides_of(plan, {}, {"work": 9}, {})
    with pytest.raises(ConfigError, match="is no edge of this job; its edges are s → first"):
        overrides_of(plan, {"s → work": "1 ms"}, {}, {})
    pins = overrides_of(plan, {"first > work": "7 ms"}, {"work": 4}, {})
    assert pins.parallelism == {"work": 4, "more": 4}
    given: list[Orders] = []
    said: list[tuple[str, str]] = []
    controller = Controller(plan, control_job(plan), given.append, lambda what, text: said.append((what, text)))
    controller.start()
    ranks = Ranks.of(plan, NO_ORDERS, ())
    controller.override(pins, ranks)
    assert given[-1].active[1] == 4 and given[-1].deadlines_us[edge_of(plan, "first", "work"), 0] == 7000
    assert given[-1].version > given[0].version and said[0][0] == "override"


def busy(plan: JobPlan, at_s: float, parallelism: Mapping[str, int]) -> list[Report]:
    """A second in which the elastic step was used to the full."""
    full, idle = moments_of(100, 9.9, 100.0), moments_of(100, 0.1, 0.1)
    subtasks = []
    for step, n in parallelism.items():
        work = full if step == "work" else idle
        figures = [of_subtask(SubtaskId(step, i), 100, work, work, moments_of(100, 10.0, 10.0), idle) for i in range(n)]
        subtasks += figures
    channels = []
    for edge in plan.layout.edges:
        if edge.border is not None:
            ids = [
                ChannelId(edge.id, a, b)
                for a in range(parallelism[edge.source])
                for b in range(parallelism[edge.target])
            ]
            channels += [of_channel(id, 100, 10, idle, idle, idle, idle) for id in ids]
    return [of_worker("w", at_s, 99, tuple(subtasks), tuple(channels))]


# latency-guarantees fact 37, on orders: a recorded trace replays to the same decisions
def test_a_bottleneck_gets_more_subtasks_and_the_trace_replays(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    given: list[Orders] = []
    said: list[str] = []
    trace = io.StringIO()
    controlled = control_job(plan)
    controller = Controller(plan, controlled, given.append, lambda what, text: said.append(text), trace)
    controller.start()
    for second in range(12):
        ranks = Ranks.of(plan, given[-1], [(0, 1), (0, 1), (0, 1)])
        controller.cycle(float(second), busy(plan, float(second), ranks.parallelism()), ranks)
    assert given[-1].active[1] == 4, "as many as there may be"
    assert any("scale work" in text for text in said)
    assert controller.ledger.seconds["work"] > 11 * 2
    kept = controller.kept["s → count: mean ≤ 50 ms over 5 s"]
    assert kept.cycles >= 10 and kept.met_share == 1.0
    again = [
        d.sentence()
        for cycle in decide_again(controlled, read_lines(trace.getvalue().splitlines(keepends=True)))
        for d in cycle.decisions
    ]
    assert again == [text for text in said if text in again] and len(again) > 1


def test_observing_only_sends_no_new_orders(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    given: list[Orders] = []
    said: list[str] = []
    controller = Controller(
        plan, control_job(plan, observe_only=True), given.append, lambda what, text: said.append(text)
    )
    controller.start()
    ranks = Ranks.of(plan, NO_ORDERS, [(0, 1), (0, 1), (0, 1)])
    for second in range(12):
        controller.cycle(float(second), busy(plan, float(second), ranks.parallelism()), ranks)
    assert {orders.version for orders in given} == {0}
    assert any("withheld: observing only" in text for text in said)


def test_orders_name_only_subtasks_that_are_there_while_wishes_go_further(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    small = replace(plan, layout=fitted_layout(plan.layout, {1: 2, 2: 2}, 5))
    assert [stage.subtasks for stage in small.layout.stages] == [2, 2, 1]
    maximum = {step.name: step.maximum for step in topology_of(small).steps}
    assert (maximum["work"], maximum["more"], maximum["count"]) == (4, 4, 3)
    settings = State.of(control_job(small)).settings.changed(
        [SettingsChange(parallelism={"work": 4, "more": 4, "count": 3})]
    )
    assert wanted_subtasks(settings, small.layout) == {1: 4, 2: 3}
    assert orders_of(settings, Ranks.of(small, NO_ORDERS, ())).active == {1: 2, 2: 1}


def test_the_ledger_counts_subtasks_over_time() -> None:
    ledger = Ledger()
    for at_s, n in ((0.0, 2), (1.0, 4), (3.0, 1)):
        ledger.add(at_s, {"work": n})
    assert ledger.seconds == {"work": 2 * 1 + 4 * 2}
