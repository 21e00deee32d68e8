"""Upkeep in a process beside: the same rewrites, errors by their kinds, and nobody outlives the driver."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest
from durable import CutWriter

from headrace.errors import CorruptionError
from headrace.state.durable import tidying
from headrace.state.durable.manifest import Manifest
from headrace.state.durable.storage import LocalStorage
from headrace.state.durable.tidying import TidyingAside
from headrace.tokens import Attempt

BY = Attempt(1, 0)


@pytest.fixture
def writer(tmp_path: Path) -> CutWriter:
    return CutWriter(LocalStorage(tmp_path))


@pytest.fixture
def aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TidyingAside]:
    monkeypatch.setattr(tidying, "_IDLE_S", 2.0)  # on a busy machine the idlest gets nothing done
    made = TidyingAside(tmp_path)
    yield made
    made.close()


def long(writer: CutWriter) -> Manifest:
    return [writer.cut({slice: {n: n} for slice in range(3)}) for n in range(20)][-1]


def process_of(aside: TidyingAside) -> psutil.Process:
    assert aside._process is not None
    return psutil.Process(aside._process.pid)


def test_rewrites_are_made_beside_and_take_their_places(writer: CutWriter, aside: TidyingAside) -> None:
    made = long(writer)
    rewrites = aside.compact(made, BY, 1)
    assert [rewrite.slice for rewrite in rewrites] == [0, 1, 2]
    after = writer.cut({0: {50: 50}}, rewrites=rewrites)
    assert all(len(version.blocks) <= 9 for version in after.slices.values())
    writer.check(after)
    gone = sorted({block.file for rewrite in rewrites for block in rewrite.chain})
    aside.remove(gone)
    assert not {*gone} & {*writer.storage.names("segments")}
    writer.check(after)


def test_damage_is_told_from_trouble(writer: CutWriter, aside: TidyingAside, tmp_path: Path) -> None:
    made = long(writer)
    (tmp_path / made.slices["step", 0].blocks[-1].file).write_bytes(b"x" * 10_000)
    with pytest.raises(CorruptionError, match="slice 0"):
        aside.compact(made, BY, 1)
    aside.close()
    for path in (tmp_path / "segments").iterdir():
        path.unlink()
    (tmp_path / "segments").rmdir()
    (tmp_path / "segments").write_text("no folder")
    with pytest.raises(OSError, match="segments"):
        aside.compact(made, BY, 2)


def test_a_process_that_was_killed_is_started_again(writer: CutWriter, aside: TidyingAside) -> None:
    made = long(writer)
    aside.remove([])
    first = process_of(aside)
    first.kill()
    assert len(aside.compact(made, BY, 1)) == 3
    assert process_of(aside).pid != first.pid


# What it imports took a second of a core at full priority, in the midst of a run: p99 was 70 to 90 ms then, not 16
@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="this system has no such scheduling")
def test_it_makes_way_before_it_has_begun(aside: TidyingAside, monkeypatch: pytest.MonkeyPatch) -> None:
    put, policies = tidying._put, []

    def noting(pipe: IO[bytes], message: bytes) -> None:
        policies.append(os.sched_getscheduler(process_of(aside).pid))
        put(pipe, message)

    monkeypatch.setattr(tidying, "_put", noting)
    aside.remove([])
    assert policies[0] == os.SCHED_IDLE, "though it may have to compete later"


def test_where_there_is_no_idle_core_it_competes(
    writer: CutWriter, aside: TidyingAside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidying, "_IDLE_S", 0.0)
    assert len(aside.compact(long(writer), BY, 1)) == 3
    assert process_of(aside).nice() == min(psutil.Process().nice() + tidying._COMPETING_NICE, 19), "nicer than we are"


def test_a_stop_does_not_wait_for_work(writer: CutWriter, aside: TidyingAside) -> None:
    made = long(writer)
    aside.remove([])
    process_of(aside).suspend()
    stopping = threading.Timer(0.2, aside.stop)
    stopping.start()
    with pytest.raises(OSError, match="has ended"):
        aside.compact(made, BY, 1)
    with pytest.raises(OSError, match="has ended"):
        aside.remove([])
    stopping.join()


def test_it_leaves_when_nobody_can_ask_any_more(aside: TidyingAside) -> None:
    aside.remove([])
    process = process_of(aside)
    assert aside._process is not None and aside._process.stdin is not None
    aside._process.stdin.close()  # as when the driver is killed
    assert aside._process.wait(30) == 0 and not process.is_running()
    aside._process.stdin = None


_DRIVER = """
import sys, time
from pathlib import Path
from headrace.state.durable.tidying import TidyingAside
aside = TidyingAside(Path(sys.argv[1]))
aside.remove([])
print(aside._process.pid, flush=True)
time.sleep(600)
"""


def test_it_dies_with_a_driver_that_is_killed_whatever_it_is_at(tmp_path: Path) -> None:
    driver = subprocess.Popen([sys.executable, "-c", _DRIVER, str(tmp_path)], stdout=subprocess.PIPE)
    assert driver.stdout is not None
    process = psutil.Process(int(driver.stdout.readline()))
    process.suspend()  # as if it were at work for long
    driver.kill()
    driver.communicate()
    psutil.wait_procs([process], timeout=60)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
