"""The worker processes of a query, and what to do when one gives no sign of life.

Spark closes the pipe of a worker it gives up, which a stopped process never notices: it has to be killed.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

import psutil

from headrace.driver.coordinator import Coordinator
from headrace.errors import ChannelError
from headrace.runtime.messages import Failed, Hello, Place
from headrace.runtime.plan import JobPlan


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


class Workers:
    """Who said HELLO in the current query, and who of them was lost."""

    def __init__(self, plan: JobPlan) -> None:
        self._eager, self._lease_s = plan.eager, plan.settings.lease_s
        self._known: dict[bytes, tuple[Place, WorkerProcess]] = {}
        self.hung: list[WorkerProcess] = []

    def forget(self) -> None:
        """A new query begins."""
        self._known.clear()
        self.hung.clear()

    def began(self, sender: bytes, hello: Hello) -> None:
        self._known[sender] = (hello.place, WorkerProcess(hello.host, hello.daemon, hello.pid))

    def lost(self, sender: bytes, coordinator: Coordinator) -> Failed | None:
        """The failure that the loss of a worker means, or None if nobody needs it any more.

        Where stages run at the same time, a worker is needed until all have said HELLO for the next
        epoch: after its DESC a subtask still has to let Spark's task end and to begin the next one.
        """
        if sender not in self._known:
            return None
        member = next((m for m in coordinator.members.values() if m.sender == sender), None)
        if self._eager:
            needed = member is not None or not coordinator.planned
        else:
            needed = member is not None and member.description is None
        if not needed:
            return None
        place, process = self._known[sender]
        self.hung.append(process)
        text = f"a worker gave no sign of life for {self._lease_s:g} s: it hangs or is gone"
        return Failed(coordinator.query, place, ChannelError.__name__, text, None)

    def kill_hung(self) -> None:
        for process in self.hung:
            process.kill()
