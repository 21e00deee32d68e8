"""Worker processes that hang are killed, and no others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from headrace.driver.workers import kill
from headrace.runtime.messages import Hello


def said(host: str, daemon: int, pid: int) -> Hello:
    return Hello(1, 0, query=7, batch=0, inventory=None, host=host, daemon=daemon, pid=pid, node=None, executor=None)


# fault plan 3
def test_only_the_process_that_said_hello_is_killed() -> None:
    """Its number may have been given to another since, and on another host it means another process."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        here = socket.gethostname()
        assert not kill(said("elsewhere", os.getpid(), child.pid))
        assert not kill(said(here, os.getpid() + 1, child.pid))
        assert child.poll() is None
        assert kill(said(here, os.getpid(), child.pid)) and child.wait(20) < 0
        assert not kill(said(here, os.getpid(), child.pid)), "it is gone"
    finally:
        child.kill()
        child.communicate()
