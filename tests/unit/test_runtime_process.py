"""Keyed processing: value, queue and mapping state, timers, restarts, mistakes in users' functions."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import reference as ref
from reference import Record, Row
from workflows import out

import headrace as hr
from headrace.errors import StateError, UserCodeError
from headrace.testing import PAUSE, LocalRun, run_local, scripted

MODES = ("realtime", "microbatch", "batch")
Emit = Callable[[Row], None]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def process(
    items: list[Any], fn: Any, *, key: str = "k", schema: Any = None, lateness: str = "0 s", **options: Any
) -> hr.Job:
    job = hr.Job("job", **{k: options.pop(k) for k in ("on_error", "dead_letter") if k in options})
    s = job.source("s", scripted(items, schema=schema), event_time="t", lateness=lateness)
    s.key_by(key).process(fn, name="p", **options).sink("out", out())
    return job


def in_epochs(job: hr.Job, checkpoint: Path, **options: Any) -> list[Row]:
    """Each epoch by a new driver, so that all state comes from the checkpoint."""
    for _ in range(50):
        run = LocalRun(job, checkpoint, mode="microbatch", **options)
        try:
            run.batch()
            if run.finished:
                return run.rows("out")
        finally:
            run.close()
    raise AssertionError("the job never finished")


def texts(*steps: str) -> list[Any]:
    """``texts("set a", "|", "get")``: a record per word pair, an epoch's end at ``|``."""
    return [PAUSE if s == "|" else {"k": "x", "do": s, "t": i} for i, s in enumerate(steps)]


# chronostream fact 4: get after delete misses in all phases and after restore
def test_values_are_kept_deleted_and_stay_deleted(tmp_path: Path) -> None:
    def act(record: Record, state: Any, out: Emit) -> None:
        match record["do"].split():
            case ["set", value]:
                state["v"].set(value)
            case ["delete"]:
                out({"said": str(state["v"].delete())})
            case _:
                out({"said": state["v"].get("missing")})

    steps = texts("get", "set 1", "get", "|", "get", "delete", "get", "|", "get", "delete", "|", "set 2", "|", "delete",
                  "set 3", "|", "get")  # fmt: skip
    job = process(steps, act, state={"v": hr.value()}, returns={"said": "str"})
    assert [row["said"] for row in in_epochs(job, tmp_path)] == [
        "missing", "1", "1", "True", "missing", "missing", "False", "True", "3"
    ]  # fmt: skip


def test_queues_are_first_in_first_out_across_restarts(tmp_path: Path) -> None:
    def act(record: Record, state: Any, out: Emit) -> None:
        queue = state["q"]
        match record["do"].split():
            case ["append", value]:
                queue.append(value)
            case ["pop"]:
                out({"said": queue.popleft()})
            case ["clear"]:
                queue.clear()
        out({"said": f"{queue.peek('-')} {len(queue)} {''.join(queue)}"})

    steps = texts(
        "append a", "append b", "|", "append c", "pop", "|", "pop", "append d", "|", "clear", "append e", "|", "pop"
    )
    job = process(steps, act, state={"q": hr.queue()}, returns={"said": "str"})
    assert [row["said"] for row in in_epochs(job, tmp_path)] == [
        "a 1 a", "a 2 ab", "a 3 abc", "a", "b 2 bc", "b", "c 1 c", "c 2 cd", "- 0 ", "e 1 e", "e", "- 0 "
    ]  # fmt: skip


ITEMS: list[Any] = ["b", "a", 1, True, 1.0, None, (1, "x"), b"b", 2**70, "c"]


def test_mappings_keep_their_order_and_any_plain_item(tmp_path: Path) -> None:
    """Items of several types, told apart by type, in the order in which they came; also after restarts."""

    def act(record: Record, state: Any, out: Emit) -> None:
        mapping = state["m"]
        item = ITEMS[record["i"]]
        mapping.set(item, (mapping.get(item) or 0) + 1)
        if record["i"] == 4:
            mapping.delete("a")
            mapping.delete("ghost")
        out({"said": repr(mapping.items()), "n": len(mapping), "has": "b" in mapping and "a" in mapping})

    order = [0, 1, 2, "|", 3, 0, "|", 4, 5, "|", 6, 7, 8, "|", 1, 9, 2]
    script = [PAUSE if i == "|" else {"k": "x", "i": i, "t": n} for n, i in enumerate(order)]
    job = process(script, act, state={"m": hr.mapping()}, returns={"said": "str", "n": "int", "has": "bool"})
    rows = in_epochs(job, tmp_path)
    expected = {"b": 2, 1: 2, "True": 1, "1.0": 1, None: 1, (1, "x"): 1, b"b": 1, 2**70: 1, "a": 1, "c": 1}
    assert rows[-1]["said"] == repr(list(expected.items())).replace("'True'", "True").replace("'1.0'", "1.0")
    assert rows[-1]["n"] == len(expected) and rows[-1]["has"] and rows[1]["has"] and not rows[5]["has"]
    same = run_local(job, mode="realtime")["out"]
    assert [row["said"] for row in rows] == [row["said"] for row in same]


KEYS: list[tuple[str, list[Any]]] = [
    ("float64", [float("nan"), 0.0, -0.0, 1.5, None]),
    ("int64", [0, -5, 2**62, None]),
    ("string", ["", "é", None]),
    ("binary", [b"", b"\xff"]),
    ("bool", [True, False, None]),
    ("timestamp[ns]", [ref.at(1).replace(tzinfo=None), None]),
    ("timestamp[us, UTC]", [ref.at(1), ref.at(2)]),
    ("timestamp[us, Europe/Berlin]", [ref.at(1), ref.at(2)]),
    ("date32", [ref.at(0).date()]),
    ("time64[us]", [ref.at(1).time(), None]),
    ("duration[us]", [timedelta(1), timedelta(-1)]),
]


@pytest.mark.parametrize(("kind", "values"), KEYS, ids=[kind for kind, _ in KEYS])
def test_state_of_any_key_survives_restarts(kind: str, values: list[Any], tmp_path: Path) -> None:
    """A key is the same before and after a restore, or its state would be lost and its digest wrong."""

    def count(record: Record, state: Any, out: Emit) -> None:
        n = state["n"].get(0) + 1
        state["n"].set(n)
        out({"n": n})

    script: list[Any] = []
    for _ in range(3):
        script += [*({"k": v, "t": 0} for v in values), PAUSE]
    job = process(script, count, schema={"k": kind, "t": "int"}, state={"n": hr.value()}, returns={"n": "int"})
    rows = in_epochs(job, tmp_path)
    counts = sorted(row["n"] for row in rows)
    zeros = kind == "float64"  # 0.0 and -0.0 are one key
    expected = sorted(n for n in (1, 2, 3) for _ in values)
    assert counts == (sorted([1, 2, 3] * 3 + [1, 2, 3, 4, 5, 6]) if zeros else expected)


# chronostream fact 6: mutation without set is detected in debug mode
def test_a_forgotten_set_is_found_in_debug_mode(tmp_path: Path) -> None:
    def forget(record: Record, state: Any, out: Emit) -> None:
        seen = state["seen"].get([])
        seen.append(record["t"])
        if record["t"] != 1:
            state["seen"].set(seen)
        out({"n": len(seen)})

    job = process([{"k": "a", "t": t} for t in range(2)], forget, state={"seen": hr.value()})
    run = LocalRun(job, tmp_path / "debug", mode="batch", debug_state=True)
    with pytest.raises(
        StateError, match=r"step 'p': state 'seen' of key 'a' was changed in place without set\(\); call"
    ):
        run.batch()
    run.close()
    assert [row["n"] for row in run_local(job, mode="batch")["out"]] == [1, 2]
    tidy = process([{"k": "a", "t": t} for t in (0, 2)], forget, state={"seen": hr.value()})
    assert len(run_local(tidy, mode="batch", debug_state=True)["out"]) == 2


def alarm(record: Record, state: Any, out: Emit) -> None:
    if record["after"] is None:
        state.cancel("ring")
    else:
        state.timer(after=record["after"], tag=record.get("tag") or "ring")


def ring(timer: Any, state: Any, out: Emit) -> None:
    out({"k": timer.key, "at": round((timer.at - ref.at(0)).total_seconds() * 1000), "tag": timer.tag})


def rings(script: list[Any], mode: str, **options: Any) -> list[tuple[str, int]]:
    returns = {"k": "str", "at": "int", "tag": "str"}
    job = process(script, alarm, on_timer=ring, returns=returns, **options)
    return sorted((row["k"], row["at"]) for row in run_local(job, mode=mode, poll_rows=1)["out"])


def at(t: int, after: str | None = "10 ms", k: str = "a") -> Record:
    return {"k": k, "t": t, "after": after}


def test_event_timers_fire_once_at_their_time(mode: str) -> None:
    script = [at(0) | {"tag": "1"}, at(5, k="b"), at(100) | {"tag": "2"}, at(500, "1 ms")]
    assert rings(script, mode) == [("a", 10), ("a", 110), ("a", 501), ("b", 15)]


def test_a_timer_can_be_moved_and_cancelled(mode: str) -> None:
    """Set again it moves; the times are such that the watermark cannot pass it in between."""
    assert rings([at(0, "1 s"), at(1, "2 s"), at(2, "1500 ms")], mode) == [("a", 1502)]
    assert rings([at(0, "1 s"), at(1, None)], mode) == []


def test_timers_survive_restarts(tmp_path: Path) -> None:
    script = [
        at(0, "1 s"), PAUSE, at(1, "2 s", k="b"), PAUSE, at(3, None, k="b"), PAUSE, at(4, "50 ms", k="c"), PAUSE,
        at(70, "1 s", k="d"),
    ]  # fmt: skip
    returns = {"k": "str", "at": "int", "tag": "str"}
    rows = in_epochs(process(script, alarm, on_timer=ring, returns=returns), tmp_path)
    assert sorted((row["k"], row["at"]) for row in rows) == [("a", 1000), ("c", 54), ("d", 1070)]


def test_a_timer_that_sets_itself_again_ends_with_the_input(mode: str) -> None:
    """Also while sample records are sent through the job to find its columns."""

    def again(timer: Any, state: Any, out: Emit) -> None:
        out({"at": round((timer.at - ref.at(0)).total_seconds() * 1000)})
        state.timer(after="10 ms", tag=timer.tag)

    job = process([at(0), at(35)], alarm, on_timer=again)
    rows = [row["at"] for row in run_local(job, mode=mode, poll_rows=1)["out"]]
    assert rows == sorted(rows) and rows[0] in (10, 45) and len(rows) <= 6


def test_processing_timers_fire_by_the_wall_clock() -> None:
    def soon(record: Record, state: Any, out: Emit) -> None:
        state.timer(after="20 ms", clock="processing")

    def now(timer: Any, state: Any, out: Emit) -> None:
        out({"clock": timer.clock, "lag_s": time.time() - (timer.at - ref.at(0)).total_seconds()})

    job = process([{"k": "a", "t": 1}, *[PAUSE] * 200], soon, on_timer=now, returns={"clock": "str", "lag_s": "float"})
    (row,) = run_local(job, mode="realtime")["out"]
    assert row["clock"] == "processing" and -0.03 <= row["lag_s"] < 5


def test_a_function_sees_time_key_and_lateness(mode: str) -> None:
    def see(record: Record, state: Any, out: Emit) -> None:
        out({"key": str(state.key), "at": state.time.isoformat(), "late": state.late})

    job = process([{"k": "a", "t": 50}, {"k": None, "t": 10}], see)
    assert run_local(job, mode=mode, parallelism=1)["out"] == [
        {"key": "a", "at": "1970-01-01T00:00:00.050000+00:00", "late": False},
        {"key": "None", "at": "1970-01-01T00:00:00.010000+00:00", "late": True},
    ]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda state: state["ghost"], "no state 'ghost'; declare it"),
        (lambda state: state.timer(), "exactly one of at= and after="),
        (lambda state: state.timer(at=ref.at(0), after=1), "exactly one of at= and after="),
        (lambda state: state["q"].popleft(), "pop from empty queue 'q'"),
        (lambda state: state["v"].set(object()), r"step 'p', state 'v' holds .* cannot be stored \(a object\)"),
        (lambda state: state["v"].set({1: print}), "cannot be stored"),
    ],
)
def test_mistakes_with_state_are_named(call: Any, message: str) -> None:
    def act(record: Record, state: Any, out: Emit) -> None:
        call(state)

    job = process([{"k": "a", "t": 1}], act, state={"v": hr.value(), "q": hr.queue()}, returns={"n": "int"})
    with pytest.raises(UserCodeError, match=message) as caught:
        run_local(job, mode="batch")
    assert caught.value.step == "p" and "test_runtime_process.py" in caught.value.line


def test_rows_that_do_not_fit_cost_only_themselves() -> None:
    def emit(record: Record, state: Any, out: Emit) -> None:
        out({"n": record["t"]})
        if record["t"] == 2:
            out({"n": "two"})
            out(7)  # type: ignore[arg-type]
            out({"n": 1, "new": 2})

    script = [{"k": "a", "t": t} for t in (0, 1, 2, 3)]
    job = process(script, emit, on_error="skip", returns=None)
    with pytest.raises(Exception, match="mixes types|records"):
        run_local(job, mode="batch")
    job = process(script, emit, on_error="skip", returns={"n": "int"})
    assert sorted(row["n"] for row in run_local(job, mode="batch")["out"]) == [0, 1, 1, 2, 3]


def yielding(record: Record, state: Any, out: Emit) -> Any:
    yield {"k": record["k"]}


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (yielding, "the function yields rows, which nobody takes: give each to out(row)"),
        (
            lambda record, state, out: [{"k": "a"}],
            "the function returns rows, which nobody takes: give each to out(row)",
        ),
        (lambda record, state, out: state.timer(after="1 s"), "sets a timer but has no on_timer=, which it would call"),
        (
            lambda record, state, out: state.timer(at=9000),
            "takes a datetime, such as state.time plus a timedelta, not 9000",
        ),
    ],
    ids=["yields", "returns", "timer without on_timer", "timer at a number"],
)
def test_what_would_silently_do_nothing_is_an_error(fn: Any, words: str) -> None:
    with pytest.raises(UserCodeError, match=re.escape(words)):
        run_local(process([{"k": "a", "t": 1}], fn, returns={"k": "str"}))


def test_a_lambda_may_give_what_out_gave() -> None:
    job = process([{"k": "a", "t": 1}], lambda record, state, out: (out({"k": "x"}), out({"k": "y"})))
    assert [row["k"] for row in run_local(job)["out"]] == ["x", "y"]
