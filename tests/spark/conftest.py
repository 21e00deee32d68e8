"""One Spark session at a time for all tests that do not need one of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from headrace.spark.session import open_session


class Sessions:
    """The open session: it goes on while tests want the same master. The JVM stays for the next one."""

    def __init__(self) -> None:
        self._master: str | None = None
        self._session: Any = None

    def on(self, master: str) -> Any:
        if self._master != master:
            if self._session is not None:
                self._session.stop()
            self._master, self._session = master, open_session("realtime", master, "headrace-tests")
        return self._session

    def close(self) -> None:
        """Stop the session and the JVM; nothing that they started may be left."""
        if self._session is None:
            return
        below = psutil.Process().children(recursive=True)
        self._session.stop()
        gateway = self._session.sparkContext._gateway
        if gateway is not None:
            gateway.proc.stdin.close()
            gateway.proc.wait(30)
        _, left = psutil.wait_procs(below, timeout=20)
        assert not left, f"processes left behind: {left}"


@pytest.fixture(scope="session")
def sessions() -> Iterator[Sessions]:
    sessions = Sessions()
    yield sessions
    sessions.close()


@pytest.fixture
def spark(sessions: Sessions) -> Any:
    return sessions.on("local[10]")


@pytest.fixture
def cluster(sessions: Sessions) -> Any:
    """Two executors, each a process with four task slots."""
    return sessions.on("local-cluster[2,4,1024]")
