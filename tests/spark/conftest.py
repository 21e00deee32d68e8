"""One Spark session for all tests that do not need one of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from headrace.spark.session import open_session


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    session = open_session("realtime", "local[10]", "headrace-tests")
    yield session
    below = psutil.Process().children(recursive=True)
    session.stop()
    jvm = session.sparkContext._gateway.proc if session.sparkContext._gateway else None
    if jvm is not None:
        jvm.stdin.close()
        jvm.wait(30)
    _, left = psutil.wait_procs(below, timeout=20)
    assert not left, f"processes left behind: {left}"
