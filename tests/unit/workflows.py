"""Jobs that use every kind of step, each with its meaning in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import reference as ref
from reference import Record, Row, Seen

import headrace as hr
from headrace.connect.callback import callback
from headrace.connect.sink import Sink
from headrace.connect.source import Source
from headrace.runtime.batch import Batch

SCHEMA = {"k": "string", "v": "int64", "x": "float64", "w": "string", "at": "timestamp", "t": "int64"}
Expected = dict[str, list[Row]]
MS = 1000


class Kept:
    """A receiver that keeps rows."""

    def __init__(self) -> None:
        self.rows: list[Record] = []

    def receive(self, port: int, batch: Batch) -> None:
        self.rows += batch.records.to_pylist()

    def watermark(self, port: int, watermark_us: int) -> None:
        """Nobody waits for it."""


def out() -> Sink:
    """Local runs collect whatever the sink is."""
    return callback(print)


REDUCERS: dict[str, tuple[Any, Callable[[list[Seen]], Any]]] = {
    "n": (hr.count(), ref.count()),
    "sum_v": (hr.sum("v"), ref.total("v")),
    "sum_x": (hr.sum("x"), ref.total("x")),
    "mean_v": (hr.mean("v"), ref.mean("v")),
    "mean_x": (hr.mean("x"), ref.mean("x")),
    "min_v": (hr.min("v"), ref.smallest("v")),
    "max_v": (hr.max("v"), ref.largest("v")),
    "min_x": (hr.min("x"), ref.smallest("x")),
    "max_x": (hr.max("x"), ref.largest("x")),
    "min_w": (hr.min("w"), ref.smallest("w")),
    "max_w": (hr.max("w"), ref.largest("w")),
    "min_at": (hr.min("at"), ref.smallest("at")),
    "max_at": (hr.max("at"), ref.largest("at")),
    "top_v": (hr.top_k("v", 3), ref.top_k("v", 3)),
    "top_x": (hr.top_k("x", 2), ref.top_k("x", 2)),
    "top_w": (hr.top_k("w", 2, by="v"), ref.top_k_by("w", 2, "v")),
    "distinct_v": (hr.count_distinct("v"), ref.distinct("v")),
    "distinct_x": (hr.count_distinct("x"), ref.distinct("x")),
    "distinct_w": (hr.count_distinct("w"), ref.distinct("w")),
    "distinct_at": (hr.count_distinct("at"), ref.distinct("at")),
    "first_v": (hr.first("v"), ref.first("v")),
    "first_w": (hr.first("w"), ref.first("w")),
    "last_x": (hr.last("x"), ref.last("x")),
    "last_at": (hr.last("at"), ref.last("at")),
    "all_v": (hr.collect_list("v"), ref.collected("v")),
    "all_w": (hr.collect_list("w"), ref.collected("w")),
}
QUANTILES: dict[str, tuple[Any, Callable[[list[Seen]], Any]]] = {
    "q50": (hr.quantile("v", 0.5), ref.quantile("v", 0.5)),
    "q99": (hr.quantile("v", 0.99), ref.quantile("v", 0.99)),
}
SOME = ("n", "sum_v", "distinct_w", "first_w", "last_x", "all_v", "top_v")


def ours(*names: str) -> dict[str, Any]:
    return {name: (REDUCERS | QUANTILES)[name][0] for name in names or [*REDUCERS, *QUANTILES]}


def theirs(*names: str) -> ref.Reducers:
    return {name: (REDUCERS | QUANTILES)[name][1] for name in names or [*REDUCERS, *QUANTILES]}


def all_reducers(source: Source, parts: Sequence[Sequence[Record]], lateness_ms: int) -> tuple[hr.Job, Expected]:
    """Every built-in reducer, with and without panes, over the whole input and running."""
    job = hr.Job("reducers")
    s = job.source("s", source, event_time="t", lateness=f"{lateness_ms} ms")
    seen = ref.enter(parts, lateness_ms * MS)
    s.key_by("k").window(hr.tumbling("500 ms")).reduce(name="tumbling", **ours()).sink("tumbling-out", out())
    s.key_by("k").window(hr.sliding("700 ms", every="300 ms")).reduce(name="sliding", **ours(*SOME)).sink(
        "sliding-out", out()
    )
    s.key_by("k").window(hr.whole_input()).reduce(name="whole", **ours()).sink("whole-out", out())
    s.key_by("k", "v").reduce(name="running", **ours("n", "distinct_w", "max_x")).sink("running-out", out())
    return job, {
        "tumbling-out": ref.time_windows(seen, ["k"], 500 * MS, 500 * MS, theirs()),
        "sliding-out": ref.time_windows(seen, ["k"], 700 * MS, 300 * MS, theirs(*SOME)),
        "whole-out": ref.whole(seen, ["k"], theirs()),
        "running-out": ref.whole(seen, ["k", "v"], theirs("n", "distinct_w", "max_x")),
    }


def _with_combine() -> Any:
    return hr.reducer(
        init=dict, update=_tally, combine=_added, finalize=lambda state: sorted(f"{w}:{n}" for w, n in state.items())
    )


def _without_combine() -> Any:
    return hr.reducer(init=dict, update=_tally, finalize=lambda state: sorted(f"{w}:{n}" for w, n in state.items()))


def _tally(state: dict[Any, int], record: Record) -> dict[Any, int]:
    state[record["w"]] = state.get(record["w"], 0) + 1
    return state


def _added(one: dict[Any, int], other: dict[Any, int]) -> dict[Any, int]:
    for word, n in other.items():
        one[word] = one.get(word, 0) + n
    return one


def _tallied(members: list[Seen]) -> list[str]:
    state: dict[Any, int] = {}
    for one in members:
        _tally(state, one.record)
    return sorted(f"{w}:{n}" for w, n in state.items())


def all_windows(source: Source, parts: Sequence[Sequence[Record]], lateness_ms: int) -> tuple[hr.Job, Expected]:
    """Sessions, sliding windows of all shapes, users' reducers, and a reduce behind a reduce."""
    job = hr.Job("windows")
    s = job.source("s", source, event_time="t", lateness=f"{lateness_ms} ms")
    seen = ref.enter(parts, lateness_ms * MS)
    s.key_by("k").window(hr.session_window("120 ms")).reduce(name="session", **ours(*SOME)).sink("session-out", out())
    expected = {"session-out": ref.sessions(seen, ["k"], 120 * MS, theirs(*SOME))}
    more = {"n": hr.count(), "returns": {"words": pa.list_(pa.string())}}
    for size, every in ((400, 400), (400, 100), (1000, 300), (350, 150)):
        name = f"{size}-{every}"
        window = hr.sliding(f"{size} ms", every=f"{every} ms")
        (
            s.key_by("k")
            .window(window)
            .reduce(name=f"c{name}", words=_with_combine(), **more)
            .sink(f"c{name}-out", out())
        )
        (
            s.key_by("k")
            .window(window)
            .reduce(name=f"d{name}", words=_without_combine(), **more)
            .sink(f"d{name}-out", out())
        )
        rows = ref.time_windows(seen, ["k"], size * MS, every * MS, {"n": ref.count(), "words": _tallied})
        expected |= {f"c{name}-out": rows, f"d{name}-out": rows}
    per_key = s.key_by("k").window(hr.tumbling("200 ms")).reduce(name="first-level", n=hr.count(), sum_v=hr.sum("v"))
    (per_key.map(lambda r: {"odd": r["n"] % 2, "sum_v": r["sum_v"]}, name="odd", returns={"odd": "int", "sum_v": "int"})
        .key_by("odd").window(hr.sliding("600 ms", every="400 ms"))
        .reduce(name="second-level", n=hr.count(), maximum=hr.max("sum_v")).sink("second-out", out()))  # fmt: skip
    first = ref.time_windows(seen, ["k"], 200 * MS, 200 * MS, {"n": ref.count(), "sum_v": ref.total("v")})
    odd = ref.flat_mapped(ref.emitted(first), lambda r: [{"odd": r["n"] % 2, "sum_v": r["sum_v"]}])
    expected["second-out"] = ref.time_windows(
        odd, ["odd"], 600 * MS, 400 * MS, {"n": ref.count(), "maximum": ref.largest("sum_v")}
    )
    return job, expected


def letters(record: Record) -> list[Record]:
    return [{"letter": c, "v": record["v"], "t": record["t"]} for c in (record["w"] or "")]


def remember(record: Record, state: Any, out: Callable[[Row], None]) -> None:
    """Value, queue and mapping state, and an event timer; the last row per key does not depend on order."""
    n = state["n"].get(0) + 1
    state["n"].set(n)
    state["words"].set(record["w"], (state["words"].get(record["w"]) or 0) + 1)
    queue = state["latest"]
    queue.append(record["v"])
    if len(queue) > 3:
        queue.popleft()
    if n == 1:
        state.timer(at=datetime(1970, 1, 1, 0, 1, tzinfo=UTC), tag="minute")
    out({"k": record["k"], "n": n, "kept": len(queue), "words": len(state["words"]), "alarm": None})


def ring(timer: Any, state: Any, out: Callable[[Row], None]) -> None:
    out({"k": timer.key, "n": state["n"].get(), "kept": len(list(state["latest"])), "words": 0, "alarm": timer.tag})
    state["n"].delete()


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    at = batch.schema.get_field_index("v")
    return batch.set_column(at, "v", pc.multiply(batch.column(at), 2))


def all_steps(source: Source, parts: Sequence[Sequence[Record]], lateness_ms: int) -> tuple[hr.Job, Expected]:
    """flat_map, filter, map_batch, union, joins, process, map_reduce; forks, edges that skip stages, hops."""
    job = hr.Job("steps")
    s = job.source("s", source, event_time="t", lateness=f"{lateness_ms} ms")
    seen = ref.enter(parts, lateness_ms * MS)
    expected: Expected = {}

    spelled = s.flat_map(letters, name="letters", returns={"letter": "string", "v": "int", "t": "int"})
    kept = spelled.filter(lambda r: r["letter"] != "b", name="not-b", chain=False)
    kept.key_by("letter").window(hr.tumbling("300 ms")).reduce(name="per-letter", n=hr.count()).sink(
        "letters-out", out()
    )
    ref_kept = [one for one in ref.flat_mapped(seen, letters) if one.record["letter"] != "b"]
    expected["letters-out"] = ref.time_windows(ref_kept, ["letter"], 300 * MS, 300 * MS, {"n": ref.count()})

    twice = s.map_batch(doubled, name="doubled").union(s, name="both")
    twice.key_by("k").window(hr.tumbling("400 ms")).reduce(name="both-sum", v=hr.sum("v")).sink("union-out", out())
    ref_twice = [*seen, *ref.flat_mapped(seen, lambda r: [r | {"v": None if r["v"] is None else 2 * r["v"]}])]
    expected["union-out"] = ref.time_windows(ref_twice, ["k"], 400 * MS, 400 * MS, {"v": ref.total("v")})

    some = s.filter(lambda r: r["v"] is not None and r["v"] % 2 == 0, name="even").map(
        lambda r: {"k": r["k"], "v": r["v"], "even": r["w"]},
        name="cut",
        returns={"k": "str", "v": "int", "even": "str"},
    )
    ref_some = [
        Seen({"k": r["k"], "v": r["v"], "even": r["w"]}, one.time_us, one.late_us)
        for one in seen
        if (r := one.record)["v"] is not None and r["v"] % 2 == 0
    ]
    names = (list(SCHEMA), ["k", "v", "even"])
    for how in ("inner", "left", "right", "outer"):
        window = hr.tumbling("250 ms") if how in ("inner", "outer") else hr.sliding("300 ms", every="200 ms")
        size, every = window.size_us, window.every_us
        s.key_by("k").window(window).join(some.key_by("k"), how=how, name=f"{how}-join").sink(f"{how}-out", out())  # type: ignore[arg-type]
        expected[f"{how}-out"] = ref.join(seen, ref_some, ["k"], how, size, every, names)

    for how in ("inner", "outer"):
        near = s.key_by("k").join(some.key_by("k"), before="40 ms", after="150 ms", how=how, name=f"{how}-near")  # type: ignore[arg-type]
        near.sink(f"{how}-near-out", out())
        expected[f"{how}-near-out"] = ref.interval_join(seen, ref_some, ["k"], how, 40 * MS, 150 * MS, names)

    totals = s.key_by("k").window(hr.tumbling("200 ms")).reduce(name="totals", n=hr.count())
    mixed = s.key_by("k").window(hr.tumbling("400 ms")).join(totals.key_by("k"), how="inner", name="skips-a-stage")
    mixed.sink("skip-out", out())
    ref_totals = ref.time_windows(seen, ["k"], 200 * MS, 200 * MS, {"n": ref.count()})
    sides = (list(SCHEMA), ["k", "window_start", "window_end", "n"])
    expected["skip-out"] = ref.join(seen, ref.emitted(ref_totals), ["k"], "inner", 400 * MS, 400 * MS, sides)

    s.key_by("k").process(
        remember, on_timer=ring, name="remember",
        state={"n": hr.value(), "words": hr.mapping(), "latest": hr.queue()},
        returns={"k": "str", "n": "int", "kept": "int", "words": "int", "alarm": "str"},
    ).sink("process-out", out())  # fmt: skip
    expected["process-out"] = [
        {"k": members[0].record["k"], "n": len(members), "kept": min(len(members), 3), "words": 0, "alarm": "minute"}
        for members in ref.by_key(seen, ["k"]).values()
    ]

    mr = job.map_reduce(
        "word-lengths", inputs=[s], map=lambda r: [(len(r["w"] or ""), 1)], combine=lambda k, vs: sum(vs),
        reduce=lambda k, vs: sum(vs), pairs={"key": "int", "value": "int"}, returns={"key": "int", "value": "int"},
    )  # fmt: skip
    mr.sink("mr-out", out())
    lengths: dict[int, int] = {}
    for one in seen:
        size = len(one.record["w"] or "")
        lengths[size] = lengths.get(size, 0) + 1
    expected["mr-out"] = [{"key": k, "value": n} for k, n in lengths.items()]
    return job, expected
