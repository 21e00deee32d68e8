"""What all unit tests share: no waiting for disks, no thread of ours left behind."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.state.spill.diskrows import DiskRows


@pytest.fixture(autouse=True)
def no_disk_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Power loss is not tested here, and fsync is most of the time of a local run."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    yield
    deadline = time.monotonic() + 5
    while (left := [t.name for t in threading.enumerate() if t.name.startswith(("headrace-", "subtask-"))]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.005)
    assert not left, f"threads left running: {left}"


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
