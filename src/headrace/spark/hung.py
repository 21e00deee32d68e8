"""Ending worker processes that hang: Spark closes their pipe, which a stopped process never notices."""

from __future__ import annotations

import socket
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """Where a subtask runs, as its HELLO told. ``parent`` is the Python daemon that forked it."""

    host: str
    parent: int
    pid: int

    def kill(self) -> bool:
        """Kill it if it is on this host and still that daemon's child; elsewhere its executor's end ends it."""
        if self.host != socket.gethostname():
            return False
        try:
            process = psutil.Process(self.pid)
            if process.ppid() != self.parent:
                return False
            process.kill()
        except psutil.NoSuchProcess:
            return False
        return True
