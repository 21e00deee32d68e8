"""Which constraints are legal, whether they hold, how bounds are split."""

from __future__ import annotations

import pytest
from tests.unit.measured import moments_of, of_channel, of_subtask, of_worker
from tests.unit.plants import drive, job_of, line

from headrace.control.constraints import PathConstraint, check, paths_between
from headrace.control.standing import Spending, budget, standing
from headrace.control.topology import ControlledStep, StepEdge, Topology
from headrace.errors import GraphError
from headrace.measure.recent import Recent
from headrace.measure.report import ChannelId, SubtaskId
from headrace.measure.summary import summarise
from headrace.testing.plant import Plant
from headrace.testing.plant_model import PlantModel, StepModel, steady

DIAMOND = Topology(
    (
        ControlledStep("src", source=True),
        ControlledStep("a"),
        ControlledStep("b"),
        ControlledStep("c"),
        ControlledStep("out", sink=True),
    ),
    (
        StepEdge(0, "src", "a"),
        StepEdge(1, "a", "b"),
        StepEdge(2, "a", "c"),
        StepEdge(3, "b", "out"),
        StepEdge(4, "c", "out"),
    ),
)


# latency-guarantees fact 1: p=(2,3) and full wiring yields 5 subtasks and 6 channels
def test_a_template_induces_its_runtime_graph() -> None:
    topology = Topology((ControlledStep("k", 2), ControlledStep("l", 3)), (StepEdge(0, "k", "l"),))
    assert len([id for step in topology.steps for id in topology.subtasks(step.name)]) == 5
    assert len(set(topology.channels(0))) == 6
    paired = Topology((ControlledStep("k", 3), ControlledStep("l", 3)), (StepEdge(0, "k", "l", paired=True),))
    assert list(paired.channels(0)) == [ChannelId(0, i, i) for i in range(3)]


# latency-guarantees fact 3, nephele-qos fact 1: RR is the default; no source has a latency, no sink an RW one
def test_which_steps_have_a_latency() -> None:
    assert ControlledStep("a").latency == "read-ready"
    assert (
        ControlledStep("a").measurable
        and ControlledStep("a", latency="read-write").measurable
        and ControlledStep("a", sink=True).measurable
    )
    assert not ControlledStep("a", source=True).measurable
    assert not ControlledStep("a", sink=True, latency="read-write").measurable
    sink = Topology(
        (ControlledStep("a"), ControlledStep("out", sink=True, latency="read-write")), (StepEdge(0, "a", "out"),)
    )
    with pytest.raises(GraphError, match="sink"):
        check(sink, [PathConstraint("c", ((0, "out"),), 10.0)])


def test_paths_leave_the_source_out_and_follow_every_branch() -> None:
    assert paths_between(DIAMOND, "src", "out") == ((0, "a", 1, "b", 3, "out"), (0, "a", 2, "c", 4, "out"))
    assert paths_between(DIAMOND, "a", "b") == (("a", 1, "b"),)
    assert paths_between(DIAMOND, "b", "c") == ()


# latency-guarantees fact 6: sharing a stream, or different t, is rejected; sharing a task is accepted
def test_constraints_of_one_kind_share_steps_but_no_edge() -> None:
    upper, lower = PathConstraint("u", (("a", 1, "b", 3),), 10.0), PathConstraint("l", (("a", 2, "c", 4),), 20.0)
    check(DIAMOND, [upper, lower])
    with pytest.raises(GraphError, match="share the edge a → b"):
        check(DIAMOND, [upper, PathConstraint("x", ((0, "a", 1),), 10.0)])
    with pytest.raises(GraphError, match="same over="):
        check(DIAMOND, [upper, PathConstraint("x", (("a", 2, "c"),), 10.0, over_s=7.0)])
    check(DIAMOND, [upper, PathConstraint("p99", (("a", 1, "b", 3),), 100.0, over_s=10.0, quantile=0.99)])


# latency-guarantees fact 7: a sequence starting with a source task is rejected
@pytest.mark.parametrize(
    ("path", "what"),
    [
        (("src", 0, "a"), "is a source"),
        ((0, "b"), "not connected"),
        (("a", "b"), "not connected"),
        ((0, 1), "not connected"),
        (("nowhere",), "no step or edge"),
        ((9,), "no step or edge"),
        ((), "no path"),
    ],
)
def test_illegal_paths(path: tuple[str | int, ...], what: str) -> None:
    with pytest.raises(GraphError, match=what):
        check(DIAMOND, [PathConstraint("c", (path,), 10.0)])


def recent_of(latencies: dict[str | int, list[float]], ages: tuple[float, ...] = ()) -> Recent:
    """One interval in which each item of each element had the given latency."""
    reports = []
    for n, (element, values) in enumerate(latencies.items()):
        moments = moments_of(len(values), sum(values) / len(values))
        zero = moments_of(len(values), 0.0)
        subtasks = (of_subtask(SubtaskId(str(element), 0), len(values), moments, ages_ms=ages),)
        channel = (
            of_channel(ChannelId(int(element), 0, 0), len(values), 1, moments, None, zero, zero)
            if isinstance(element, int)
            else None
        )
        reports.append(of_worker(f"w{n}", 1.0, 0, () if channel else subtasks, (channel,) if channel else ()))
    return Recent(5.0).add(reports, 1.0)


# latency-guarantees fact 5: sequence latency equals the sum of its element latencies
def test_a_path_takes_as_long_as_its_elements_together() -> None:
    topology = line(ControlledStep("a"))
    constraint = PathConstraint("c", ((0, "a", 1),), 10.0)
    found = standing(constraint, topology, recent_of({0: [4.0], "a": [1.5], 1: [2.0]}), 1.0)
    assert found.observed_ms == 7.5
    two = PathConstraint("c", paths_between(DIAMOND, "src", "out"), 10.0)
    parts: dict[str | int, list[float]] = {
        0: [1.0],
        "a": [1.0],
        1: [1.0],
        "b": [9.0],
        3: [1.0],
        2: [1.0],
        "c": [2.0],
        4: [1.0],
        "out": [0.0],
    }
    assert standing(two, DIAMOND, recent_of(parts), 1.0).observed_ms == 13.0  # the slower branch


# latency-guarantees fact 5: and so do the whole trips of single records through the plant
def test_the_sum_of_elements_is_what_records_experience() -> None:
    topology = line(ControlledStep("a"), ControlledStep("b"))
    model = PlantModel({"src": steady(150)}, {"a": StepModel(2.0), "b": StepModel(3.0), "out": StepModel(0.1)})
    run = drive(job_of(topology, 60.0, chaining=False, scaling=False), Plant(topology, model, seed=5), 40)
    last = run.views[-1]
    age_ms = Recent(5.0).add([r for seen in run.seen for r in seen.reports], 40.0).age_ms("out", None, 35.0)
    assert last.standings[0].observed_ms == pytest.approx(age_ms, rel=0.03)


# latency-guarantees fact 8, nephele-qos fact 2: met iff the mean ≤ ℓ, even when single items exceed ℓ
@pytest.mark.parametrize(("last", "met"), [(37.0, True), (37.1, False)])
def test_a_constraint_bounds_the_mean(last: float, met: bool) -> None:
    constraint = PathConstraint("c", (("a",),), 10.0)
    assert standing(constraint, line(ControlledStep("a")), recent_of({"a": [1.0, 1.0, 1.0, last]}), 1.0).met is met


def test_what_is_not_measured_is_named_and_neither_met_nor_violated() -> None:
    found = standing(PathConstraint("c", ((0, "a", 1),), 10.0), line(ControlledStep("a")), recent_of({0: [4.0]}), 1.0)
    assert found.met is None and found.observed_ms is None and found.missing == (1, "a")


def test_chained_edges_cost_nothing() -> None:
    constraint = PathConstraint("c", (("a", 1, "b"),), 10.0)
    recent = recent_of({"a": [1.0], "b": [2.0]})
    topology = line(ControlledStep("a"), ControlledStep("b"), paired=True)
    assert standing(constraint, topology, recent, 1.0).met is None
    assert standing(constraint, topology, recent, 1.0, frozenset({1})).observed_ms == 3.0


def test_a_quantile_is_measured_on_records_and_controlled_by_the_mean() -> None:
    topology = line(ControlledStep("a"))
    recent = recent_of({0: [1.0], "a": [1.0], 1: [1.0], "out": [1.0]}, ages=tuple(float(i) for i in range(1, 101)))
    p95 = standing(
        PathConstraint("q", paths_between(topology, "src", "out"), 95.0, quantile=0.95), topology, recent, 1.0
    )
    assert p95.observed_ms == 95.0 and p95.met is True
    assert p95.mean_bound_ms == pytest.approx(0.9 * 50.5)
    p99 = standing(
        PathConstraint("q", paths_between(topology, "src", "out"), 95.0, quantile=0.99), topology, recent, 1.0
    )
    assert p99.met is False
    inside = standing(PathConstraint("q", (("a", 1, "out"),), 95.0, quantile=0.95), topology, recent, 1.0)
    assert inside.met is None and inside.missing == ("a",)


# latency-guarantees fact 16: what a bound leaves for batching and queues
def test_a_bound_is_split() -> None:
    split = Spending(50.0, 10.0, 0.8)
    assert (split.channels_ms, split.queueing_ms) == pytest.approx((40.0, 8.0))
    assert not Spending(10.0, 10.0, 0.8).enforceable and not Spending(10.0, 12.0, 0.8).enforceable
    known = summarise([of_worker("w", 1.0, 0, (of_subtask(SubtaskId("a", 0), 1, moments_of(1, 3.0)),))])
    assert budget((0, "a", 1), known, 10.0, 0.8) == Spending(10.0, 3.0, 0.8)
    assert budget((0, "a", 1, "b"), known, 10.0, 0.8) is None
