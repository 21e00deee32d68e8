"""Cuts and restarts in one process: crashes, damage, several drivers; results as if nothing had happened."""

from __future__ import annotations

import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import reference as ref
from acts import InActs, counters, in_acts, rows_of
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from reference import Record, Row
from workflows import MS, out

import headrace as hr
from headrace.driver.driverloop import DriverLoop
from headrace.driver.hands import Deeds
from headrace.driver.protocol.events import Append, Instruction, Publish
from headrace.driver.publishing import publish
from headrace.errors import CorruptionError, FencedError, ProtocolError, StateError
from headrace.runtime.wire.frames import Kind, decode
from headrace.schemas import to_schema
from headrace.state.durable.manifest import Manifest
from headrace.state.durable.published import read_published
from headrace.state.durable.storage import LocalStorage
from headrace.state.durable.versionlog import CutEntry, Opened
from headrace.testing import CRASH, PAUSE, LocalRun, scripted
from headrace.testing.scripted import ScriptedCrash
from headrace.testing.threads import Pipe

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


def often(mode: str) -> dict[str, Any]:
    """Many cuts, in a mode that has more than one for each batch."""
    return {"mode": mode} | ({"commit": "50 ms"} if mode == "realtime" else {})


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


def cuts_of(run: LocalRun) -> list[Manifest]:
    return [entry.manifest for _, entry in run.log.cuts()]


class Died(BaseException):
    """The driver was killed; not an Exception, so that nothing tidies up after it."""


class Mortal:
    """A driver that is killed when it has ``when`` to carry out: before it does, or right afterwards, unanswered."""

    def __init__(self, patch: pytest.MonkeyPatch, when: Callable[[Instruction], bool], *, afterwards: bool) -> None:
        self._when, self._afterwards, self._died = when, afterwards, threading.Event()
        self._perform, self._turn = Deeds.perform, DriverLoop._turn
        patch.setattr(Deeds, "perform", lambda deeds, instruction: self._performing(deeds, instruction))
        patch.setattr(DriverLoop, "_turn", lambda loop: self._turning(loop))

    def _performing(self, deeds: Deeds, instruction: Instruction) -> Any:
        dies = not self._died.is_set() and self._when(instruction)
        if self._died.is_set() or (dies and not self._afterwards):
            self._died.set()
            raise Died
        event = self._perform(deeds, instruction)
        if dies:
            self._died.set()
            raise Died
        return event

    def _turning(self, loop: DriverLoop) -> Any:
        if self._died.is_set():
            raise Died
        return self._turn(loop)


def is_cut(instruction: Instruction) -> bool:
    return isinstance(instruction, Append) and isinstance(instruction.entry, CutEntry)


def is_publication(instruction: Instruction) -> bool:
    return isinstance(instruction, Publish)


def killed(
    run: LocalRun, when: Callable[[Instruction], bool], *, afterwards: bool = False, seconds: float = 0.05
) -> bool:
    """Play until the driver is killed; False if it never was."""
    with pytest.MonkeyPatch.context() as patch:
        Mortal(patch, when, afterwards=afterwards)
        try:
            run.run(seconds=seconds)
        except Died:
            return True
        finally:
            run.close()
    return False


def settled(run: LocalRun) -> None:
    """Let a driver open the log and publish what waits."""
    run._turn(lambda: run._ready and not run.machine.publications.waiting)


# chronostream facts 15 to 17: the driver is killed before or after any of its deeds, and the next one goes on
@pytest.mark.parametrize("afterwards", [False, True])
def test_a_driver_killed_anywhere_changes_nothing(afterwards: bool, mode: str, tmp_path: Path) -> None:
    for kind in ("ReadLog", "Append", "LookUp", "Discard", "Publish", "any other"):
        deaths = 0
        while _dies_and_goes_on(kind, deaths, afterwards, mode, tmp_path / f"{kind} {deaths}"):
            deaths += 1
        assert deaths or kind == "any other", f"no {kind} was ever killed"


def _dies_and_goes_on(kind: str, nth: int, afterwards: bool, mode: str, checkpoint: Path) -> bool:
    """Kill the driver at a deed of a kind, if it comes to it, and let the next one finish; whether it came to it."""
    source = in_acts(PARTS, SCHEMA, 2, nth)
    job, seen = workflow(source), iter(range(10**6))

    def is_nth(instruction: Instruction) -> bool:
        name = type(instruction).__name__
        named = name in ("ReadLog", "Append", "LookUp", "Discard", "Publish")
        return (name == kind if named else kind == "any other") and next(seen) == nth

    source.curtain.acts = 2
    options: dict[str, Any] = {**often(mode), "report": "5 ms", "slices": 3, "parallelism": 1}
    dies = killed(LocalRun(job, checkpoint, **options), is_nth, afterwards=afterwards)
    run = LocalRun(job, checkpoint, **options)
    try:
        run.run()
        assert_expected(run)
        assert [m.base for m in cuts_of(run)[1:]] == [m.token for m in cuts_of(run)[:-1]], "a line"
    finally:
        run.close()
    return dies


# chronostream fact 16: driver killed before the log entry: the manifest is never used
def test_a_cut_that_was_not_logged_is_made_again(mode: str, runs: Callable[..., LocalRun], tmp_path: Path) -> None:
    source = in_acts(PARTS, SCHEMA, 2, 3)
    job = workflow(source)
    source.curtain.acts = 2
    run = runs(job, mode=mode)
    assert killed(run, is_cut)
    files = set(run.storage.names("segments"))
    assert files and cuts_of(run) == [] and run.rows("windows-out") == []
    run = runs(job, mode=mode)
    run.run()
    assert not files & set().union(*(manifest.files for manifest in cuts_of(run)))
    assert_expected(run)


# chronostream fact 17: driver killed between entry and publication: no re-run, output once
@pytest.mark.parametrize("cuts", [1, 3])
def test_a_logged_cut_is_published_by_the_next_driver(
    cuts: int, runs: Callable[..., LocalRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = in_acts(PARTS, SCHEMA, 3, 5)
    job = workflow(source)
    run = runs(job, commit="50 ms")

    def away(plan: Any, manifest: Manifest) -> None:
        source.curtain.acts = min(len(run.cuts) + 1, 3)
        raise OSError("the sink is away")

    with monkeypatch.context() as patch:
        patch.setattr("headrace.driver.hands.publish", away)
        assert killed(run, lambda asked: is_publication(asked) and len(run.cuts) >= cuts, seconds=20)
    logged = cuts_of(run)
    assert len(logged) >= cuts and read_published(run.storage) == 0 and run.rows("windows-out") == []
    source.curtain.acts = 3
    for _ in range(3):
        run = runs(job)
        assert run.machine.generation == 0
        settled(run)
        assert cuts_of(run) == logged, "none is made again"
    run.run()
    assert run.cuts[0].cut.manifest.base == logged[-1].token
    assert_expected(run)


# a publish that failed once lost the output for ever
def test_a_sink_that_fails_for_a_while_gets_everything(
    mode: str, runs: Callable[..., LocalRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter(range(4))

    def unreliable(plan: Any, manifest: Manifest) -> None:
        if next(failures, None) is not None:
            raise OSError("the sink is away")
        publish(plan, manifest)

    monkeypatch.setattr("headrace.driver.hands.publish", unreliable)
    source = in_acts(PARTS, SCHEMA, 2, 8)
    source.curtain.acts = 2
    run = runs(workflow(source), **often(mode))
    run.run(seconds=0.1)
    assert next(failures, None) is None
    assert_expected(run)


# an OSError while logging was swallowed
def test_a_log_that_cannot_be_written_for_a_while_loses_nothing(
    mode: str, runs: Callable[..., LocalRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    troubles, put = iter(["before", "after"] * 3), LocalStorage.put_if_absent

    def unreliable(self: LocalStorage, name: str, data: bytes) -> bool:
        trouble = next(troubles, None) if name.startswith("log/") else None
        if trouble == "before":
            raise OSError(28, "No space left on device")
        done = put(self, name, data)
        if trouble == "after":
            raise OSError("no answer")
        return done

    monkeypatch.setattr(LocalStorage, "put_if_absent", unreliable)
    source = in_acts(PARTS, SCHEMA, 2, 8)
    source.curtain.acts = 2
    run = runs(workflow(source), **often(mode))
    run.run(seconds=0.1)
    assert_expected(run)
    tokens = [manifest.token for manifest in cuts_of(run)]
    assert [token.cut for token in tokens] == list(range(1, len(tokens) + 1))


def test_a_job_that_has_come_to_its_end_adds_nothing_when_it_is_started_again(
    mode: str, runs: Callable[..., LocalRun]
) -> None:
    source = in_acts(PARTS, SCHEMA, 1, 1)
    job = workflow(source)
    runs(job, mode=mode).run()
    for _ in range(2):
        run = runs(job, mode=mode)
        run.run()
        assert_expected(run)


# chronostream fact 14: a worker's memory of a cut that was never logged is not used again
def test_memory_of_a_cut_that_was_not_logged_is_dropped(runs: Callable[..., LocalRun]) -> None:
    source = in_acts(PARTS, SCHEMA, 2, 6)
    job = workflow(source)
    run = runs(job, slices=3, parallelism=1)
    run.batch(seconds=0.05)
    held = {place: cache.inventory(run.plan.run, place[0]) for place, cache in run.caches.items()}
    logged = cuts_of(run)[-1].token
    assert {inventory.version for inventory in held.values() if inventory is not None} == {logged}
    for cache in run.caches.values():  # as if the last cut had not come to be
        for subtask in cache.subtasks.values():
            assert subtask.version is not None
            subtask.version = (logged.by.cut(logged.cut + 1), *subtask.version[1:])
    before = [subtask for cache in run.caches.values() for subtask in cache.subtasks.values()]
    source.curtain.acts = 2
    run.run()
    after = [subtask for cache in run.caches.values() for subtask in cache.subtasks.values()]
    assert not {id(subtask) for subtask in before} & {id(subtask) for subtask in after}
    assert_expected(run)


# chronostream fact 18: two drivers never publish different versions
def test_a_driver_that_was_replaced_logs_and_publishes_nothing(mode: str, tmp_path: Path) -> None:
    source = in_acts(PARTS, SCHEMA, 3, 1)
    job, options = workflow(source), dict[str, Any](mode=mode, report="5 ms", slices=5)
    first = LocalRun(job, tmp_path / "checkpoint", **options)
    first.batch(seconds=0.05)
    first._lock.close()  # the lock is a courtesy: what counts is the log
    second = LocalRun(job, tmp_path / "checkpoint", **options)
    try:
        source.curtain.acts = 2
        second.batch(seconds=0.05)
        logged, rows = cuts_of(second), second.rows("windows-out")
        with pytest.raises(FencedError, match="another driver has taken over checkpoint"):
            first.batch(seconds=0.05)
        assert cuts_of(second) == logged and second.rows("windows-out") == rows
        source.curtain.acts = 3
        second.run()
        assert_expected(second)
        openings = [entry for n in second.log.numbers() if isinstance(entry := second.log.read(n), Opened)]
        assert len(openings) <= 2
    finally:
        first.close()
        second.close()


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
        StateError, match="divided into slices=5, and the job has slices=6 now; set slices=5, or start with a new"
    ):
        runs(job, slices=6)
    runs(job, mode="microbatch").run()


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


# chronostream fact 34: damage to segments and log stops the job with the file's name, never a wrong answer
@pytest.mark.parametrize("how", ["flip", "truncate", "delete", "swap"])
@pytest.mark.parametrize("kind", ["segments", "log"])
def test_a_damaged_checkpoint_stops_the_job(
    kind: str, how: str, mode: str, tmp_path: Path, runs: Callable[..., LocalRun]
) -> None:
    source = in_acts(PARTS, SCHEMA, 3, 2)
    job = workflow(source)
    run = runs(job, mode=mode, parallelism=2)
    for act in range(2):
        source.curtain.acts = act + 1
        run.batch(seconds=0.05)
    number, entry = run.log.cuts()[-1]
    run.close()
    files = sorted((tmp_path / "checkpoint" / "headrace" / kind).iterdir())
    needed = {f"{number:010d}"} if kind == "log" else {file.rpartition("/")[2] for file in entry.manifest.files}
    victim = [f for f in files if f.name in needed][-1]
    damage(victim, how, next(f for f in files if f != victim))
    source.curtain.acts = 3
    with pytest.raises(CorruptionError) as caught:
        runs(job, mode=mode).run()
    text = str(caught.value)
    if kind == "log":
        assert f"entry {number}" in text or how == "swap"
    else:
        assert victim.name in text or how == "swap"
        assert "step" in text


def test_a_version_that_is_gone_while_the_job_runs_is_named(
    mode: str, tmp_path: Path, runs: Callable[..., LocalRun]
) -> None:
    source = in_acts(PARTS, SCHEMA, 3, 2)
    run = runs(workflow(source), mode=mode)
    run.batch(seconds=0.05)
    number, entry = run.log.cuts()[-1]
    (tmp_path / "checkpoint" / "headrace" / "log" / f"{number:010d}").unlink()
    for cache in run.caches.values():
        cache.subtasks.clear()
    source.curtain.acts = 3
    with pytest.raises(
        CorruptionError, match=rf"entry {number} of the version log, that of {entry.manifest.token}, is missing"
    ):
        run.batch(seconds=0.05)


def _carries_data(row: Any) -> bool:
    """Whether a row holds records: one with only a watermark can be lost unharmed, the next tells more."""
    return any(frame.kind < Kind.WATERMARK for frame in decode(row.column("payload")[0].as_py()))


# chronostream fact 19: a repeated row is dropped, a missing one ends the attempt; fact 20: sent = consumed
@pytest.mark.parametrize("what", ["repeat", "lose"])
def test_rows_between_stages_count_once(
    what: str, mode: str, runs: Callable[..., LocalRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    put, dice = Pipe.put, random.Random(4)
    lost: list[int] = []

    def unreliable(self: Pipe, row: Any) -> None:
        if what == "repeat":
            put(self, row)
            put(self, row)
        elif lost or not _carries_data(row) or dice.random() < 0.5:
            put(self, row)
        else:
            lost.append(1)

    monkeypatch.setattr(Pipe, "put", unreliable)
    job = workflow(in_acts(PARTS, SCHEMA, 1, 2))
    run = runs(job, **often(mode), poll_rows=3, flush="0 ms")
    if what == "repeat":
        run.run()
        assert_expected(run)
        return
    with pytest.raises(ProtocolError, match="buffers are missing|the input ended before|not consumed|not flushed"):
        run.batch()
    assert lost and cuts_of(run) == []
    monkeypatch.setattr(Pipe, "put", put)
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


# cuts.md rule 25: an attempt starts from the newest cut's state, offsets and stage watermarks
@pytest.mark.parametrize("then", ["another driver", "the next batch", "a job that has grown"])
def test_a_window_that_was_closed_before_a_restart_stays_closed(
    runs: Callable[..., LocalRun], mode: str, then: str
) -> None:
    """A partition that had been silent so far comes back with a record for it: it is late, as it would have been before."""
    busy: list[Record] = [{"k": "a", "v": 1, "t": t} for t in range(0, 500, 10)]
    old, new = {"k": "a", "v": 100, "t": 50}, {"k": "a", "v": 1, "t": 10_000}
    acts = (((*busy,), (), (), (new,)), ((), (old,), (), (new,)))
    source = InActs(acts, to_schema(SCHEMA), bounded=False, live=True)

    def job(*, grown: bool = False) -> hr.Job:
        job = hr.Job("job")
        read = job.source("s", source, event_time="t", idle="20 ms")
        if grown:
            read.key_by("v").reduce(name="first", n=hr.count()).sink("first-out", out())
        read.key_by("k").window(hr.tumbling("100 ms")).reduce(name="sums", v=hr.sum("v")).sink("out", out())
        return job

    def closed(run: LocalRun) -> list[tuple[int, int]]:
        rows = run.rows("out")
        return sorted((round(row["window_end"].timestamp() * 1000), row["v"]) for row in rows)

    run = runs(job(), mode=mode, parallelism=2)
    for _ in range(20):
        run.batch(seconds=0.2)
        if len(closed(run)) >= 4:
            break
    before = closed(run)
    assert before[:4] == [(end, 10) for end in (100, 200, 300, 400)]
    source.curtain.acts = 2
    if then != "the next batch":
        run = runs(job(grown=then == "a job that has grown"), mode=mode, parallelism=2)
    for _ in range(20):
        run.batch(seconds=0.1)
        assert closed(run)[:4] == before[:4], "a window is emitted once"
        if counters(run).get("late:sums"):
            break
    assert counters(run)["late:sums"] == 1
