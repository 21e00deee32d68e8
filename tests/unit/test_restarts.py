"""The epoch protocol in one process: crashes, restarts, zombies, damage; results as if nothing had happened."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import reference as ref
from acts import InActs, in_acts, rows_of
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from reference import Record, Row
from workflows import MS, out

import headrace as hr
from headrace.driver.planning import known_schemas
from headrace.errors import CorruptionError, FencedError, ProtocolError, StateError
from headrace.runtime.wire.frames import Kind, decode
from headrace.testing import CRASH, PAUSE, LocalRun, scripted
from headrace.testing.local import _Pipe
from headrace.testing.scripted import ScriptedCrash

MODES = ("realtime", "microbatch")
SCHEMA = {"k": "string", "v": "int64", "t": "int64"}
PARTS: list[list[Record]] = [
    [{"k": "abc"[i % 3], "v": i, "t": 10 * i} for i in range(20)],
    [{"k": "cd"[i % 2], "v": i, "t": 15 * i} for i in range(15)],
]


def count(record: Record, state: Any, out: Callable[[Row], None]) -> None:
    state["n"].set(state["n"].get(0) + 1)
    state["vs"].append(record["v"])
    if len(state["vs"]) == 5:
        out({"k": record["k"], "first": state["vs"].popleft(), "n": state["n"].get()})


def workflow(source: Any) -> hr.Job:
    job = hr.Job("job")
    s = job.source("s", source, event_time="t")
    s.key_by("k").window(hr.tumbling("50 ms")).reduce(name="windows", n=hr.count(), v=hr.sum("v")).sink(
        "windows-out", out()
    )
    s.key_by("k").window(hr.whole_input()).reduce(name="whole", vs=hr.collect_list("v")).sink("whole-out", out())
    state = {"n": hr.value(), "vs": hr.queue()}
    s.key_by("k").process(count, name="count", state=state, returns={"k": "str", "first": "int", "n": "int"})
    s.key_by("k").window(hr.tumbling("100 ms")).join(s.key_by("k"), name="join").sink("join-out", out())
    return job


def expected(parts: list[list[Record]] = PARTS) -> dict[str, list[Any]]:
    seen = ref.enter(parts)
    columns = ["k", "v", "t"]
    return {
        "windows-out": ref.bag(
            ref.time_windows(seen, ["k"], 50 * MS, 50 * MS, {"n": ref.count(), "v": ref.total("v")})
        ),
        "whole-out": ref.bag(ref.whole(seen, ["k"], {"vs": ref.collected("v")})),
        "join-out": ref.bag(ref.join(seen, seen, ["k"], "inner", 100 * MS, 100 * MS, (columns, columns))),
    }


def assert_expected(run: LocalRun, parts: list[list[Record]] = PARTS) -> None:
    got = rows_of(run)
    processed = got.pop("count.collected")
    assert {sink: ref.bag(rows) for sink, rows in got.items()} == expected(parts)
    total = ref.by_key(ref.enter(parts), ["k"])
    assert ref.last_per(processed, "k") and all(
        len([row for row in processed if row["k"] == k]) == max(len(members) - 4, 0) for (k,), members in total.items()
    )


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Callable[..., LocalRun]]:
    """Starts drivers on one checkpoint; each replaces the one before."""
    open_runs: list[LocalRun] = []

    def start(job: hr.Job, **options: Any) -> LocalRun:
        while open_runs:
            open_runs.pop().close()
        open_runs.append(LocalRun(job, tmp_path / "checkpoint", **{"report": "5 ms", "slices": 5, **options}))
        return open_runs[0]

    yield start
    for run in open_runs:
        run.close()


# chronostream fact 15: whatever crashes at any time, the results are those of the reference
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 20)), min_size=1, max_size=4),
    st.integers(0, 999),
    st.sampled_from(MODES),
)
@settings(max_examples=6, phases=[Phase.generate])
def test_crashes_anywhere_change_nothing(crashes: list[tuple[int, int]], seed: int, mode: str) -> None:
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        scripts: list[list[Any]] = [list(part) for part in PARTS]
        for part, at in sorted(crashes, reverse=True):
            scripts[part].insert(at, CRASH)
        for script in scripts:
            script.insert(dice.randint(0, len(script)), PAUSE)
        job = workflow(scripted(*scripts, flags=Path(directory) / "flags"))
        run, failures = None, 0
        for _ in range(40):
            if run is None or dice.random() < 0.5:
                if run is not None:
                    run.close()
                checkpoint = Path(directory) / "checkpoint"
                run = LocalRun(job, checkpoint, mode=mode, report="5 ms", parallelism=dice.randint(1, 2), poll_rows=4)
            try:
                run.batch(seconds=0.02)
            except ScriptedCrash:
                failures += 1
            if run.finished:
                break
        assert run is not None and run.finished and 1 <= failures <= len(crashes)
        assert_expected(run)
        run.close()


# chronostream fact 16: driver killed between manifest and Spark commit: the manifest is unused
def test_a_sealed_epoch_without_commit_is_run_again(mode: str, runs: Callable[..., LocalRun]) -> None:
    source = in_acts(PARTS, SCHEMA, 2, 3)
    job = workflow(source)
    run = runs(job, mode=mode)
    run.batch(seconds=0.05, commit=False)
    sealed = run.coordinator.sealed
    assert sealed is not None and run.versions.manifest(sealed.token) == sealed and run.rows("windows-out") == []
    run = runs(job, mode=mode)
    assert run.next_epoch == 0 and run.versions.last_picked() is None
    source.curtain.acts = 2
    run.run()
    assert run.versions.picked(0) != sealed.token
    assert_expected(run)


# chronostream fact 17: driver killed between commit and PICK: no re-run, output once
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_committed_epoch_without_pick_is_picked_by_the_next_driver(
    epochs: int, mode: str, runs: Callable[..., LocalRun]
) -> None:
    source = in_acts(PARTS, SCHEMA, 3, 5)
    job = workflow(source)
    run = runs(job, mode=mode)
    sealed = []
    for epoch in range(epochs):
        run.batch(seconds=0.05, commit=False)
        sealed.append(run.spark_commit().token)
        run.next_epoch = epoch + 1
        source.curtain.acts += 1
    assert run.versions.last_picked() is None and run.rows("windows-out") == []
    run = runs(job, mode=mode)
    assert [run.versions.picked(epoch) for epoch in range(epochs)] == sealed and run.next_epoch == epochs
    source.curtain.acts = 3
    run.run()
    assert_expected(run)


def test_a_pick_that_was_not_published_is_published_once(mode: str, runs: Callable[..., LocalRun]) -> None:
    source = in_acts(PARTS, SCHEMA, 2, 8)
    job = workflow(source)
    run = runs(job, mode=mode)
    run.batch(seconds=0.05, commit=False)
    run.versions.pick(0, run.spark_commit().token)
    source.curtain.acts = 2
    for _ in range(3):
        run = runs(job, mode=mode)
        assert run.next_epoch == 1
    run.run()
    assert_expected(run)


# fault 16: the second driver is refused, the first goes on
def test_a_second_driver_on_the_checkpoint_is_refused(tmp_path: Path, runs: Callable[..., LocalRun]) -> None:
    source = in_acts(PARTS, SCHEMA, 2, 1)
    job = workflow(source)
    run = runs(job)
    run.batch(seconds=0.05)
    with pytest.raises(FencedError, match="is in use by another driver"):
        LocalRun(job, tmp_path / "checkpoint", slices=5)
    source.curtain.acts = 2
    run.run()
    assert_expected(run)


# chronostream fact 3: another number of slices is refused before anything runs
def test_a_checkpoint_keeps_its_slices(runs: Callable[..., LocalRun]) -> None:
    job = workflow(in_acts(PARTS, SCHEMA, 1, 1))
    runs(job, mode="microbatch").batch()
    with pytest.raises(
        StateError, match="was made with slices = 5, the job now has 6; set it back, or start with a new"
    ):
        runs(job, slices=6)
    runs(job, mode="microbatch").run()


def test_a_checkpoint_keeps_its_steps_and_columns(runs: Callable[..., LocalRun]) -> None:
    def job(window: str, kind: str = "int") -> hr.Job:
        made = hr.Job("job")
        s = made.source("s", scripted(PARTS[0], schema=SCHEMA), event_time="t")
        s = s.map(lambda r: {"k": r["k"], "t": r["t"]}, name="m", returns={"k": "str", "t": kind})
        s.key_by("k").window(hr.tumbling(window)).reduce(name="r", n=hr.count()).sink("out", out())
        return made

    runs(job("50 ms")).run()
    with pytest.raises(StateError, match="step 'r' has changed since checkpoint"):
        runs(job("60 ms"))
    assert runs(job("50 ms", "float")).plan.schemas["m"].field("t").type == "int64", "fixed when the job started"


@pytest.mark.parametrize("what", ["cut", "hex"])
def test_a_damaged_job_file_is_named(what: str, tmp_path: Path, runs: Callable[..., LocalRun]) -> None:
    job = workflow(in_acts(PARTS, SCHEMA, 1, 1))
    runs(job, mode="microbatch")
    path = tmp_path / "checkpoint" / "headrace" / "job.json"
    text = path.read_text()
    path.write_text(text[: len(text) // 2] if what == "cut" else text.replace('"s": "ff', '"s": "00'))
    with pytest.raises(CorruptionError, match="job.json"):
        known_schemas(tmp_path / "checkpoint")


def damage(path: Path, how: str, other: Path | None = None) -> None:
    data = bytearray(path.read_bytes())
    match how:
        case "flip":
            data[len(data) // 2] ^= 4
            path.write_bytes(data)
        case "truncate":
            path.write_bytes(data[: len(data) // 2])
        case "delete":
            path.unlink()
        case "swap":
            assert other is not None
            path.write_bytes(other.read_bytes())
            other.write_bytes(data)


# chronostream fact 34: damage to segment, manifest and pick stops the job with the file's name, never a wrong answer
@pytest.mark.parametrize("how", ["flip", "truncate", "delete", "swap"])
@pytest.mark.parametrize("kind", ["segments", "manifests", "picks"])
def test_a_damaged_checkpoint_stops_the_job(
    kind: str, how: str, mode: str, tmp_path: Path, runs: Callable[..., LocalRun]
) -> None:
    source = in_acts(PARTS, SCHEMA, 3, 2)
    job = workflow(source)
    run = runs(job, mode=mode, parallelism=2)
    for act in range(2):
        source.curtain.acts = act + 1
        run.batch(seconds=0.05)
    last = run.versions.last_picked()
    assert last is not None
    files = sorted((tmp_path / "checkpoint" / "headrace" / kind).iterdir())
    victim = [f for f in files if str(last) in f.name or f.name == f"{last.epoch:08d}"][-1]
    damage(victim, how, next(f for f in files if f != victim))
    source.curtain.acts = 3
    if kind == "picks" and how == "delete":  # Spark's commit and the manifest say what it was
        run = runs(job, mode=mode)
        run.run()
        assert_expected(run)
        return
    with pytest.raises(CorruptionError) as caught:
        runs(job, mode=mode).run()
    assert victim.name.removesuffix(".json") in str(caught.value) or (kind, how) == ("segments", "swap")
    assert "step" in str(caught.value) or kind != "segments"


def test_a_checkpoint_without_its_last_epoch_is_named(tmp_path: Path, runs: Callable[..., LocalRun]) -> None:
    source = in_acts(PARTS, SCHEMA, 3, 2)
    job = workflow(source)
    run = runs(job, mode="microbatch")
    run.batch()
    source.curtain.acts = 2
    run.batch()
    for kind, name in (("picks", "00000001"), ("manifests", f"{run.versions.last_picked()}.json")):
        (tmp_path / "checkpoint" / "headrace" / kind / name).unlink()
    with pytest.raises(
        StateError, match="Spark starts epoch 2, but checkpoint .* has no state of epoch 1; it is incomplete"
    ):
        runs(job, mode="microbatch").batch()


def _carries_data(row: Any) -> bool:
    """Whether a row holds records: one with only a watermark can be lost unharmed, the next tells more."""
    return any(frame.kind < Kind.WATERMARK for frame in decode(row.column("payload")[0].as_py()))


# chronostream fact 19: a repeated row is dropped, a missing one aborts the epoch; fact 20: sent = consumed
@pytest.mark.parametrize("what", ["repeat", "lose"])
def test_rows_between_stages_count_once(
    what: str, mode: str, runs: Callable[..., LocalRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    put, dice = _Pipe.put, random.Random(4)
    lost: list[int] = []

    def unreliable(self: _Pipe, row: Any) -> None:
        if what == "repeat":
            put(self, row)
            put(self, row)
        elif lost or not _carries_data(row) or dice.random() < 0.5:
            put(self, row)
        else:
            lost.append(1)

    monkeypatch.setattr(_Pipe, "put", unreliable)
    job = workflow(in_acts(PARTS, SCHEMA, 1, 2))
    run = runs(job, mode=mode, poll_rows=3, flush="0 ms")
    if what == "repeat":
        run.run()
        assert_expected(run)
        return
    with pytest.raises(ProtocolError, match="buffers are missing|the input ended before|not consumed"):
        run.batch()
    assert lost and run.versions.manifests_of(0) == []
    monkeypatch.setattr(_Pipe, "put", put)
    run.run()
    assert_expected(run)


def test_a_source_in_acts_waits_for_its_cue() -> None:
    """The tests' own source: nothing of a later act before its cue, everything in order."""
    source: InActs = in_acts(PARTS, SCHEMA, 3, 1)
    reader = source.open(0, 2, None, source.schema(), Path())
    source.curtain.acts = 0
    assert reader.poll(10, 0) is None and not reader.exhausted
    source.curtain.acts = 3
    played: list[Any] = []
    while (poll := reader.poll(7, 0)) is not None:
        played += poll.records.to_pylist()
    assert played == PARTS[0] and reader.exhausted
