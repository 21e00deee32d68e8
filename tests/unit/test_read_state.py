"""A step's state as a table: what is in it, under which names, and that a running job does not mind."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.driver.inspection import statetables
from headrace.errors import ConfigError, CorruptionError
from headrace.testing import PAUSE, LocalRun, scripted
from headrace.tokens import Token

BEGIN_S = 1_700_000_000
VISITS = [
    {"user": f"u{i % 2}", "page": f"p{i % 3}", "v": float(i), "t": 1000 * (BEGIN_S + i), "s": i % 2} for i in range(12)
]


def at(second: float) -> datetime:
    return datetime.fromtimestamp(BEGIN_S + second, UTC)


def ring(timer: Any, state: Any, out: Any) -> None:
    """Nothing is due before the input has ended."""


def remember(record: dict[str, Any], state: Any, out: Any) -> None:
    state["n"].set(state["n"].get(0) + 1)
    state["pages"].append(record["page"])
    state["last"].set(record["page"], record["v"])
    state["odd"].set({"any": {1, 2}} if record["user"] == "u0" else 7)
    state.timer(after="1 h", tag="bye")


def built(checkpoint: Path, *, to_the_end: bool = False) -> Path:
    job = hr.Job("visits")
    s = job.source("visits", scripted([*VISITS[:9], PAUSE, *VISITS[9:]]), event_time="t")
    states = {"n": hr.value(ttl="1 day"), "pages": hr.queue(), "last": hr.mapping(), "odd": hr.value()}
    s.key_by("user").process(remember, name="remember", state=states, on_timer=ring, returns={"x": "int"})
    s.key_by("s", "user").process(lambda r, state, out: state["v"].set(r["v"]), name="two", state={"v": hr.value()},
                                  returns={"x": "int"})  # fmt: skip
    pages = s.key_by("page")
    longest = hr.reducer(init=lambda: "", update=lambda s, r: max(s, r["user"]), combine=max)
    pages.reduce(name="running", n=hr.count(), mean=hr.mean("v"), top=longest)
    pages.window(hr.sliding("20 s", every="10 s")).reduce(name="sliding", n=hr.count())
    whole = hr.keep(combine=False)
    pages.window(hr.sliding("20 s", every="10 s")).reduce(name="whole", n=hr.count(), state=whole)
    pages.window(hr.session_window("20 s")).reduce(name="sessions", n=hr.count())
    other = s.map(lambda r: {"page": r["page"], "v": str(r["v"])}, name="other").key_by("page")
    pages.window(hr.tumbling("20 s")).join(other, name="pairs")
    run = LocalRun(job, checkpoint, mode="microbatch", slices=4)
    try:
        run.batch()
        if to_the_end:
            run.run()
    finally:
        run.close()
    return checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("read") / "checkpoint")


def rows(checkpoint: Path, step: str, *order: str) -> list[dict[str, Any]]:
    table = hr.read_state(checkpoint, step)
    found: list[dict[str, Any]] = (
        table.sort_by([(name, "ascending") for name in order]) if order else table
    ).to_pylist()
    return found


def test_process_has_a_row_for_each_key_and_a_column_for_each_state(checkpoint: Path) -> None:
    table = hr.read_state(str(checkpoint), "remember").sort_by("user")
    assert table.column_names == ["user", "n", "n_set_at", "pages", "last", "odd", "timers"]
    assert table.schema.field("user").type == pa.string() and table.schema.field("n").type == pa.int64()
    zero, one = table.to_pylist()
    assert (zero["user"], zero["n"], zero["n_set_at"]) == ("u0", 5, at(8))
    assert zero["pages"] == ["p0", "p2", "p1", "p0", "p2"], "in their order"
    assert {pair["item"]: pair["value"] for pair in zero["last"]} == {"p0": 6.0, "p2": 8.0, "p1": 4.0}
    assert (zero["odd"], one["odd"]) == ('{"any": [1, 2]}', "7"), "of mixed types: JSON"
    assert one["timers"] == [{"clock": "event", "tag": "bye", "at": at(3607)}]


def test_keys_of_several_columns_have_their_names_and_types(checkpoint: Path) -> None:
    assert rows(checkpoint, "two", "s") == [{"s": 0, "user": "u0", "v": 8.0}, {"s": 1, "user": "u1", "v": 7.0}]


def test_reduces_say_what_their_results_have_come_to_and_which_time_they_are_of(checkpoint: Path) -> None:
    assert rows(checkpoint, "running", "page")[0] == {
        "page": "p0", "n": 3, "mean.value": 9.0, "mean.n": 3, "top": "u1"
    }  # fmt: skip
    assert rows(checkpoint, "sliding", "page")[0] == {"pane_start": at(0), "page": "p0", "n": 3}
    assert rows(checkpoint, "whole", "page", "window_end")[:2] == [
        {"window_end": at(10), "page": "p0", "n": 3},
        {"window_end": at(20), "page": "p0", "n": 3},
    ]
    assert rows(checkpoint, "sessions", "page")[1] == {
        "session_start": at(1), "page": "p1", "n": 3, "last_at": at(7)
    }  # fmt: skip


def test_sides_of_a_join_whose_columns_differ_are_one_table(checkpoint: Path) -> None:
    found = rows(checkpoint, "pairs", "part", "page", "v")
    assert len(found) == 18 and found[0] == {
        "user": "u0", "page": "p0", "v": "0.0", "t": VISITS[0]["t"], "s": 0, "window_end": at(20), "part": "left"
    }  # fmt: skip
    assert found[-1]["part"] == "right" and found[-1]["user"] is None


def test_sources_have_their_offsets(checkpoint: Path) -> None:
    assert rows(checkpoint, "visits") == [{"partition": 0, "offset": '{"at": 10}', "newest": at(8)}]


def test_state_of_a_job_that_has_ended_can_be_read(tmp_path: Path) -> None:
    done = built(tmp_path / "done", to_the_end=True)
    assert sum(row["n"] for row in rows(done, "running")) == 12
    assert hr.read_state(done, "sliding").num_rows == 0
    assert [row["n"] for row in rows(done, "remember", "user")] == [6, 6]


def stateless(checkpoint: Path) -> str:
    """A step of the job that has no state."""
    opened = statetables.open_checkpoint(checkpoint)
    manifest = opened.newest()
    return min(opened.identity.steps.keys() - {id.partition("#")[0] for id, _ in manifest.slices})


def test_what_is_not_there_is_named(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the job has no step 'nothing'; steps with state: pairs, remember, running"):
        hr.read_state(checkpoint, "nothing")
    with pytest.raises(ConfigError, match="step '(.*)' keeps nothing in this version; steps with state: pairs"):
        hr.read_state(checkpoint, stateless(checkpoint))
    with pytest.raises(ConfigError, match="is not the checkpoint of a Headrace job"):
        hr.read_state(tmp_path, "remember")


def test_segments_that_a_running_job_rewrites_meanwhile_do_not_matter(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = statetables.open_checkpoint(checkpoint)
    newest, real, calls = opened.newest(), statetables.slices_of_step, list[Any]()

    def gone(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            raise CorruptionError("a block cannot be read")
        return real(*args)

    monkeypatch.setattr(statetables, "slices_of_step", gone)
    with pytest.raises(CorruptionError, match="cannot be read"):
        statetables.state_table(opened, "running")
    calls.clear()
    versions = iter([replace(newest, token=Token(1, 1, 0)), newest, newest])
    monkeypatch.setattr(statetables.Checkpoint, "newest", lambda self: next(versions))
    assert statetables.state_table(opened, "running").num_rows == 3 and len(calls) == 2
