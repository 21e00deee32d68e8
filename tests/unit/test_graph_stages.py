"""Any DAG becomes one linear chain of stages; drawing it loses nothing."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from workflows import all_steps, out

import headrace as hr
from headrace.driver.planning import needed_columns
from headrace.graph.nodes import Graph, SourceNode, is_keyed
from headrace.graph.render import describe, render
from headrace.graph.stages import Layout, lay_out
from headrace.testing import scripted


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random workflows: every step reads one or two earlier ones."""
    job = hr.Job("random")
    streams = [
        job.source(f"s{i}", scripted([{"k": "a", "t": 1}]), event_time="t") for i in range(draw(st.integers(1, 2)))
    ]
    for i in range(draw(st.integers(1, 8))):
        before, other = draw(st.sampled_from(streams)), draw(st.sampled_from(streams))
        options: dict[str, Any] = {"chain": draw(st.booleans())}
        if draw(st.booleans()):
            options["parallelism"] = draw(st.integers(1, 4))
        kind = draw(st.sampled_from(["map", "reduce", "process", "join", "union"]))
        if kind == "map":
            made = before.map(dict, name=f"n{i}", **options)
        elif kind == "reduce":
            made = before.key_by("k").window(hr.tumbling("1 s")).reduce(name=f"n{i}", n=hr.count())
        elif kind == "process":
            made = before.key_by("k").process(print, name=f"n{i}", **options)
        elif kind == "join":
            made = before.key_by("k").window(hr.tumbling("1 s")).join(other.key_by("k"), name=f"n{i}", **options)
        else:
            made = before.union(other, name=f"n{i}", **options)
        streams.append(made)
    streams[-1].sink("out", out())
    return job.graph()


def paths(layout: Layout, start: str) -> set[str]:
    """The real steps that a step feeds, through passes."""
    passes = {p.name for p in layout.passes}
    found: set[str] = set()
    for edge in layout.edges:
        if edge.source == start:
            found |= paths(layout, edge.target) if edge.target in passes else {edge.target}
    return found


@given(graphs(), st.integers(1, 4), st.booleans())
def test_every_edge_leads_to_the_same_or_the_next_leg(graph: Graph, parallelism: int, dynamic: bool) -> None:
    layout = lay_out(graph, parallelism, dynamic=dynamic)
    for edge in layout.edges:
        here, there = (layout.stages[layout.stage_of[name]] for name in (edge.source, edge.target))
        if edge.border is None:
            assert here.first == there.first and here.index <= there.index
        else:
            assert there.first == here.last + 1 == edge.border == there.index or edge.target in layout.movable
    for node in graph.nodes:
        assert paths(layout, node.name) == {n.name for n, _ in graph.consumers(node.name)}
    assert [edge.id for edge in layout.edges] == list(range(len(layout.edges)))


@given(graphs(), st.data())
def test_a_step_is_one_stage_on_for_every_edge_before_it_that_is_not_chained(graph: Graph, data: st.DataObject) -> None:
    layout = lay_out(graph, 2, dynamic=True)
    assert layout.places(layout.chained) == layout.stage_of
    inside = [edge.id for edge in layout.edges if edge.border is None]
    places = layout.places(set(data.draw(st.lists(st.sampled_from(inside), max_size=len(inside)))))
    for name, at in places.items():
        stage = layout.stages[layout.stage_of[name]]
        assert stage.first <= at <= stage.last
        assert name in layout.movable or at == stage.index
    for edge in layout.edges:
        if edge.border is None:
            assert places[edge.source] <= places[edge.target]
        if edge.border is None and edge.target in layout.apart and edge.target in layout.movable:
            last = layout.stages[layout.stage_of[edge.target]].last
            assert places[edge.source] < places[edge.target] or places[edge.target] == last


@given(graphs(), st.integers(1, 4), st.booleans())
def test_keyed_steps_start_legs_and_their_inputs_are_routed_by_key(
    graph: Graph, parallelism: int, dynamic: bool
) -> None:
    layout = lay_out(graph, parallelism, dynamic=dynamic)
    steps = [name for stage in layout.stages for name in stage.steps]
    assert sorted(steps) == sorted({*graph.by_name, *(p.name for p in layout.passes)})
    for node in graph.nodes:
        into = [edge for edge in layout.edges if edge.target == node.name]
        assert sorted(edge.port for edge in into) == list(range(len(node.inputs)))
        if is_keyed(node):
            assert all(edge.keyed and edge.keys == node.keys and edge.border is not None for edge in into)  # type: ignore[union-attr]
        else:
            assert not any(edge.keyed for edge in into)
        if node.inputs and not node.options.chain:
            sources = [layout.stage_of[edge.source] for edge in into]
            assert all(at < layout.stage_of[node.name] for at in sources)
    for before, stage in zip(layout.stages, layout.stages[1:]):
        assert stage.shuffled or stage.subtasks == before.subtasks, "a hop without shuffle keeps its partitions"
    assert layout.slots == sum(stage.subtasks for stage in layout.stages)


@given(graphs(), st.integers(1, 3))
def test_drawing_names_every_step_and_arrow(graph: Graph, parallelism: int) -> None:
    layout = lay_out(graph, parallelism)
    lines = render(graph, layout).splitlines()
    assert lines[0] == "job random" and sum("┌─ stage" in line for line in lines) == len(layout.stages)
    for stage in layout.stages:
        for name in stage.steps:
            line = next(line for line in lines if line.startswith(f"│  {name}: "))
            targets = [edge.target for edge in layout.edges if edge.source == name]
            assert line.endswith(f"→ {', '.join(targets)}") if targets else "→" not in line


def test_drawing_says_what_steps_do() -> None:
    job, _ = all_steps(scripted([{"k": "a", "v": 1, "x": 0.5, "w": "w", "at": None, "t": 1}]), [[]], 0)
    graph = job.graph()
    text = render(graph, lay_out(graph, 2))
    for part in (
        "s: source scripted, 1 items, event time 't'",
        "inner-join: inner join by k over tumbling 0.25 s",
        "left-join: left join by k over sliding 0.3 s every 0.2 s",
        "remember: process by k, state n, words, latest",
        "totals: reduce by k over tumbling 0.2 s: n=count()",
        "s@1: pass through",
        "shuffle by",
        "stage 0 × 2 subtasks",
    ):
        assert part in text, text
    constrained = hr.Job("c")
    s = constrained.source("s", scripted([{"k": "a", "t": 1}]))
    counted = s.key_by("k").reduce(name="r", n=hr.count()).sink("out", out())
    constrained.constrain(s >> counted, p99="100 ms")
    graph = constrained.graph()
    assert render(graph, lay_out(graph, 1)).endswith("constraints\n   s → r: p99 ≤ 100 ms over 5 s")
    assert describe(graph.by_name["r"]) == "reduce by k over running: n=count()"


def test_all_stages_of_a_leg_have_the_subtasks_that_its_neediest_step_wants() -> None:
    job = hr.Job("hops")
    s = job.source("s", scripted([{"k": "a"}]), parallelism=3)
    s.map(dict, name="m", chain=False, parallelism=5).sink("out", out())
    layout = lay_out(job.graph(), 2)
    assert [stage.subtasks for stage in layout.stages] == [5, 5] and not layout.stages[1].shuffled


def test_sources_read_only_the_columns_that_steps_use() -> None:
    def needed(*, sink: bool = False, user: bool = False) -> set[str] | None:
        job = hr.Job("job")
        s = job.source("s", scripted([{"k": 1, "v": 2, "w": 3, "x": 4, "t": 5}]), event_time="t")
        reducers: dict[str, Any] = {"n": hr.count(), "top": hr.top_k("v", 2, by="w")}
        if user:
            reducers["u"] = hr.reducer(init=int, update=lambda n, r: n)
        s.key_by("k").window(hr.tumbling("1 s")).reduce(name="r", **reducers).sink("out", out())
        if sink:
            s.sink("all", out())
        graph = job.graph()
        node = graph.by_name["s"]
        assert isinstance(node, SourceNode)
        return needed_columns(graph, node)

    assert needed() == {"k", "v", "w", "t"}
    assert needed(sink=True) is None and needed(user=True) is None
