"""What counts as equal, what is merged, which panes are shared; and several jobs as one graph."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import pytest
from workflows import out

import headrace as hr
from headrace.api.job import graph_of
from headrace.errors import GraphError
from headrace.graph.equality import same
from headrace.graph.nodes import Graph, PaneNode, ReduceNode
from headrace.graph.render import render
from headrace.graph.sharing import share
from headrace.graph.stages import lay_out
from headrace.testing import scripted

ROWS = [{"k": "a", "v": 1, "t": 1}]
SOURCE = scripted(ROWS)


def adds(n: int, by: Any = 1) -> Any:
    def add(record: dict[str, Any], scale: int = 2) -> dict[str, Any]:
        return {**record, "v": record["v"] * scale + n * by}

    return add


def double(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "v": 2 * record["v"]}


@dataclass(frozen=True)
class Frozen:
    n: int

    def method(self, record: dict[str, Any]) -> dict[str, Any]:
        return record


def counts_down() -> Any:
    def down(record: dict[str, Any]) -> dict[str, Any]:
        return record if record["v"] <= 0 else down({**record, "v": record["v"] - 1})

    return down


class Loose:
    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        return record


def test_what_is_the_same() -> None:
    assert same(adds(1), adds(1)) and same(Frozen(1).method, Frozen(1).method)
    assert same(functools.partial(double, x=(1, 2.0)), functools.partial(double, x=(1, 2.0)))
    assert same(hr.replay("x.jsonl"), hr.replay("x.jsonl")) and same(hr.mean("v"), hr.mean("v"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (adds(1), adds(2)),
        (adds(1, [1]), adds(1, [1])),
        (lambda r: r, lambda r: r),
        (counts_down(), counts_down()),
        ((1, 2), (1, 2, 3)),
        (Loose(), Loose()),
        (Frozen(1).method, Frozen(2).method),
        (functools.partial(double, x=1), functools.partial(double, x=1, y=2)),
        (functools.partial(double, x=1), functools.partial(double, x=2)),
        (0.0, -0.0),
        (1, True),
        ({}, {}),
        (hr.replay("x.jsonl"), hr.replay("y.jsonl")),
    ],
)
def test_in_doubt_it_is_not_the_same(one: Any, other: Any) -> None:
    assert not same(one, other)


def test_a_function_with_other_defaults_or_attributes_is_another() -> None:
    one, other = adds(1), adds(1)
    other.__defaults__ = (3,)
    assert not same(one, other)
    one, other = adds(1), adds(1)
    other.calls = 0
    assert not same(one, other)


def branch(job: hr.Job, name: str, fn: Any, source: Any = SOURCE, **options: Any) -> hr.Stream:
    return job.source(f"{name}-s", source, event_time="t").map(fn, name=f"{name}-map", **options)


def names(graph: Graph) -> list[str]:
    return [node.name for node in graph.nodes]


def test_equal_steps_run_once_and_constraints_follow() -> None:
    job = hr.Job("job")
    a, b = branch(job, "a", double), branch(job, "b", double, scripted(ROWS))
    keyed = [s.key_by("k").window(hr.tumbling("1 s")) for s in (a, b)]
    first = keyed[0].reduce(name="a-n", n=hr.count()).sink("a-out", out())
    second = keyed[1].reduce(name="b-n", n=hr.count()).sink("b-out", out())
    job.constrain(a >> first, mean="10 ms")
    job.constrain(b >> second, p99="50 ms")
    graph = share(job.graph())
    assert names(graph) == ["a-s", "a-map", "a-n", "a-out", "b-out"]
    assert graph.shared == (("b-s", "a-s"), ("b-map", "a-map"), ("b-n", "a-n"))
    assert graph.by_name["b-out"].inputs == ("a-n",)
    assert [(c.start, c.end) for c in graph.constraints] == [("a-map", "a-n")] * 2
    assert "b-map: runs as a-map, which is the same" in render(graph, lay_out(graph, 2))


@pytest.mark.parametrize(
    ("fns", "options", "merged"),
    [
        ((double, double), ({}, {}), True),
        ((adds(1), adds(1)), ({}, {}), True),
        ((adds(1), adds(2)), ({}, {}), False),
        ((double, double), ({"deterministic": False}, {"deterministic": False}), False),
        ((double, double), ({"on_error": "skip"}, {}), False),
        ((double, double), ({"parallelism": 2}, {"parallelism": 3}), False),
        ((double, double), ({"returns": {"v": "int64"}}, {"returns": {"v": "int64"}}), True),
        ((double, double), ({"returns": {"v": "int64"}}, {"returns": {"v": "string"}}), False),
    ],
)
def test_which_maps_are_merged(fns: Any, options: Any, merged: bool) -> None:
    job = hr.Job("job")
    for name, fn, opts in zip("ab", fns, options):
        branch(job, name, fn, **opts).sink(f"{name}-out", out())
    assert ("b-map" not in names(share(job.graph()))) is merged


def test_a_live_source_is_shared_only_if_it_is_one() -> None:
    job = hr.Job("job")
    one = hr.socket("localhost", 9, schema={"line": "string"})
    for name, source in (("a", one), ("b", one), ("c", hr.socket("localhost", 9, schema={"line": "string"}))):
        job.source(name, source).sink(f"{name}-out", out())
    assert same(one, job.graph().by_name["c"].source)  # type: ignore[union-attr]
    assert names(share(job.graph())) == ["a", "a-out", "b-out", "c", "c-out"]


def windows_job(*windows: Any, **options: Any) -> Graph:
    job = hr.Job("job")
    s = job.source("s", SOURCE, event_time="t")
    for i, window in enumerate(windows):
        s.key_by("k").window(window).reduce(name=f"w{i}", n=hr.count(), m=hr.mean("v"), **options).sink(f"o{i}", out())
    return share(job.graph())


# cmr fact 20: windows 5 and 10 min, slide 1: pane 1 min
def test_the_common_pane_is_the_highest_common_factor() -> None:
    graph = windows_job(hr.sliding("5 min", every="1 min"), hr.sliding("10 min", every="1 min"))
    panes = graph.by_name["w0.panes"]
    assert isinstance(panes, PaneNode) and panes.pane_us == 60_000_000
    assert [reducer.describe() for _, reducer in panes.reducers] == ["count()", "mean(v)"]
    assert names(graph) == ["s", "w0.panes", "w0", "o0", "w1", "o1"]
    layout = lay_out(graph, 2)
    assert [len(layout.border(1)), layout.stage_of["w0.panes"], layout.stage_of["w1"]] == [1, 1, 1], "one shuffled edge"
    assert "w0.panes: panes of 60 s by k: count(), mean(v)  → w0, w1" in render(graph, layout)


@pytest.mark.parametrize(
    ("windows", "pane_s"),
    [
        ((hr.tumbling("10 s"), hr.tumbling("15 s")), 5),
        ((hr.sliding("10 s", every="4 s"), hr.tumbling("6 s"), hr.tumbling("1 min")), 2),
        ((hr.tumbling("10 s"), hr.tumbling("9001 ms")), None),
        ((hr.tumbling("10 s"), hr.versioned(hr.tumbling("10 s"))), None),
        ((hr.tumbling("10 s"), hr.session_window("10 s")), None),
    ],
)
def test_which_windows_share_panes(windows: Any, pane_s: int | None) -> None:
    panes = [node for node in windows_job(*windows).nodes if isinstance(node, PaneNode)]
    assert [node.pane_us for node in panes] == ([pane_s * 1_000_000] if pane_s is not None else [])


@pytest.mark.parametrize(
    "options",
    [
        {"state": hr.keep(memory="1 MB")},
        {"state": hr.keep(combine=False)},
        {"emit": hr.at_least(n=3)},
        {"overload": hr.shed(after="1 s")},
    ],
    ids=str,
)
def test_steps_with_states_of_their_own_kind_share_nothing(options: Any) -> None:
    graph = windows_job(hr.tumbling("10 s"), hr.tumbling("20 s"), **options)
    assert not any(isinstance(node, PaneNode) for node in graph.nodes)


def test_different_reducers_are_united_and_equal_ones_kept_once() -> None:
    job = hr.Job("job")
    keyed = job.source("s", SOURCE, event_time="t").key_by("k")
    keyed.window(hr.tumbling("10 s")).reduce(name="a", n=hr.count(), m=hr.mean("v")).sink("a-out", out())
    keyed.window(hr.tumbling("20 s")).reduce(name="b", top=hr.max("v"), avg=hr.mean("v")).sink("b-out", out())
    graph = share(job.graph())
    panes, b = graph.by_name["a.panes"], graph.by_name["b"]
    assert isinstance(panes, PaneNode) and isinstance(b, ReduceNode)
    assert [reducer.describe() for _, reducer in panes.reducers] == ["count()", "mean(v)", "max(v)"]
    assert b.pane_columns == ("pane.2", "pane.1")


def jobs(**options: Any) -> list[hr.Job]:
    made = []
    for name in ("one", "two"):
        job = hr.Job(name, **{key: value[name] for key, value in options.items()})
        mapped = branch(job, "x", double)
        counted = mapped.key_by("k").window(hr.tumbling("1 s")).reduce(name="n", n=hr.count())
        counted.sink("out", out())
        job.constrain(mapped >> counted, mean="10 ms")
        made.append(job)
    return made


def test_jobs_that_start_together_are_one_graph() -> None:
    graph = share(graph_of(jobs()))
    assert graph.job == "one+two"
    assert names(graph) == ["one.x-s", "one.x-map", "one.n", "one.out", "two.out"]
    assert [(c.start, c.end) for c in graph.constraints] == [("one.x-map", "one.n")] * 2
    assert graph_of(jobs()[:1]) == jobs()[0].graph(), "one job keeps its names"


def test_each_job_keeps_what_it_does_with_errors() -> None:
    graph = graph_of(jobs(on_error={"one": "skip", "two": "fail"}))
    assert [node.options.on_error for node in graph.nodes] == ["skip"] * 4 + ["fail"] * 4
    assert not share(graph).shared, "a record that one job skips stops the other"


def test_each_job_keeps_its_dead_letters() -> None:
    apart = graph_of(jobs(dead_letter={"one": hr.jsonl("dead-1"), "two": hr.jsonl("dead-2")}))
    assert set(apart.letter_sinks) == {"one.dead_letters", "two.dead_letters"} and not share(apart).shared
    assert apart.letters_of("two.n") == "two.dead_letters"
    common = graph_of(jobs(dead_letter={"one": hr.jsonl("dead"), "two": hr.jsonl("dead")}))
    assert set(common.letter_sinks) == {"one.dead_letters"} and len(share(common).shared) == 3


@pytest.mark.parametrize("pair", [("a", "a"), ("a.b", "a"), ("a", "a.b")])
def test_jobs_whose_steps_could_have_one_name_are_refused(pair: tuple[str, str]) -> None:
    made = []
    for name in (*pair, "a-c"):
        job = hr.Job(name)
        branch(job, "x", double).sink("out", out())
        made.append(job)
    with pytest.raises(GraphError, match="cannot run together"):
        graph_of(made)
    with pytest.raises(GraphError, match="give at least one"):
        graph_of([])
