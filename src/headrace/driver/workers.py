"""Worker processes that give no sign of life.

Spark closes the pipe of a worker it gives up, which a stopped process never notices: it has to be killed.
"""

from __future__ import annotations

import socket

import psutil

from headrace.runtime.messages import Hello


def kill(worker: Hello) -> bool:
    """Kill a worker if it is on this host and still its daemon's child; elsewhere its executor's end ends it."""
    if worker.host != socket.gethostname():
        return False
    try:
        process = psutil.Process(worker.pid)
        if process.ppid() != worker.daemon:
            return False
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True
