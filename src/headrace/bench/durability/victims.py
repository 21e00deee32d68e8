"""Processes that are started to be killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from headrace.errors import RunFailedError

Victim = subprocess.Popen[bytes]


def start_victim(module: str, options: dict[str, Any], log: Path) -> Victim:
    """``python -m module OPTIONS``, with all it says in a file."""
    command = [sys.executable, "-m", module, json.dumps(options)]
    with log.open("ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=file)


def kill_victim(victim: Victim) -> list[psutil.Process]:
    """kill -9; returns the processes below it, which notice by themselves and go."""
    below = psutil.Process(victim.pid).children(recursive=True)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    return below


def expect_gone(processes: list[psutil.Process], timeout_s: float = 30.0) -> None:
    """RunFailedError if some outlive their driver."""
    _, left = psutil.wait_procs(processes, timeout=timeout_s)
    if left:
        raise RunFailedError(f"processes {[p.pid for p in left]} outlived their driver by {timeout_s:g} s")


def wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it held before the time was over."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def last_words(log: Path) -> str:
    """The end of what a process said, for an error."""
    return ":\n" + log.read_text(errors="replace")[-3000:]
