"""Everything that can be wrong with a job is found before it starts, with the step and the fix named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.config import Settings
from headrace.errors import ConfigError, GraphError, HeadraceError, SchemaError, UnitError
from headrace.graph.nodes import Graph, UnionNode
from headrace.graph.validate import validate
from headrace.spark.planning import plan_job
from headrace.testing import scripted

ROWS = [{"k": "a", "v": 1, "ts": 1000}, {"k": "b", "v": 2, "ts": 2000}]


def _source(job: hr.Job, name: str = "rows", **options: Any) -> hr.Stream:
    return job.source(name, scripted(ROWS), **options)


def _plan(job: hr.Job, **settings: Any) -> Any:
    return plan_job(job, Path("/nonexistent"), Settings.of(**settings), collect=True)


def duplicate_name(job: hr.Job) -> None:
    _source(job).map(lambda r: r, name="same").map(lambda r: r, name="same")


def no_source(job: hr.Job) -> None:
    job.graph(need_sink=False)


def no_sink(job: hr.Job) -> None:
    _source(job)
    job.graph()


def unknown_key(job: hr.Job) -> None:
    _source(job).key_by("colour").reduce(name="n", n=hr.count())
    _plan(job)


def unknown_reducer_column(job: hr.Job) -> None:
    _source(job).key_by("k").reduce(name="n", total=hr.sum("price"))
    _plan(job)


def sum_of_text(job: hr.Job) -> None:
    _source(job).key_by("k").reduce(name="n", total=hr.sum("k"))
    _plan(job)


def unknown_event_time(job: hr.Job) -> None:
    _source(job, event_time="when")
    _plan(job)


def missing_event_time(job: hr.Job) -> None:
    _source(job).key_by("k").window(hr.tumbling("1 s")).reduce(name="n", n=hr.count())
    _plan(job)


def unconnected_constraint(job: hr.Job) -> None:
    one, two = _source(job, "one"), _source(job, "two").map(lambda r: r, name="other")
    job.constrain(one >> two, mean="30 ms")
    _plan(job)


def two_bounds(job: hr.Job) -> None:
    rows = _source(job)
    job.constrain(rows >> rows.map(lambda r: r, name="m"), mean="30 ms", p99="1 s")


def no_reducer(job: hr.Job) -> None:
    _source(job).key_by("k").reduce(name="n")


def taken_column(job: hr.Job) -> None:
    _source(job).key_by("k").reduce(name="n", k=hr.count())


def unknown_engine(job: hr.Job) -> None:
    _source(job).key_by("k").reduce(name="n", n=hr.count(), engine="turbo")


def unknown_option(job: hr.Job) -> None:
    _source(job).map(lambda r: r, name="m", colour="red")


def bad_parallelism(job: hr.Job) -> None:
    _source(job).map(lambda r: r, name="m", parallelism=(4, 2, 8))


def window_on_process(job: hr.Job) -> None:
    _source(job, event_time="ts").key_by("k").window(hr.tumbling("1 s")).process(lambda r, s, o: None, name="p")


def join_without_window(job: hr.Job) -> None:
    rows = _source(job)
    rows.key_by("k").join(rows.key_by("k"), name="j")


def join_of_different_keys(job: hr.Job) -> None:
    rows = _source(job)
    rows.key_by("k").window(hr.tumbling("1 s")).join(rows.key_by("v"), name="j")


def session_without_combine(job: hr.Job) -> None:
    longest = hr.reducer(init=str, update=lambda s, r: max(s, r["k"]))
    _source(job, event_time="ts").key_by("k").window(hr.session("1 s")).reduce(name="n", longest=longest)
    _plan(job)


def different_union(job: hr.Job) -> None:
    other = job.source("other", scripted([{"x": 1}]))
    _source(job).union(other, name="u")
    _plan(job)


def function_fails_on_samples(job: hr.Job) -> None:
    _source(job).map(lambda r: {"x": r["missing"]}, name="m")
    _plan(job)


def not_a_record(job: hr.Job) -> None:
    _source(job).map(lambda r: 7, name="m")
    _plan(job)


def nothing_to_infer_from(job: hr.Job) -> None:
    _source(job).flat_map(lambda r: [], name="m")
    _plan(job)


def nested_key(job: hr.Job) -> None:
    job.source("lists", scripted([{"k": [1]}])).key_by("k").reduce(name="n", n=hr.count())
    _plan(job)


def slide_longer_than_size(job: hr.Job) -> None:
    hr.sliding("1 s", every="2 s")


def endless_batch(job: hr.Job) -> None:
    job.source("numbers", hr.generate(lambda n: {"n": n}))
    _plan(job, mode="batch")


CASES: list[tuple[Callable[[hr.Job], None], type[HeadraceError], list[str]]] = [
    (duplicate_name, GraphError, ["'same'", "choose another"]),
    (no_source, GraphError, ["no source", "job.source"]),
    (no_sink, GraphError, ["no sink", ".sink("]),
    (unknown_key, SchemaError, ["'n'", "'colour'", "k, v, ts"]),
    (unknown_reducer_column, SchemaError, ["'n'", "sum(price)", "k, v, ts"]),
    (sum_of_text, SchemaError, ["sum(k)", "numeric"]),
    (unknown_event_time, SchemaError, ["'rows'", "'when'", "k, v, ts"]),
    (missing_event_time, GraphError, ["'n'", "'rows'", "event_time="]),
    (unconnected_constraint, GraphError, ["one → other", "no path"]),
    (two_bounds, GraphError, ["exactly one of"]),
    (no_reducer, GraphError, ["'n'", "hr.count()"]),
    (taken_column, GraphError, ["'n'", "'k'", "choose another"]),
    (unknown_engine, GraphError, ["'n'", "'turbo'", "dinc"]),
    (unknown_option, GraphError, ["'m'", "'colour'", "parallelism"]),
    (bad_parallelism, GraphError, ["'m'", "min ≤ start ≤ max"]),
    (window_on_process, GraphError, ["timers"]),
    (join_without_window, GraphError, ["'j'", "window"]),
    (join_of_different_keys, GraphError, ["'j'", "same key columns"]),
    (session_without_combine, GraphError, ["'n'", "combine="]),
    (different_union, SchemaError, ["'u'", "different columns"]),
    (function_fails_on_samples, SchemaError, ["'m'", "KeyError", "returns="]),
    (not_a_record, SchemaError, ["'m'", "mappings", "int"]),
    (nothing_to_infer_from, SchemaError, ["'m'", "returns="]),
    (nested_key, SchemaError, ["'n'", "'k'", "list"]),
    (slide_longer_than_size, GraphError, ["longer than its size"]),
    (endless_batch, GraphError, ["'numbers'", "never ends"]),
]


@pytest.mark.parametrize(("case", "kind", "words"), CASES, ids=[case.__name__ for case, _, _ in CASES])
def test_the_error_names_the_step_and_the_fix(case: Callable[[hr.Job], None], kind: type, words: list[str]) -> None:
    with pytest.raises(kind) as caught:
        case(hr.Job("wrong"))
    for word in words:
        assert word in str(caught.value)


def test_a_cycle_is_named() -> None:
    nodes = (UnionNode("a", ("b",)), UnionNode("b", ("a",)))
    with pytest.raises(GraphError, match="a → b → a"):
        validate(Graph("loop", nodes), need_sink=False)


@pytest.mark.parametrize("text", ["5 parsecs", "s 5", "", "-1 s", "nan s"])
def test_bad_durations_show_how_to_write_one(text: str) -> None:
    with pytest.raises(UnitError, match="duration"):
        hr.tumbling(text)


def test_unknown_settings_list_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'eopch'.*epoch"):
        Settings.of(eopch="1 s")
    with pytest.raises(ConfigError, match="mode 'turbo'"):
        Settings.of(mode="turbo")


def test_declared_schemas_are_checked() -> None:
    with pytest.raises(SchemaError, match="'n': 'whole' is not an Arrow type"):
        _source(hr.Job("j")).map(lambda r: r, name="m", returns={"n": "whole"})
    assert _plan_of_declared().schemas["m"] == pa.schema([("x", pa.float64())])


def _plan_of_declared() -> Any:
    job = hr.Job("declared")
    _source(job).map(lambda r: {"x": r["v"]}, name="m", returns={"x": "float"})
    return _plan(job)
