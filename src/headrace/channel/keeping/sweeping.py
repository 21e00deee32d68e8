"""Removing what is left of keepers that were killed together with their executors."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Sequence
from pathlib import Path

import psutil

LOCK = "lock"
"""In a node's directory on disk: held by its keeper for as long as that lives."""


def sweep(roots: Sequence[Path]) -> list[str]:
    """Remove the directories beside our own whose daemon is gone and whose keeper is too; returns their names.

    ``roots`` are ours, in memory and on disk, the disk's last. A copy is no loss: no job can ask for it any more.
    """
    swept = []
    for lock in sorted(roots[-1].parent.glob(f"*/{LOCK}")):
        name = lock.parent.name
        pid = name.partition("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)) and _is_free(lock):
            for root in roots:
                shutil.rmtree(root.with_name(name), ignore_errors=True)
            swept.append(name)
    return swept


def _is_free(lock: Path) -> bool:
    try:
        with lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
