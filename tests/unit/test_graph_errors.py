"""Everything that is wrong with a job is found before it starts; the message names the step and the fix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from workflows import out

import headrace as hr
from headrace.config import Settings
from headrace.driver.planning import plan_job
from headrace.errors import GraphError, HeadraceError, SchemaError, UnitError
from headrace.graph.nodes import Constraint, Graph, SinkNode, SourceNode, UnionNode
from headrace.graph.validate import validate
from headrace.testing import scripted

RECORDS = [{"k": "a", "v": 1, "w": "x", "l": [1], "t": 10}, {"k": "b", "v": None, "w": "y", "l": [], "t": 20}]


def job_with_source(**options: Any) -> tuple[hr.Job, hr.Stream]:
    job = hr.Job("job", **{k: v for k, v in options.items() if k in ("on_error", "dead_letter")})
    rest = {k: v for k, v in options.items() if k not in ("on_error", "dead_letter")}
    return job, job.source("s", scripted(RECORDS), **{"event_time": "t", **rest})


def build(make: Callable[[hr.Job, hr.Stream], Any], tmp_path: Path, **options: Any) -> None:
    job, source = job_with_source(**options)
    made = make(job, source)
    if isinstance(made, hr.Stream):
        made.sink("out", out())
    plan_job(job, tmp_path, Settings.of())


def boom(record: dict[str, Any]) -> dict[str, Any]:
    raise ValueError(f"no {record['k']}")


def bad_union(job: hr.Job, s: hr.Stream) -> hr.Stream:
    return s.union(job.source("other", scripted([{"k": "a", "t": 1}])), name="u")


def typed_union(job: hr.Job, s: hr.Stream) -> hr.Stream:
    return s.union(job.source("other", scripted([{"k": "a", "v": "text", "w": "", "l": [1], "t": 1}])), name="u")


def join_types(job: hr.Job, s: hr.Stream) -> hr.Stream:
    other = job.source("other", scripted([{"k": 1, "t": 1}]), event_time="t")
    return s.key_by("k").window(hr.tumbling("1 s")).join(other.key_by("k"), name="j")


def join_clash(job: hr.Job, s: hr.Stream) -> hr.Stream:
    left = s.map(lambda r: {"k": r["k"], "v": 1, "v_right": 2}, name="left")
    return left.key_by("k").window(hr.tumbling("1 s")).join(s.key_by("k"), name="j")


def join_missing(job: hr.Job, s: hr.Stream) -> hr.Stream:
    return s.key_by("nope").window(hr.tumbling("1 s")).join(s.key_by("nope"), name="j")


def add(state: int, record: dict[str, Any]) -> int:
    return state + 1


SECOND = hr.tumbling("1 s")
CASES: dict[str, tuple[Callable[[hr.Job, hr.Stream], Any], type[HeadraceError], list[str]]] = {
    "duplicate name": (
        lambda j, s: s.map(dict, name="m").map(dict, name="m"), GraphError, ["'job'", "'m'", "choose another"]
    ),
    "bad step name": (lambda j, s: s.map(dict, name="a b"), GraphError, ["step name 'a b'", "use letters"]),
    "long step name": (lambda j, s: s.map(dict, name="x" * 101), GraphError, ["at most 100"]),
    "no function": (lambda j, s: s.map("upper"), GraphError, ["map after 's'", "needs a function, not 'upper'"]),
    "no columns": (lambda j, s: s.key_by(), GraphError, ["key_by after 's'", "for example key_by('user')"]),
    "columns as list": (lambda j, s: s.key_by(["k"]), GraphError, ["key_by after 's' needs column names"]),
    "unknown option": (lambda j, s: s.map(dict, name="m", paralelism=2), GraphError, ["'m'", "'paralelism'", "known:"]),
    "bad latency": (lambda j, s: s.map(dict, name="m", latency="low"), GraphError, ["'m'", "'read-ready'"]),
    "bad on_error": (lambda j, s: s.map(dict, name="m", on_error="ignore"), GraphError, ["'m'", "'skip'"]),
    "zero parallelism": (lambda j, s: s.map(dict, name="m", parallelism=0), GraphError, ["'m'", "1 ≤ min"]),
    "bad parallelism order": (lambda j, s: s.map(dict, name="m", parallelism=(3, 2, 1)), GraphError, ["'m'", "≤ max"]),
    "short parallelism": (lambda j, s: s.map(dict, name="m", parallelism=(1, 2)), GraphError, ["'m'", "(min, start, max)"]),
    "text parallelism": (lambda j, s: s.map(dict, name="m", parallelism="4"), GraphError, ["'m'", "(min, start, max)"]),
    "float parallelism": (lambda j, s: s.map(dict, name="m", parallelism=2.5), GraphError, ["'m'", "(min, start, max)"]),
    "bad returns": (lambda j, s: s.map(dict, name="m", returns={"a": "integer"}), SchemaError, ["'m'", "'a'", "'int64'"]),
    "returns a list": (lambda j, s: s.map(dict, name="m", returns=["a"]), SchemaError, ["'m'", "mapping of column names"]),
    "no reducer": (lambda j, s: s.key_by("k").reduce(name="r"), GraphError, ["'r'", "n=hr.count()"]),
    "not a reducer": (lambda j, s: s.key_by("k").reduce(name="r", n=len), GraphError, ["'r'", "such as hr.count()"]),
    "reducer takes key's name": (
        lambda j, s: s.key_by("k").reduce(name="r", k=hr.count()), GraphError, ["'r'", "'k' is taken"]
    ),
    "reducer takes window's name": (
        lambda j, s: s.key_by("k").window(SECOND).reduce(name="r", window_end=hr.count()), GraphError,
        ["'r'", "'window_end' is taken", "k, window_start, window_end"],
    ),
    "unknown engine": (lambda j, s: hr.keep(engine="fast"), GraphError, ["hr.keep", "'fast'", "auto"]),
    "bad memory": (lambda j, s: hr.keep(memory="big"), UnitError, ["memory 'big'"]),
    "bad coverage": (lambda j, s: hr.keep(memory="1 MB", coverage=1.5), GraphError, ["share above 0", "1.5"]),
    "bad max_records": (lambda j, s: hr.keep(max_records=0), GraphError, ["max_records", "0"]),
    "no threshold": (lambda j, s: hr.at_least(), GraphError, ["one result column", "n=50"]),
    "threshold that is no number": (lambda j, s: hr.at_least(n="50"), GraphError, ["n='50' is not a number"]),
    "option that moved": (
        lambda j, s: s.key_by("k").reduce(name="r", memory="1 MB", n=hr.count()), GraphError,
        ["'r'", "memory= is not beside the result columns but in state=hr.keep(memory=…)"],
    ),
    "misspelt option": (
        lambda j, s: s.key_by("k").reduce(name="r", paralelism=3, n=hr.count()), GraphError,
        ["'r'", "paralelism=3 is not a reducer", "did you mean parallelism=?"],
    ),
    "misspelt option that moved": (
        lambda j, s: s.key_by("k").reduce(name="r", memry="1 MB", n=hr.count()), GraphError,
        ["did you mean state=hr.keep(memory=…)?"],
    ),
    "column named like an option": (
        lambda j, s: s.key_by("k").reduce(name="r", state=hr.last("v")), GraphError,
        ["'r'", "state= is an option of reduce", "reduce({'state': …}, …)"],
    ),
    "column called name": (
        lambda j, s: s.key_by("k").reduce(name=hr.last("v")), GraphError,
        ["reduce 's.reduce'", "name= is an option of reduce", "reduce({'name': …}, …)"],
    ),
    "column without a name": (
        lambda j, s: s.key_by("k").reduce(hr.count(), name="r"), GraphError, ["'r'", "a name, such as n=hr.count()"]
    ),
    "column given twice": (
        lambda j, s: s.key_by("k").reduce({"n": hr.count()}, name="r", n=hr.count()), GraphError, ["'r'", "'n' is given twice"]
    ),
    "state for another step": (
        lambda j, s: s.key_by("k").reduce(name="r", state={"seen": hr.value()}, n=hr.count()), GraphError,
        ["'r'", "state={'seen': hr.value()}", "hr.keep(memory='64 MB')"],
    ),
    "state of a reduce": (
        lambda j, s: s.key_by("k").process(print, state=hr.keep(), name="p"), GraphError, ["'p'", "{'seen': hr.value()}"]
    ),
    "no window": (lambda j, s: s.key_by("k").window("10 s"), GraphError, ["after 's'", "hr.tumbling('10 s')"]),
    "window on process": (
        lambda j, s: s.key_by("k").window(SECOND).process(print), GraphError, ["process after 's'", "use timers"]
    ),
    "process without function": (lambda j, s: s.key_by("k").process(3, name="p"), GraphError, ["'p'", "fn(record"]),
    "on_timer without function": (
        lambda j, s: s.key_by("k").process(print, on_timer=3, name="p"), GraphError, ["'p'", "on_timer(timer"]
    ),
    "state not called": (
        lambda j, s: s.key_by("k").process(print, state={"seen": hr.value}, name="p"), GraphError, ["'p'", "hr.value()"]
    ),
    "join without window": (
        lambda j, s: s.key_by("k").join(s.key_by("k"), name="j"), GraphError,
        ["'j'", "which records meet", "within='1 min'", ".window(hr.tumbling('10 s')).join(right)"],
    ),
    "join by window and interval": (
        lambda j, s: s.key_by("k").window(SECOND).join(s.key_by("k"), within="1 s", name="j"), GraphError,
        ["'j'", "both tumbling 1 s and within=", "leave out one"],
    ),
    "join within and after": (
        lambda j, s: s.key_by("k").join(s.key_by("k"), within="1 s", after="2 s", name="j"), GraphError,
        ["'j'", "within= is before= and after= in one"],
    ),
    "join within nonsense": (
        lambda j, s: s.key_by("k").join(s.key_by("k"), within="soon", name="j"), UnitError, ["within 'soon'", "'5 s'"]
    ),
    "memory of a join over windows": (
        lambda j, s: s.key_by("k").window(SECOND).join(s.key_by("k"), state=hr.keep(memory="64 MB"), name="j"), GraphError,
        ["'j'", "memory= is for joins by interval", "within="],
    ),
    "a join that combines": (
        lambda j, s: s.key_by("k").join(s.key_by("k"), within="1 s", state=hr.keep(combine=True), name="j"), GraphError,
        ["'j'", "memory= only"],
    ),
    "a join with hardly any memory": (
        lambda j, s: s.key_by("k").join(s.key_by("k"), within="1 s", state=hr.keep(memory="10 KB"), name="j"), GraphError,
        ["'j'", "1000000 bytes at least"],
    ),
    "state of a join not kept": (
        lambda j, s: s.key_by("k").join(s.key_by("k"), within="1 s", state="64 MB", name="j"), GraphError,
        ["'j'", "state='64 MB'", "hr.keep(memory="],
    ),
    "an interval without event time": (
        lambda j, s: s.key_by("k").join(j.source("bare", scripted([{"k": "a"}])).key_by("k"), within="1 s", name="j"),
        GraphError, ["'j' joins by event time", "'bare' has no event time", "event_time="],
    ),
    "join by other keys": (
        lambda j, s: s.key_by("k").window(SECOND).join(s.key_by("w"), name="j"), GraphError, ["'j'", "same names in the same order", "rename"]
    ),
    "unknown join": (
        lambda j, s: s.key_by("k").window(SECOND).join(s.key_by("k"), how="cross", name="j"), GraphError, ["'j'", "outer"]
    ),
    "join over session": (
        lambda j, s: s.key_by("k").window(hr.session_window("1 s")).join(s.key_by("k"), name="j"), GraphError,
        ["'j'", "tumbling or sliding", "session"],
    ),
    "session without combine": (
        lambda j, s: s.key_by("k").window(hr.session_window("1 s")).reduce(name="r", n=hr.reducer(init=int, update=add)),
        GraphError, ["'r'", "combine="],
    ),
    "early in a session": (
        lambda j, s: s.key_by("k").window(hr.count_window(3)).reduce(
            name="r", n=hr.reducer(init=int, update=add, combine=max, early=bool)
        ), GraphError, ["'r'", "early="],
    ),
    "unknown key": (
        lambda j, s: s.key_by("kk").window(SECOND).reduce(name="r", n=hr.count()), SchemaError, ["'r'", "'kk'", "k, v, w"]
    ),
    "unknown key in process": (
        lambda j, s: s.key_by("kk").process(print, name="p"), SchemaError, ["'p'", "'kk'", "k, v, w"]
    ),
    "unknown key in join": (join_missing, SchemaError, ["'j'", "'nope'", "k, v, w"]),
    "key is a list": (
        lambda j, s: s.key_by("l").reduce(name="r", n=hr.count()), SchemaError, ["'r'", "'l'", "key by numbers, text"]
    ),
    "unknown column": (
        lambda j, s: s.key_by("k").reduce(name="r", n=hr.sum("price")), SchemaError, ["'r'", "n=sum(price)", "'price'", "k, v"]
    ),
    "sum of text": (
        lambda j, s: s.key_by("k").reduce(name="r", n=hr.sum("w")), SchemaError, ["'r'", "numeric column", "'w' is string"]
    ),
    "min of list": (
        lambda j, s: s.key_by("k").reduce(name="r", n=hr.min("l")), SchemaError, ["'r'", "can be ranked"]
    ),
    "function fails on samples": (
        lambda j, s: s.map(boom, name="m"), SchemaError, ["'m'", "ValueError: no a", "returns="]
    ),
    "batch function fails": (
        lambda j, s: s.map_batch(lambda b: 1 // 0, name="m"), SchemaError, ["'m'", "ZeroDivisionError", "returns="]
    ),
    "batch function returns rows": (
        lambda j, s: s.map_batch(lambda b: b.to_pylist(), name="m"), SchemaError, ["'m'", "RecordBatch, not list"]
    ),
    "map returns a number": (lambda j, s: s.map(lambda r: 7, name="m"), SchemaError, ["'m'", "(mappings), not int"]),
    "mixed types": (
        lambda j, s: s.map(lambda r: {"a": r["v"] or "none"}, name="m"), SchemaError, ["'m'", "'a' mixes types"]
    ),
    "nothing to infer from": (
        lambda j, s: s.flat_map(lambda r: [], name="m"), SchemaError, ["'m'", "no sample record", "returns="]
    ),
    "process fails on samples": (
        lambda j, s: s.key_by("k").process(lambda r, state, out: boom(r), name="p"), SchemaError, ["'p'", "no a", "returns="]
    ),
    "process uses unknown state": (
        lambda j, s: s.key_by("k").process(lambda r, state, out: state["x"].get(), name="p"), SchemaError,
        ["'p'", "no state 'x'", "state={'x': hr.value()}"],
    ),
    "reducer fails on samples": (
        lambda j, s: s.key_by("k").reduce(name="r", n=hr.reducer(init=int, update=lambda n, r: boom(r))), SchemaError,
        ["'r'", "no a", "returns="],
    ),
    "union of other columns": (bad_union, SchemaError, ["'u'", "different columns", "k, t", "map"]),
    "union of other types": (typed_union, SchemaError, ["'u'", "different types", "v", "map"]),
    "join of other key types": (join_types, SchemaError, ["'j'", "'k' is string on the left and int64", "map"]),
    "join with clashing columns": (join_clash, SchemaError, ["'j'", "two columns of one name", "v_right", "rename"]),
    "map_reduce without input": (
        lambda j, s: j.map_reduce("mr", inputs=[], map=print, reduce=print), GraphError, ["'mr'", "at least one input"]
    ),
    "map_reduce without function": (
        lambda j, s: j.map_reduce("mr", inputs=[s], map=print, reduce=None), GraphError, ["'mr'", "reduce=None"]
    ),
    "map_reduce with other columns": (
        lambda j, s: j.map_reduce("mr", inputs=[s], map=print, reduce=print, pairs={"k": "int"}), GraphError,
        ["'mr'", "pairs=", "'key' and 'value'"],
    ),
    "constraint without bound": (lambda j, s: j.constrain(s >> s), GraphError, ["s >> s", "exactly one of mean="]),
    "constraint with two bounds": (
        lambda j, s: j.constrain(s >> s, mean="1 s", p99="2 s"), GraphError, ["s >> s", "exactly one"]
    ),
    "constraint of nothing": (lambda j, s: j.constrain(s >> s, mean=0), GraphError, ["s >> s", "more than zero"]),
    "constraint over nothing": (lambda j, s: j.constrain(s >> s, p95=1, over=0), GraphError, ["s >> s", "more than zero"]),
    "bad sink": (lambda j, s: s.sink("o", "out/"), GraphError, ["'o'", "hr.jsonl('out/')"]),
    "window after running result": (
        lambda j, s: s.key_by("k").reduce(name="r", n=hr.count()).key_by("k").window(SECOND).reduce(name="w", n=hr.count()),
        GraphError, ["'w'", "'r'", "belong to no time", "give 'r' an event-time window"],
    ),
    "session after whole input": (
        lambda j, s: s.key_by("k").window(hr.whole_input()).reduce(name="r", n=hr.count())
        .key_by("k").window(hr.session_window("1 s")).reduce(name="w", n=hr.count()),
        GraphError, ["'w'", "'r'", "the whole input", "hr.whole_input()"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_named_with_its_fix(case: str, tmp_path: Path) -> None:
    make, kind, parts = CASES[case]
    with pytest.raises(kind) as caught:
        build(make, tmp_path)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("options", "kind", "parts"),
    [
        ({"event_time": "when"}, SchemaError, ["'s'", "'when'", "k, v, w, l, t"]),
        ({"event_time": "l"}, SchemaError, ["'s'", "'l' is list", "timestamp, ISO text or a number"]),
        ({"time_unit": "days"}, GraphError, ["'s'", "'days'", "'ms'"]),
        ({"lateness": "soon"}, UnitError, ["lateness 'soon'", "'200 ms'"]),
        ({"idle": "-1 s"}, UnitError, ["idle '-1 s'"]),
        ({"on_error": "ignore"}, GraphError, ["'job'", "'ignore'", "'skip'"]),
        ({"event_time": None}, GraphError, ["'r'", "'s' has no event time", "event_time='column'"]),
    ],
)
def test_wrong_sources_are_named(options: Any, kind: type[HeadraceError], parts: list[str], tmp_path: Path) -> None:
    with pytest.raises(kind) as caught:
        build(lambda j, s: s.key_by("k").window(SECOND).reduce(name="r", n=hr.count()), tmp_path, **options)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


def test_something_that_is_no_source_is_named() -> None:
    with pytest.raises(
        GraphError, match=r"source 's' needs a source such as hr.replay\('clicks.jsonl'\), not 'f.jsonl'"
    ):
        hr.Job("job").source("s", "f.jsonl")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "a b", "-a", "é", "x" * 101, "../up"])
def test_job_names(name: str) -> None:
    with pytest.raises(GraphError, match="job name .*: use letters, digits"):
        hr.Job(name)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hr.sliding("1 s", every="2 s"), "records in between would be lost"),
        (lambda: hr.tumbling("10 us"), "at least 1 ms"),
        (lambda: hr.session_window(0), "at least 1 ms"),
        (lambda: hr.count_window(0), "at least 1 record"),
        (lambda: hr.versioned(hr.session_window("1 s")), "takes a tumbling or sliding window, not session"),
        (lambda: hr.top_k("v", 0), "k must be at least 1"),
        (lambda: hr.quantile("v", 1.5), "between 0 and 1"),
    ],
)
def test_windows_and_reducers_check_themselves(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        make()


def test_a_job_needs_a_source_and_a_sink() -> None:
    with pytest.raises(GraphError, match=r"job 'empty' has no source; add one with job.source"):
        hr.Job("empty").graph()
    job, _ = job_with_source()
    with pytest.raises(GraphError, match=r"job 'job' has no sink; add .sink\(name"):
        job.graph()
    assert job.graph(need_sink=False).nodes[0].name == "s"


def test_constraints_follow_paths() -> None:
    job, s = job_with_source()
    a, b = s.map(dict, name="a"), s.map(dict, name="b").sink("out", out())
    job.constrain(a >> b, mean="1 s")
    with pytest.raises(
        GraphError, match=r"a → b: mean ≤ 1000 ms over 5 s: no path leads from 'a' to 'b'; constrain a path"
    ):
        job.graph()
    other, t = hr.Job("other"), s
    with pytest.raises(GraphError, match="constrain.s >> b.: the path belongs to job 'job', not to 'other'"):
        other.constrain(t >> b, mean="1 s")


def test_streams_of_two_jobs_do_not_mix() -> None:
    _, s = job_with_source()
    _, t = job_with_source()
    for mix in (lambda: s.union(t), lambda: s.key_by("k").window(SECOND).join(t.key_by("k"))):
        with pytest.raises(GraphError, match="belong to different jobs; build both on one hr.Job"):
            mix()


def test_a_cycle_is_named() -> None:
    source = SourceNode("s", scripted(RECORDS))
    one, two = UnionNode("one", ("s", "two")), UnionNode("two", ("one",))
    with pytest.raises(GraphError, match="steps form a cycle: one → two → one; .*break it at one of these steps"):
        validate(Graph("job", (source, one, two, SinkNode("out", out(), ("two",)))))


def test_graphs_made_by_hand_are_checked_too() -> None:
    source = SourceNode("s", scripted(RECORDS))
    with pytest.raises(GraphError, match="two steps are named 's'"):
        validate(Graph("job", (source, source)))
    with pytest.raises(GraphError, match="step 'u' reads 'ghost', which is not a step of job 'job'"):
        validate(Graph("job", (source, UnionNode("u", ("ghost",)))))


def test_a_constraint_says_what_it_demands() -> None:
    assert (
        Constraint("a", "b", 5_000_000, quantile=0.99, quantile_us=100_000).describe() == "a → b: p99 ≤ 100 ms over 5 s"
    )


def test_batch_mode_needs_an_end(tmp_path: Path) -> None:
    job = hr.Job("job")
    job.source("s", hr.generate(lambda i: {"n": i}, rate="10/s")).sink("out", out())
    with pytest.raises(
        GraphError, match="source 's' never ends, so batch mode would not either; bound it or use another"
    ):
        plan_job(job, tmp_path, Settings.of(mode="batch"))


def test_functions_that_fail_on_some_samples_only_are_accepted(tmp_path: Path) -> None:
    job, s = job_with_source(on_error="skip")
    s.map(lambda r: {"v": r["v"] + 1}, name="m").sink("out", out())
    s.key_by("k").reduce(name="r", n=hr.reducer(init=int, update=lambda n, r: n + r["v"])).sink("out2", out())
    plan = plan_job(job, tmp_path, Settings.of())
    assert plan.schemas["m"].types == [pa.int64()] and plan.schemas["r"].field("n").type == pa.int64()


def test_a_key_that_is_named_like_what_a_step_adds_is_to_be_renamed() -> None:
    _, source = job_with_source()
    for window, name in ((hr.tumbling("1 s"), "window_start"), (hr.session_window("1 s"), "window_end")):
        with pytest.raises(
            GraphError, match=f"its key '{name}' has the name of a column that the step adds.*rename it"
        ):
            source.key_by("k", name).window(window).reduce(n=hr.count())
    source.key_by("window_start").window(hr.whole_input()).reduce(n=hr.count())
    with pytest.raises(GraphError, match="key_by after 's' names a column twice: k, k"):
        source.key_by("k", "k")


@pytest.mark.parametrize("method", ["window", "reduce", "process", "join"])
def test_what_needs_a_key_says_so(method: str) -> None:
    _, source = job_with_source()
    with pytest.raises(AttributeError, match=rf"{method} after 's' needs a key first: .key_by\('column'\).{method}\("):
        getattr(source, method)
    with pytest.raises(AttributeError, match="'Stream' object has no attribute 'maps'"):
        source.maps  # type: ignore[attr-defined]  # noqa: B018
