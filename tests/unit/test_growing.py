"""A job grows on its checkpoint while it runs: what was there before goes on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import reference as ref
from acts import in_acts
from reference import Record, Row
from workflows import MS, out

import headrace as hr
from headrace.testing import PAUSE, LocalRun, scripted

SCHEMA = {"k": "string", "v": "int64", "t": "int64"}
PARTS: list[list[Record]] = [
    [{"k": "abcdefg"[i % 7], "v": i, "t": 7 * i} for i in range(60)],
    [{"k": "cdxyz"[i % 5], "v": i, "t": 9 * i} for i in range(50)],
]
Grown = Callable[[hr.Job, Any], None]


def job(source: Any, state: Any = None, grown: Grown = lambda job, s: None, name: str = "upper") -> hr.Job:
    made = hr.Job("job")
    s = made.source("s", source, event_time="t").map(lambda r: r, name=name)
    windows = s.key_by("k").window(hr.sliding("100 ms", every="50 ms"))
    windows.reduce(name="windows", n=hr.count(), v=hr.sum("v"), state=state).sink("windows-out", out())
    s.key_by("k").window(hr.whole_input()).reduce(name="whole", n=hr.count(), state=state).sink("whole-out", out())
    s.key_by("k").window(hr.session_window("20 ms")).reduce(name="sessions", n=hr.count(), state=state).sink(
        "sessions-out", out()
    )
    grown(made, s)
    return made


def more_of_all(job: hr.Job, s: Any) -> None:
    """New sinks, new steps with state, and new windows over a stream and key that has some already."""
    s.sink("all-out", out())
    s.key_by("k").window(hr.tumbling("100 ms")).reduce(name="hundred", n=hr.count()).sink("hundred-out", out())
    s.key_by("k").window(hr.tumbling("200 ms")).reduce(name="two-hundred", n=hr.count()).sink("two-hundred-out", out())
    s.key_by("v").reduce(name="running", n=hr.count()).sink("running-out", out())


def expected() -> dict[str, list[Any]]:
    seen = ref.enter(PARTS)
    counted = {"n": ref.count(), "v": ref.total("v")}
    return {
        "windows-out": ref.bag(ref.time_windows(seen, ["k"], 100 * MS, 50 * MS, counted)),
        "whole-out": ref.bag(ref.whole(seen, ["k"], {"n": ref.count()})),
    }


GROWTH: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "steps and sinks": ({"grown": more_of_all}, {}),
    "parallelism": ({}, {"parallelism": 3}),
    "a memory bound": ({"state": hr.keep(memory="20 KB")}, {}),
    "another engine": ({"state": hr.keep(memory="20 KB", engine="dinc")}, {}),
    "the name of a map": ({"name": "same"}, {}),
    "all of it": ({"grown": more_of_all, "state": hr.keep(memory="20 KB"), "name": "same"}, {"parallelism": 3}),
}


@pytest.mark.parametrize(("change", "settings"), GROWTH.values(), ids=list(GROWTH))
@pytest.mark.parametrize("mode", ["microbatch", "realtime"])
def test_what_is_allowed_changes_no_answer(
    mode: Any, change: dict[str, Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    source = in_acts(PARTS, SCHEMA, 3, 2)
    answers: list[dict[str, list[Row]]] = []
    for act, (changed, set_now) in enumerate([({}, {}), (change, settings), (change, settings)]):
        source.curtain.acts = act + 1
        run = LocalRun(job(source, **changed), tmp_path, mode=mode, **{"parallelism": 2, **set_now})
        try:
            if act < 2:
                run.batch(seconds=0.3)
            else:
                run.run()
            answers.append({sink: run.rows(sink) for sink in ("windows-out", "whole-out", "sessions-out")})
        finally:
            run.close()
    got = answers[-1]
    for sink, rows in expected().items():
        assert ref.bag(got[sink]) == rows
    assert sum(row["n"] for row in got["sessions-out"]) == sum(map(len, PARTS))


@pytest.mark.parametrize("mode", ["microbatch", "realtime"])
def test_rows_of_other_types_stay_as_they_were(mode: Any, tmp_path: Path) -> None:
    """Where no state depends on it, a column may be declared otherwise: rows so far keep what they had."""

    def made(kind: str, *values: Any) -> hr.Job:
        job = hr.Job("job")
        first, second = ({"v": value} for value in values)
        job.source("s", scripted([first, PAUSE, second], schema={"v": kind})).sink("out", out())
        return job

    for kind, values in (("int64", (1, 2)), ("string", ("one", "two"))):
        run = LocalRun(made(kind, *values), tmp_path, mode=mode)
        try:
            if kind == "int64":
                run.batch(seconds=0.05)
            else:
                run.run()
                rows = run.rows("out")
        finally:
            run.close()
    assert rows[0] == {"v": 1} and rows[1]["v"] in (2, "two") and len(rows) == 2
