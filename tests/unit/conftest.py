"""What all unit tests share: no waiting for disks, no thread of ours left behind, little time of the processor."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from soaking import MORE

from headrace.state.spill.diskrows import DiskRows

MAX_CPU_S = 15.0
"""What one test may take of the processor."""


@pytest.fixture(autouse=True)
def no_disk_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Power loss is not tested here, and fsync is most of the time of a local run."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 5
    while (left := _of_ours(set(threading.enumerate()) - before)) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not left, f"threads left running: {left}"


def _of_ours(threads: set[threading.Thread]) -> list[str]:
    return [thread.name for thread in threads if thread.name.startswith(("headrace-", "subtask-"))]


def _cpu_s() -> float:
    """Of this process and of all that it has started and waited for; other work on the machine does not count."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """``make test`` is for every change: what takes long belongs into a bench, or into ``make soak``."""
    began_s = _cpu_s()
    result = yield
    took_s = _cpu_s() - began_s
    if MORE == 1 and took_s > MAX_CPU_S:
        pytest.fail(f"the test took {took_s:.1f} s of the processor, and {MAX_CPU_S:g} s are the limit", pytrace=False)
    return result


@pytest.fixture
def to_disk(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows went to disk each time."""
    counts: list[int] = []
    add = DiskRows.add

    def counted(self: DiskRows, rows: Any) -> None:
        counts.append(rows.num_rows)
        add(self, rows)

    monkeypatch.setattr(DiskRows, "add", counted)
    return counts
