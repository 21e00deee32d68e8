"""When the loss of a worker ends the attempt."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from headrace.driver.coordinator import Member
from headrace.driver.leases import WorkerProcess, Workers

from headrace.runtime.messages import Hello

HELLO = Hello(1, 0, query=7, epoch=0, inventory=None, host="elsewhere", daemon=1, pid=2)


@dataclass
class Attempt:
    """As much of a coordinator as a lease looks at."""

    planned: bool
    query: int = 7
    members: dict[tuple[int, int], Member] = field(default_factory=dict)


# fault plan 3
@pytest.mark.parametrize(
    ("eager", "planned", "member", "described", "ends"),
    [
        (True, True, True, False, True),
        (True, True, True, True, True),  # after its DESC it still has to end Spark's task
        (True, False, False, False, True),  # the next epoch waits for its HELLO
        (True, True, False, False, False),  # an idle worker that nobody waits for
        (False, True, True, False, True),
        (False, True, True, True, False),
    ],
)
def test_a_lost_worker_ends_the_attempt_while_it_is_needed(
    eager: bool, planned: bool, member: bool, described: bool, ends: bool
) -> None:
    plan: Any = SimpleNamespace(eager=eager, settings=SimpleNamespace(lease_s=5.0))
    workers = Workers(plan)
    workers.began(b"w", HELLO)
    attempt: Any = Attempt(planned)
    if member:
        description: Any = object() if described else None
        attempt.members[1, 0] = Member(b"w", None, description=description)
    failure = workers.lost(b"w", attempt)
    assert (failure is not None) == ends == bool(workers.hung)
    assert failure is None or (failure.query, failure.place, failure.error) == (7, (1, 0), "ChannelError")
    assert workers.lost(b"a stranger", attempt) is None
    workers.forget()
    assert not workers.hung and workers.lost(b"w", attempt) is None


def test_only_the_process_that_said_hello_is_killed() -> None:
    """Its number may have been given to another since, and on another host it means another process."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        here = socket.gethostname()
        assert not WorkerProcess("elsewhere", os.getpid(), child.pid).kill()
        assert not WorkerProcess(here, os.getpid() + 1, child.pid).kill()
        assert child.poll() is None
        assert WorkerProcess(here, os.getpid(), child.pid).kill() and child.wait(20) < 0
        assert not WorkerProcess(here, os.getpid(), child.pid).kill(), "it is gone"
    finally:
        child.kill()
        child.communicate()
