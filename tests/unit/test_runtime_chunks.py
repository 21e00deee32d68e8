"""Chunks: changes written between two cuts, and a cut's own."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.connect.callback import callback
from headrace.state.durable.changes import Change, Pending
from headrace.state.durable.chunks import ChunkWriter
from headrace.state.durable.loading import read_slice
from headrace.state.durable.segments import StoredChange
from headrace.state.durable.storage import LocalStorage
from headrace.state.stores.keyvalues import KeyedStore
from headrace.testing import LocalRun


def _job() -> hr.Job:
    job = hr.Job("chunks")
    rows = hr.generate(lambda n: {"k": n % 7, "v": n, "ts": n * 10}, rate="1500/s", total=450)
    source = job.source("rows", rows, event_time="ts")
    source.key_by("k").reduce(name="sum", total=hr.sum("v")).sink("sums", callback(print))
    source.key_by("k").window(hr.session_window("35 ms")).reduce(name="burst", n=hr.count()).sink(
        "bursts", callback(print)
    )
    source.key_by("k").process(_remember, state={"seen": hr.value()}, name="remember", returns={"n": "int64"}).sink(
        "seen", callback(print)
    )
    return job


def _remember(record: dict[str, Any], state: Any, out: Any) -> None:
    n = (state["seen"].get() or 0) + 1
    state["seen"].set(n)
    out({"n": n})


def _state(run: LocalRun) -> dict[tuple[str, int], list[str]]:
    newest = run.log.newest_cut()
    assert newest is not None
    rows = {
        (step, slice): sorted(map(str, read_slice(run.storage, step, slice, version).to_pylist()))
        for (step, slice), version in newest[1].manifest.slices.items()
        if step != "rows"  # a source keeps when it started
    }
    return {key: of_slice for key, of_slice in rows.items() if of_slice}


# chronostream section 6a: every 5 s or 8 MB the dirty map is swapped and serialised
def test_chunks_and_cuts_at_any_time_lead_to_the_same_state(tmp_path: Path) -> None:
    states = {}
    for chunk, commit in (("1 ms", "1 hour"), ("1 hour", "1 hour"), ("1 ms", "50 ms"), ("1 hour", "50 ms")):
        run = LocalRun(_job(), tmp_path / f"{chunk}-{commit}", chunk=chunk, commit=commit, slices=4)
        try:
            run.run(seconds=20)
            names = [name for name in run.storage.names("segments") if re.search(r"-s\d\d-\d{4}-", name)]
            states[chunk, commit] = _state(run)
        finally:
            run.close()
        last = max(int(name.rpartition("-")[2].removesuffix(".seg")) for name in names)
        assert last > 2 or (chunk, commit) != ("1 ms", "1 hour"), names
        assert last == 0 or chunk == "1 ms", names
    assert len({str(sorted(state.items())) for state in states.values()}) == 1


def _writer(tmp_path: Path, woken: list[str] | None = None) -> ChunkWriter:
    wake = (lambda: woken.append(threading.current_thread().name)) if woken is not None else (lambda: None)
    return ChunkWriter(LocalStorage(tmp_path), "segments/x", 5.0, 8_000_000, 0, wake)


def _swapped(*values: tuple[str, int]) -> list[tuple[str, Pending]]:
    store = KeyedStore("s", lambda keys: [0 for _ in keys])
    for key, value in values:
        store.set("v", key, None, value)
    return [("s", store.swap())]


def test_a_chunk_is_due_by_time_or_by_size_and_never_while_one_is_being_written(tmp_path: Path) -> None:
    writer, may_write = _writer(tmp_path), threading.Event()
    try:
        assert not writer.look(249_999) and writer.look(250_000) and not writer.look(300_000)
        assert not writer.due(4_999_999, 7_999_999)
        assert writer.due(4_999_999, 8_000_000)
        assert writer.due(5_000_000, 1)
        assert not writer.due(60_000_000, 0), "nothing to write"

        def slow() -> list[Change]:
            assert may_write.wait(20)
            return []

        writer.write([("s", slow)], 1_000_000)
        assert not writer.due(60_000_000, 10**9), "one is being written"
        may_write.set()
        assert writer.cut([], 7_000_000, lambda changes, worked_ms: changes, "segments/y").result() == ()
        assert not writer.due(11_999_999, 1) and writer.due(12_000_000, 1), "a cut writes what a chunk would have"
    finally:
        writer.close()


def test_chunks_that_cost_much_are_written_seldom(tmp_path: Path) -> None:
    writer = _writer(tmp_path)

    def costly() -> list[Change]:
        until_s = time.thread_time() + 0.05
        while time.thread_time() < until_s:
            pass
        return []

    try:
        writer.write([("s", costly)], 1_000_000)
        assert writer.cut([], 1_000_000, lambda changes, worked_ms: worked_ms, "segments/y").result() >= 50
        assert writer.cut([], 1_000_000, lambda changes, worked_ms: worked_ms, "segments/z").result() < 50
        writer.write([("s", costly)], 1_000_000)
        wait([writer._chunks[-1]])
        assert not writer.due(1_999_999, 10**9), "at most a twentieth of the time"
        assert writer.due(20_000_000, 10**9)
    finally:
        writer.close()


def test_a_cut_takes_along_the_chunks_of_its_interval_and_only_those(tmp_path: Path) -> None:
    woken: list[str] = []
    writer = _writer(tmp_path, woken)
    by: list[str] = []

    def then(changes: tuple[StoredChange, ...], worked_ms: float) -> list[str]:
        by.append(threading.current_thread().name)
        return [change.block.file for change in changes]

    try:
        writer.write(_swapped(("a", 1)), 1)
        writer.write(_swapped(("b", 2)), 2)
        first = writer.cut(_swapped(("c", 3)), 3, then, "segments/y")
        writer.write(_swapped(("d", 4)), 4)
        second = writer.cut([], 5, then, "segments/z")
        assert first.result() == [f"segments/x-{n:02d}.seg" for n in range(3)]
        assert second.result() == ["segments/y-00.seg"], "a chunk without changes is no file"
    finally:
        writer.close()
    assert all(name.startswith("headrace-chunks") for name in by), "another thread waits for the disk"
    assert len(woken) == 7


# a chunk that could not be written is noticed at once, not at the end
def test_a_chunk_that_cannot_be_written_is_told_before_the_cut_and_fails_it(tmp_path: Path) -> None:
    (tmp_path / "segments").write_text("a file where the directory should be")
    woken: list[str] = []
    writer = _writer(tmp_path, woken)
    try:
        writer.check()
        writer.write(_swapped(("a", 1)), 1)
        while not woken:
            threading.Event().wait(0.001)
        with pytest.raises(OSError):
            writer.check()
        with pytest.raises(OSError):
            writer.cut([], 2, lambda changes, worked_ms: changes, "segments/y").result()
    finally:
        writer.close()


def test_a_chunk_that_cannot_be_written_fails_the_attempt(tmp_path: Path) -> None:
    run = LocalRun(_job(), tmp_path, chunk="1 ms", slices=4)
    try:
        (run.storage.root / "segments").write_text("a file where the directory should be")
        with pytest.raises(OSError):
            run.batch(seconds=20)
        assert run.log.newest_cut() is None
    finally:
        run.close()
